"""Written aside and renamed: whole or not at all, and patient with whoever holds a name or a lock for a moment."""

import errno
import json
import math
import threading
from pathlib import Path

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.files import (
    atomic_write,
    dump_json,
    dump_with_list,
    flush_to_disk,
    is_disk_full,
    is_locked,
    lock,
    read_json,
    remove_folder,
    with_retries,
    write_error_reason,
    write_json,
    write_text,
)
from training_pro.tests.fakes import refuse_to_remove_read_only_files


def held(times):
    """Return a call that is refused so many times, as Windows does, and the list of its tries."""
    tries = []

    def act():
        tries.append(1)
        if len(tries) <= times:
            raise PermissionError(13, "The process cannot access the file")
        return "done"

    return act, tries


def test_a_file_that_another_program_holds_is_waited_for_but_not_for_ever():
    act, tries = held(2)
    assert (with_retries(act), len(tries)) == ("done", 3)
    act, tries = held(99)  # a folder of new files is waited for longer, while a virus scanner looks at it
    with pytest.raises(PermissionError):
        with_retries(act, (0.001, 0.001))
    assert len(tries) == 9


def test_reading_writing_and_flushing_wait(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"rank": 8})
    acts = {
        "replace": lambda: write_text(tmp_path / "a", "new"),
        "open": lambda: flush_to_disk(tmp_path),
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


def test_a_folder_goes_with_what_is_read_only_in_it_and_none_is_an_error(tmp_path, monkeypatch):
    """Windows removes nothing that is read-only, as what Git keeps in a clone is."""
    pack = tmp_path / "lora" / ".git" / "pack"
    pack.parent.mkdir(parents=True)
    pack.touch(0o444)
    refuse_to_remove_read_only_files(monkeypatch)
    remove_folder(tmp_path / "lora")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        remove_folder(tmp_path / "nothing")


def test_why_a_folder_can_not_be_written(tmp_path):
    for said in ("No space left on device (os error 28)", "Zu wenig Platz. (os error 112)"):
        assert is_disk_full(OSError(f"I/O error: {said}"), tmp_path)
    assert not is_disk_full(OSError("I/O error: Access is denied. (os error 5)"), tmp_path)
    reason = write_error_reason(OSError(errno.EROFS, "Read-only file system"), tmp_path)
    assert reason == "the folder is read-only"


def test_a_long_list_is_dumped_piece_by_piece_like_the_whole():
    for items in ([], [{"loss": 1.5}], [{"loss": math.nan, "name": "Zoë"}, {"loss": None}]):
        pieces = list(dump_with_list({"step": 3, "rates": {"a": math.inf}}, "graph", iter(items)))
        whole = dump_json({"step": 3, "rates": {"a": math.inf}, "graph": items})
        assert "".join(pieces) == whole
        assert len(pieces) == len(items) + 2 and json.loads(whole)["step"] == 3


def test_a_lock_has_one_owner_and_looking_at_it_makes_none(tmp_path):
    assert not is_locked(tmp_path / "a.lock")
    assert list(tmp_path.iterdir()) == []
    with lock(tmp_path / "a.lock") as first, lock(tmp_path / "a.lock") as second:
        assert (first, second, is_locked(tmp_path / "a.lock")) == (True, False, True)
    assert not is_locked(tmp_path / "a.lock")
    (tmp_path / "file").touch()
    with pytest.raises(SavingError, match="Can't write to"), lock(tmp_path / "file" / "a.lock"):
        pass


def test_programs_that_only_look_at_a_lock_refuse_nobody(tmp_path):
    (tmp_path / "a.lock").touch()
    over = threading.Event()

    def look():
        while not over.is_set():
            is_locked(tmp_path / "a.lock")

    looker = threading.Thread(target=look)
    looker.start()
    for _ in range(50):
        with lock(tmp_path / "a.lock") as acquired:
            assert acquired
    over.set()
    looker.join()
