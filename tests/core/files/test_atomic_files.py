"""Written aside and renamed: whole or not at all, and patient with whoever holds a name for a moment."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from training_pro.core.files import (
    atomic_files,
    atomic_write,
    flush_to_disk,
    is_disk_full,
    move_new_folder,
    read_json,
    remove_folder,
    write_json,
    write_text,
)
from training_pro.tests.fakes import refuse_to_remove_read_only_files


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(atomic_files, "RETRY_PAUSES_SECONDS", (0.001, 0.001))
    monkeypatch.setattr(atomic_files, "NEW_FOLDER_PAUSES_SECONDS", (0.001, 0.001, 0.001))


def held(monkeypatch, name, times):
    """As Windows has it: whatever `Path` does by this name is refused so many times."""
    does, tried = getattr(Path, name), []

    def refused(path, *args, **more):
        tried.append(path)
        if len(tried) <= times:
            raise PermissionError(13, "The process cannot access the file", str(path))
        return does(path, *args, **more)

    monkeypatch.setattr(Path, name, refused)
    return tried


def test_a_name_that_another_program_holds_is_waited_for(tmp_path, monkeypatch):
    tried = held(monkeypatch, "replace", 2)
    write_text(tmp_path / "a", "new")
    assert (len(tried), (tmp_path / "a").read_text()) == (3, "new")


def test_not_for_ever(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    tried = held(monkeypatch, "replace", 3)
    with pytest.raises(PermissionError):
        write_text(tmp_path / "a", "new")
    assert (len(tried), (tmp_path / "a").read_text()) == (3, "old")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


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
    for make in (Path.touch, Path.mkdir):
        with pytest.raises(type(error)), atomic_write(tmp_path / "a") as aside:
            make(aside)
            raise error
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_looked_at_just_now_is_settled_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "weights").touch()
    tried = held(monkeypatch, "open", 2)
    flush_to_disk(tmp_path)
    assert len(tried) == 3


def test_a_folder_of_new_files_is_waited_for_longer_than_a_file(tmp_path, monkeypatch):
    """As long as a virus scanner looks at one of its files, Windows moves none above it."""
    (tmp_path / "new").mkdir()
    tried = held(monkeypatch, "replace", 5)
    assert move_new_folder(tmp_path / "new", tmp_path / "place") == tmp_path / "place"
    with atomic_write(tmp_path / "whole") as aside:
        aside.mkdir()
        tried.clear()
    assert (len(tried), (tmp_path / "whole").is_dir()) == (6, True)


def test_a_file_is_read_that_another_program_holds_for_a_moment(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"rank": 8})
    tried = held(monkeypatch, "read_text", 2)
    assert (read_json(tmp_path / "a.json", {}), len(tried)) == ({"rank": 8}, 3)


def test_what_is_written_has_the_same_bytes_on_windows(tmp_path, monkeypatch):
    opened = io.open

    def as_windows(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *more):
        """Where nobody says otherwise, it ends lines with both signs."""
        ends = "\r\n" if newline is None and "w" in mode else newline
        return opened(file, mode, buffering, encoding, errors, ends, *more)

    monkeypatch.setattr(io, "open", as_windows)
    write_text(tmp_path / "a", "one\r\ntwo\n")
    assert (tmp_path / "a").read_bytes() == b"one\r\ntwo\n"


def test_a_folder_goes_with_what_is_read_only_in_it(tmp_path, monkeypatch):
    """Windows removes nothing that is read-only, as what Git keeps in a clone is."""
    pack = tmp_path / "lora" / ".git" / "pack"
    pack.parent.mkdir(parents=True)
    pack.touch()
    pack.chmod(0o444)
    refuse_to_remove_read_only_files(monkeypatch)
    remove_folder(tmp_path / "lora")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_looked_into_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        remove_folder(tmp_path / "nothing")


@pytest.mark.parametrize("said", ["No space left on device (os error 28)", "Zu wenig Platz. (os error 112)"])
def test_a_full_disk_is_known_in_the_words_of_a_library(tmp_path, said):
    assert is_disk_full(OSError(f"I/O error: {said}"), tmp_path)
    assert not is_disk_full(OSError("I/O error: Access is denied. (os error 5)"), tmp_path)


@pytest.mark.parametrize("items", [[], [{"loss": 1.5}], [{"loss": math.nan, "name": "Zoë"}, {"loss": None}]])
def test_a_long_list_is_dumped_piece_by_piece_like_the_whole(items):
    pieces = list(atomic_files.dump_with_list({"step": 3, "rates": {"a": math.inf}}, "graph", iter(items)))
    whole = atomic_files.dump_json({"step": 3, "rates": {"a": math.inf}, "graph": items})
    assert "".join(pieces) == whole
    assert len(pieces) == len(items) + 2 and json.loads(whole)["step"] == 3
