"""Written aside and renamed: whole or not at all, and patient with whoever holds a name for a moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_pro.core import writing
from training_pro.core.writing import settle, write_text, written_whole


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(writing, "PAUSES_SECONDS", (0.001, 0.001))


def held(monkeypatch, name, times):
    """As Windows has it: whatever `Path` does by this name is refused so many times."""
    does, tried = getattr(Path, name), []

    def refused(path, *args):
        tried.append(path)
        if len(tried) <= times:
            raise PermissionError(13, "The process cannot access the file", str(path))
        return does(path, *args)

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
    with written_whole(tmp_path / "deep" / "whole", ".half") as folder:
        folder.mkdir()
        (folder / "a").touch()
        assert not (tmp_path / "deep" / "whole").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "whole", "a"]


@pytest.mark.parametrize("error", [OSError("full"), ZeroDivisionError(), KeyboardInterrupt()])
def test_of_what_went_wrong_nothing_is_left(tmp_path, error):
    for make in (Path.touch, Path.mkdir):
        with pytest.raises(type(error)), written_whole(tmp_path / "a") as aside:
            make(aside)
            raise error
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_looked_at_just_now_is_settled_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "weights").touch()
    tried = held(monkeypatch, "open", 2)
    settle(tmp_path)
    assert len(tried) == 3
