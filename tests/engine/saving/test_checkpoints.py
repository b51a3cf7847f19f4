"""Checkpoints without a run: errors of the disk, what completes a checkpoint, what a resume refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from safetensors import SafetensorError
from training_pro.core.errors import SavingError
from training_pro.engine.plan import DATA_KEY
from training_pro.engine.saving import (
    RunState,
    finalize_checkpoint,
    is_write_error,
    load_run_state,
    refuse_changes,
)
from training_pro.records.folder import PARAMETERS, STATE, RunFolder
from training_pro.settings.definitions import TrainingSettings

TRAINER_STATE = "trainer_state.json"


@dataclass
class FakeRun:
    """The parts of a run that are compared with those of a checkpoint."""

    folder: RunFolder
    fixed: dict[str, Any]
    settings: TrainingSettings = field(default_factory=TrainingSettings)

    def unchangeable(self) -> dict[str, Any]:
        return self.fixed


@pytest.fixture
def folder(tmp_path):
    """The folder of a run whose Trainer has just written the checkpoint of step 3."""
    result = RunFolder(tmp_path / "loras" / "a", tmp_path / "logs")
    written = result.partial_folder / "checkpoint-3"
    written.mkdir(parents=True)
    (written / TRAINER_STATE).write_text('{"global_step": 3}', encoding="utf-8")
    return result


@pytest.mark.parametrize(
    ("error", "about_the_disk"),
    [
        (OSError("No space left on device"), True),
        (SafetensorError("I/O error"), True),
        (RuntimeError("[enforce fail at inline_container.cc:424]"), True),
        (RuntimeError("PytorchStreamWriter failed writing file data/1"), True),
        (RuntimeError("Parent directory /a/b does not exist."), True),
        (RuntimeError("basic_ios::clear: iostream error"), True),
        (RuntimeError("CUDA out of memory"), False),
        (ValueError("a directory"), True),  # torch has no exception type of its own
    ],
)
def test_which_errors_are_about_writing_files(error, about_the_disk):
    assert is_write_error(error) is about_the_disk


def test_a_checkpoint_is_flushed_and_then_moved_to_its_place(folder, monkeypatch):
    """Without an earlier one of the same step; a backup to a folder of its own."""
    flushed = []
    monkeypatch.setattr("os.fsync", lambda file: flushed.append(folder.checkpoint(3, "").exists()))
    earlier = folder.checkpoint(3, "loss")
    earlier.mkdir(parents=True)
    (earlier / TRAINER_STATE).write_text("{}", encoding="utf-8")
    path = finalize_checkpoint(folder, "", RunState(step=3, smoothed=1.5))
    assert path == folder.checkpoint(3, "") and sorted(p.name for p in path.iterdir()) == [STATE, TRAINER_STATE]
    assert flushed[:2] == [False, False]  # both files, before
    assert [p for p in folder.path.iterdir() if p.name.startswith("checkpoint-")] == [path]
    assert not (folder.partial_folder / "checkpoint-3").exists()
    assert (load_run_state(path).step, load_run_state(path).smoothed) == (3, 1.5)
    (folder.partial_folder / "checkpoint-6").mkdir()
    backup = finalize_checkpoint(folder, "backup", RunState(step=6))
    assert backup.relative_to(folder.path).parts == ("backup", "checkpoint-6") and path.is_dir()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (STATE, None, "is missing"),
        (TRAINER_STATE, None, "is missing"),
        (STATE, '{"step": -1}', "step"),
        (STATE, '{"step": 3, "steering": {"asked": 7}}', "steering"),
        (TRAINER_STATE, '{"global_step": ', "damaged"),
    ],
)
def test_a_damaged_state_is_refused_with_its_reason(folder, name, content, reason):
    path = finalize_checkpoint(folder, "", RunState(step=3))
    (path / name).unlink() if content is None else (path / name).write_text(content, encoding="utf-8")
    with pytest.raises(SavingError, match=reason) as error:
        load_run_state(path)
    assert str(path) in str(error.value) and "Choose another checkpoint." in str(error.value)


def test_what_has_changed_is_named_with_both_values_or_the_files(folder):
    folder.path.mkdir(exist_ok=True)
    earlier = {"rank": 8, "data": ["a.txt"], "name": "b"}
    (folder.path / PARAMETERS).write_text(json.dumps(earlier), encoding="utf-8")
    run = FakeRun(folder, {"rank": 16, "alpha": TrainingSettings().lora.alpha, DATA_KEY: "new"})
    state = RunState(step=3, unchangeable={DATA_KEY: "old"})
    with pytest.raises(SavingError) as error:
        refuse_changes(state, run, folder.checkpoint(3, ""))
    assert "checkpoint-3, because something has changed: rank (was 8 and is now 16)" in str(error.value)
    assert "was ['a.txt'] and is now []" in str(error.value)
    assert "alpha" not in str(error.value) and "Name was" not in str(error.value)
    (folder.path / PARAMETERS).unlink()
    with pytest.raises(SavingError, match="the files, or how Training PRO prepares them, have changed"):
        refuse_changes(state, FakeRun(folder, {DATA_KEY: "new"}), folder.path)
    refuse_changes(state, FakeRun(folder, {DATA_KEY: "old"}), folder.path)
