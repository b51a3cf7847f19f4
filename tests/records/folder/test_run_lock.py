"""A LoRA in training is locked for every process until its process ends."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from training_pro.core.errors import BusyError, SavingError
from training_pro.records.folder import hold_run_lock, is_in_progress
from training_pro.tests.conftest import ROOT
from training_pro.tests.fakes import make_folders


def test_it_is_held_only_inside(tmp_path):
    folders = make_folders(tmp_path)
    assert not is_in_progress("a", folders)
    with hold_run_lock("a", folders):
        assert is_in_progress("a", folders)
        assert is_in_progress("a", folders)
        assert not is_in_progress("b", folders)
        with (
            pytest.raises(BusyError, match=r"'a' is being trained\. Stop the run first"),
            hold_run_lock("a", folders),
        ):
            pass
        assert is_in_progress("a", folders)
    assert not is_in_progress("a", folders)
    assert not list((folders.user_data / "training").glob("*.lock"))


def test_it_is_released_after_an_error(tmp_path):
    folders = make_folders(tmp_path)
    with pytest.raises(ZeroDivisionError), hold_run_lock("a", folders):
        raise ZeroDivisionError
    assert not is_in_progress("a", folders)


def test_another_process_holds_it_until_it_dies(tmp_path):
    folders = make_folders(tmp_path)
    code = f"""
        import importlib.util, sys, time
        spec = importlib.util.spec_from_file_location("training_pro", {str(ROOT / "script.py")!r})
        sys.modules["training_pro"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        from training_pro.hosts.standalone import standalone_folders
        from training_pro.records.folder.run_lock import hold_run_lock
        with hold_run_lock("a", standalone_folders(__import__("pathlib").Path({str(folders.user_data)!r}))):
            print("held", flush=True)
            time.sleep(60)
    """
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        assert is_in_progress("a", folders)
    finally:
        other.kill()
        other.wait()
    assert not is_in_progress("a", folders)


def test_of_several_processes_only_the_first_holds_it(tmp_path, monkeypatch):
    folders = make_folders(tmp_path)
    with hold_run_lock("a", folders):
        monkeypatch.setenv("RANK", "1")
        with hold_run_lock("a", folders):
            pass
    assert not is_in_progress("a", folders)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    folders = make_folders(tmp_path)
    monkeypatch.setattr(Path, "open", read_only)
    raises = pytest.raises(SavingError, match=r"Can't write to .*training: the folder is read-only\.")
    with raises, hold_run_lock("a", folders):
        pass
