"""Checkpoints without a run: errors of the disk, what completes a checkpoint, what a resume refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from safetensors import SafetensorError
from training_pro.core.errors import SavingError
from training_pro.engine.plan import DATA_KEY
from training_pro.engine.saving import RunState, checkpoints, finalize_checkpoint, is_write_error, load_run_state
from training_pro.records.folder import PARAMETERS, STATE, RunFolder
from training_pro.records.folder.filenames import BACKUP_FOLDER
from training_pro.settings.definitions import TrainingSettings

TRAINER_RECORD = {
    "global_step": 3, "max_steps": 9, "num_train_epochs": 1.0, "epoch": 0.5, "log_history": [],
    "stateful_callbacks": {},
}  # fmt: skip


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
    (written / "trainer_state.json").write_text(json.dumps(TRAINER_RECORD), encoding="utf-8")
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


def test_a_checkpoint_is_flushed_and_then_renamed(folder, monkeypatch):
    flushed = []
    monkeypatch.setattr(
        checkpoints, "flush_to_disk", lambda path: flushed.append(sorted(p.name for p in path.iterdir()))
    )
    path = finalize_checkpoint(folder, "", RunState(step=3, smoothed=1.5))
    assert flushed == [[STATE, "trainer_state.json"]]
    assert path == folder.checkpoint(3, "") and sorted(p.name for p in path.iterdir()) == flushed[0]
    assert not (folder.partial_folder / "checkpoint-3").exists()
    assert (load_run_state(path).step, load_run_state(path).smoothed) == (3, 1.5)


def test_backups_are_in_a_folder_of_their_own(folder):
    paths = []
    for step in (3, 6):
        (folder.partial_folder / f"checkpoint-{step}").mkdir(exist_ok=True)
        paths.append(finalize_checkpoint(folder, BACKUP_FOLDER, RunState(step=step)))
    assert [path.relative_to(folder.path).parts for path in paths] == [
        (BACKUP_FOLDER, "checkpoint-3"), (BACKUP_FOLDER, "checkpoint-6"),
    ]  # fmt: skip


def test_one_checkpoint_of_a_step_remains(folder):
    earlier = folder.checkpoint(3, "loss")
    earlier.mkdir(parents=True)
    (earlier / "trainer_state.json").write_text("{}", encoding="utf-8")
    path = finalize_checkpoint(folder, "", RunState(step=3))
    assert [p for p in folder.path.iterdir() if p.name.startswith("checkpoint-")] == [path]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (STATE, None, "is missing"),
        ("trainer_state.json", None, "is missing"),
        (STATE, '{"step": -1}', "step"),
        (STATE, '{"step": 3, "steering": {"asked": 7}}', "steering"),
        ("trainer_state.json", json.dumps({**TRAINER_RECORD, "max_steps": "nine"}), "max_steps"),
    ],
)
def test_a_damaged_state_is_refused_with_its_reason(folder, name, content, reason):
    path = finalize_checkpoint(folder, "", RunState(step=3))
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_text(content, encoding="utf-8")
    with pytest.raises(SavingError, match=reason) as error:
        load_run_state(path)
    assert str(path) in str(error.value) and "Choose another checkpoint." in str(error.value)


def test_what_has_changed_is_named_with_both_values(folder):
    folder.path.mkdir(exist_ok=True)
    (folder.path / PARAMETERS).write_text(
        json.dumps({"rank": 8, "data": ["a.txt"], "name": "b"}), encoding="utf-8"
    )
    run = FakeRun(folder, {"rank": 16, "alpha": TrainingSettings().lora.alpha, DATA_KEY: "new"})
    state = RunState(step=3, unchangeable={DATA_KEY: "old"})
    with pytest.raises(SavingError) as error:
        checkpoints.refuse_changes(state, run, folder.checkpoint(3, ""))
    assert "checkpoint-3, because something has changed: rank (was 8 and is now 16)" in str(error.value)
    assert "was ['a.txt'] and is now []" in str(error.value) and "alpha" not in str(error.value)
    assert "Name was" not in str(error.value)


def test_changed_files_are_named_if_no_setting_is_different(folder):
    run = FakeRun(folder, {DATA_KEY: "new"})
    with pytest.raises(SavingError, match="the files, or how Training PRO prepares them, have changed"):
        checkpoints.refuse_changes(RunState(unchangeable={DATA_KEY: "old"}), run, folder.path)
    checkpoints.refuse_changes(RunState(unchangeable={DATA_KEY: "new"}), run, folder.path)
