"""Written aside and renamed: whole or not at all, and patient with whoever holds a name or a lock for a moment."""

from contextlib import ExitStack
from pathlib import Path
from threading import Timer

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.files import (
    atomic_write,
    is_locked,
    lock,
    read_json,
    remove_folder,
    remove_lock_file,
    with_retries,
    write_json,
    write_text,
)


def test_reading_and_writing_wait_for_a_program_that_holds_a_file_but_not_for_ever(tmp_path, monkeypatch):
    tries = []

    def held():
        tries.append(1)
        raise PermissionError(13, "The process cannot access the file")

    with pytest.raises(PermissionError):
        with_retries(held, (0.001, 0.001))
    assert len(tries) == 9
    write_json(tmp_path / "a.json", {"rank": 8})
    acts = {
        "replace": lambda: write_text(tmp_path / "a", "new"),
        "read_text": lambda: read_json(tmp_path / "a.json", {}),
    }
    for name, act in acts.items():
        does, tried = getattr(Path, name), []

        def refused(path, *args, does=does, tried=tried, **more):
            tried.append(path)
            if len(tried) == 1:
                raise PermissionError(13, "The process cannot access the file", str(path))
            return does(path, *args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(Path, name, refused)
            act()
        assert len(tried) >= 2, name


def test_a_folder_takes_its_place_when_all_of_it_is_there(tmp_path):
    (tmp_path / "deep" / ".half").mkdir(parents=True)
    (tmp_path / "deep" / ".half" / "left by a kill").touch()
    with atomic_write(tmp_path / "deep" / "whole", ".half") as folder:
        folder.mkdir()
        (folder / "a").touch()
        assert not (tmp_path / "deep" / "whole").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "whole", "a"]


@pytest.mark.parametrize("error", [OSError("full"), ZeroDivisionError(), KeyboardInterrupt()])
def test_of_what_went_wrong_nothing_is_left(tmp_path, error):
    write_json(tmp_path / "a", {"name": "größer", "at": Path("x")})
    for make in (Path.touch, Path.mkdir):
        with pytest.raises(type(error)), atomic_write(tmp_path / "a") as aside:
            make(aside)
            raise error
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert read_json(tmp_path / "a", {}) == {"name": "größer", "at": "x"}


def test_a_folder_goes_with_what_is_read_only_in_it_and_none_is_an_error(tmp_path):
    """Windows removes nothing that is read-only, as what Git keeps in a clone is."""
    pack = tmp_path / "lora" / ".git" / "pack"
    pack.parent.mkdir(parents=True)
    pack.touch(0o444)
    remove_folder(tmp_path / "lora")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        remove_folder(tmp_path / "nothing")


def test_a_lock_has_one_owner_and_looking_at_it_makes_none(tmp_path):
    assert not is_locked(tmp_path / "a.lock")
    assert list(tmp_path.iterdir()) == []
    with lock(tmp_path / "a.lock") as first, lock(tmp_path / "a.lock") as second:
        assert (first, second, is_locked(tmp_path / "a.lock")) == (True, False, True)
    assert not is_locked(tmp_path / "a.lock")
    (tmp_path / "file").touch()
    with pytest.raises(SavingError, match="Can't write to"), lock(tmp_path / "file" / "a.lock"):
        pass


def test_who_waits_for_a_lock_gets_that_of_the_file_that_is_there_although_its_owner_removes_it(tmp_path):
    path = tmp_path / "a.lock"
    with ExitStack() as owner:
        owner.enter_context(lock(path))
        owner.callback(remove_lock_file, path)
        Timer(0.1, owner.close).start()
        with lock(path, patience=60) as held:
            assert held and is_locked(path)
