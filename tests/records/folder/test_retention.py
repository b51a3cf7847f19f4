"""Retention: which older checkpoints of a run are slimmed, and which always stay."""

from __future__ import annotations

from training_pro.records.folder import loras
from training_pro.records.folder.loras import Checkpoint
from training_pro.records.folder.retention import free_disk_space, thin_checkpoints
from training_pro.tests.records.on_disk import checkpoint, write_files


def write_run(tmp_path):
    files = {f"checkpoint-{n}": n for n in (2, 4, 5, 6)} | {f"backup/checkpoint-{n}": n for n in (1, 3, 7)}
    folder = write_files(
        tmp_path, "a", {k: v for name, n in files.items() for k, v in checkpoint(name, n).items()}
    )
    (folder / "checkpoint-2").rename(folder / "checkpoint-2-best")
    return folder


def complete_checkpoints(folder):
    return [c.folder.relative_to(folder).as_posix() for c in loras.resumable_checkpoints(folder)]


def test_a_full_disk_leaves_the_newest_and_the_start(tmp_path):
    folder = write_run(tmp_path)
    free_disk_space(folder, Checkpoint(3, folder / "backup" / "checkpoint-3"))
    assert complete_checkpoints(folder) == ["backup/checkpoint-3", "checkpoint-6", "backup/checkpoint-7"]
    free_disk_space(folder, None)
    assert complete_checkpoints(folder) == ["checkpoint-6", "backup/checkpoint-7"]


def test_checkpoints_before_the_start_are_left_alone_until_the_run_has_ended(tmp_path):
    folder = write_run(tmp_path)
    thin_checkpoints(folder, 1, 6, 4)
    earlier = ["backup/checkpoint-1", "checkpoint-2-best", "backup/checkpoint-3", "checkpoint-4"]
    assert complete_checkpoints(folder) == [*earlier, "checkpoint-5", "checkpoint-6", "backup/checkpoint-7"]
    thin_checkpoints(folder, 1, 6)
    assert complete_checkpoints(folder) == [
        "backup/checkpoint-3",
        "checkpoint-5",
        "checkpoint-6",
        "backup/checkpoint-7",
    ]
    assert loras.has_lora(folder / "checkpoint-2")
