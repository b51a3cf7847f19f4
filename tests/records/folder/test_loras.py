"""LoRAs and checkpoints on disk: lists, status of their runs, free names, and what is slimmed or removed."""

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.files import folder_size
from training_pro.records.folder import RunFolder, loras
from training_pro.tests.records import on_disk
from training_pro.tests.tiny import read_tree

WEIGHTS, LOG, STATE = "adapter_model.safetensors", "training_log.json", "run_state.json"


def write(root, name, *files, **log):
    """Write a folder with these empty files, and a log if there are values for it."""
    content = dict.fromkeys(files, "") | ({LOG: log} if log else {})
    return on_disk.write_files(root, name, content)


def test_only_what_can_be_loaded_is_listed(tmp_path):
    write(tmp_path, "old", "adapter_model.bin")
    parts = ["old/backup/checkpoint-3", "old/checkpoint-9", "old/checkpoint-10"]
    for path in ("story 10", "story 2", "x-np", *parts):
        write(tmp_path, path, WEIGHTS)
    write(tmp_path, "unfinished/checkpoint-4", STATE)
    (tmp_path / "a file").write_text("")
    assert loras.list_loras(tmp_path) == ["old", "story 2", "story 10"]
    assert loras.list_loadable(tmp_path) == ["old", *parts, "story 2", "story 10"]
    assert loras.list_loras(tmp_path / "not there") == loras.list_loadable(tmp_path / "not there") == []


@pytest.mark.parametrize(
    ("files", "log", "status", "words"),
    [
        ([], {}, "nothing", "a folder"),
        ([WEIGHTS], {}, "made elsewhere", "a LoRA made elsewhere"),
        (["checkpoint-4-user/" + STATE], {}, "cut off", "a run that was interrupted by a crash"),
        ([WEIGHTS], {"ended": "finished"}, "finished", "a finished LoRA"),
        (["model.safetensors"], {"ended": "failed"}, "failed", "the model of a run that failed"),
    ],
)
def test_the_status_of_a_run_and_its_description(tmp_path, files, log, status, words):
    folder = write(tmp_path, "a", *files, **log)
    assert (loras.run_status(folder), loras.describe_folder(folder)) == (status, words)


def test_a_slim_checkpoint_is_only_the_lora(tmp_path):
    files = {
        **on_disk.checkpoint("checkpoint-4", 4),
        "checkpoint-4/rng_state.pth": "r",
        "checkpoint-4/mine.txt": "mine",
    }
    folder = on_disk.write_files(tmp_path, "a", files) / "checkpoint-4"
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert folder_size(folder) == sum(sizes.values())
    assert loras.slim_checkpoint(folder) == sum(sizes[name] for name in (STATE, "optimizer.pt", "rng_state.pth"))
    assert sorted(file.name for file in folder.iterdir()) == ["adapter_config.json", WEIGHTS, "mine.txt"]
    assert loras.checkpoints(tmp_path / "a") == [] and loras.slim_checkpoint(folder) == 0
    other = write(tmp_path, "b/checkpoint-4", STATE)
    with pytest.raises(SavingError, match="has no LoRA"):
        loras.slim_checkpoint(other)
    assert (other / STATE).is_file()


def test_what_a_kill_interrupted_is_finished_and_nothing_else_is_changed(tmp_path):
    """Checkpoints of other programs have no state file of ours."""
    theirs = ("checkpoint-40/adapter_model.bin", "checkpoint-40/optimizer.bin", "checkpoint-80/pytorch_model.bin")
    mine = ("checkpoint-old notes/mine.txt", "story.part")
    files = {**on_disk.checkpoint("checkpoint-2", 2), **dict.fromkeys((*theirs, *mine), "w")}
    run = on_disk.write_files(tmp_path, "a", files)
    before = read_tree(run)
    unfinished = on_disk.checkpoint("checkpoint-6-user", 6)
    unfinished[f"checkpoint-6-user/{STATE}.part"] = unfinished.pop(f"checkpoint-6-user/{STATE}")
    partial = (f".checkpoint-4-epoch-1.part/{WEIGHTS}", "backup/.checkpoint-3.part/optimizer.pt")
    half_removed = (f".backup.part/checkpoint-1/{STATE}", "training_graph.json.part")
    on_disk.write_files(tmp_path, "a", unfinished | dict.fromkeys((*partial, *half_removed), "["))
    RunFolder(run, tmp_path).recover()
    after = read_tree(run)
    assert {path: after[path] for path in before} == before
    added = ["backup/", *(f"checkpoint-6-user/{name}" for name in ("", "adapter_config.json", WEIGHTS))]
    assert sorted(after.keys() - before.keys()) == added


@pytest.fixture
def run(tmp_path):
    files = {}
    for name in ("4", "5", "6", "2-best"):
        files |= on_disk.checkpoint(f"checkpoint-{name}", int(name[0]))
    for step in (1, 3, 7):
        files |= on_disk.checkpoint(f"backup/checkpoint-{step}", step)
    return on_disk.write_files(tmp_path, "a", files)


def complete(run):
    return [found.folder.relative_to(run).as_posix() for found in loras.resumable_checkpoints(run)]


def test_checkpoints_before_the_start_are_left_alone_until_the_run_has_ended(run):
    everything = complete(run)
    loras.thin_checkpoints(run, 1, 6, 4)
    assert complete(run) == everything
    loras.thin_checkpoints(run, 1, 6)
    assert complete(run) == ["backup/checkpoint-3", "checkpoint-5", "checkpoint-6", "backup/checkpoint-7"]
    RunFolder(run, run.parent).remove_backups()
    assert complete(run) == ["checkpoint-5", "checkpoint-6"]
