"""The inventory: status, steps and size of each LoRA, how names are resolved, and where files may be written."""

import json

import pytest
from training_pro.core.errors import BusyError, SavingError
from training_pro.records.folder import choose_output, hold_run_lock, inventory, is_in_progress
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, lora, write_files


@pytest.fixture
def folders(tmp_path):
    folders = make_folders(tmp_path / "root")
    write_files(folders.loras, "story 10", FINISHED)
    write_files(folders.loras, "story 2", CUT_OFF)
    write_files(folders.loras, "trash-np", {**lora(), "2026-11-21/lora/gone/notes.txt": ""})
    write_files(folders.loras, "pictures", {"a.png": "p"})
    (folders.loras / "story 2" / "samples.jsonl.part").symlink_to(folders.loras / "gone")  # hides no run
    write_files(folders.models, "tiny", {"config.json": {}})
    write_files(tmp_path, "elsewhere", {**lora(), "deep/er/a.txt": ""})
    write_files(tmp_path, "whole", {"config.json": {}, "model.safetensors": ""})
    return folders


def test_each_lora_with_its_parts(folders):
    cut, _ = inventory.list_entries(folders)
    assert [cut.name, cut.status, cut.model, cut.step, cut.loss] == ["story 2", "cut off", "toy-7B", 5, None]
    step = {"event": "step", "step": 6, "epoch": 0.5, "loss": 2.0, "smoothed": 2.25, "learning_rate": 1e-4}
    step |= {"at": 1.0, "steps": 8, "gradient_norm": 1.0, "tokens": 9, "seconds": 3.0}
    write_files(folders.loras, "story 2", {"events.jsonl": f"{json.dumps(step)}\n"})
    cut, done = inventory.list_entries(folders)
    assert [cut.step, cut.steps, cut.loss] == [6, 8, 2.25]
    assert [done.name, done.status, done.model, done.step, done.steps] == ["story 10", "finished", "toy", 8, 8]
    assert (done.loss, done.note, done.when) == (1.75, "the good one", 1795243200.0)
    kinds = {part.name: (part.kind, part.step) for part in (*done.parts, *cut.parts)}
    assert kinds["checkpoint-6-user"] == ("checkpoint", 6) and kinds["Backup-2026-11-20"] == ("earlier", None)
    assert kinds["checkpoint-2"] == ("LoRA only", 2) and kinds["checkpoint-5"] == ("backup", 5)
    assert json.loads(json.dumps(done.as_json()))["parts"][0]["step"] == 4


def test_a_run_that_goes_on_now_is_in_progress_also_before_its_first_checkpoint(folders):
    (folders.loras / "new").mkdir()
    with hold_run_lock("story 2", folders), hold_run_lock("new", folders):
        found = [(entry.name, entry.status) for entry in inventory.list_entries(folders)]
    assert found == [("new", "in progress"), ("story 2", "in progress"), ("story 10", "finished")]


def test_a_lock_is_held_only_inside_and_by_the_first_of_several_processes_of_a_run(folders, monkeypatch):
    with pytest.raises(ZeroDivisionError), hold_run_lock("a", folders):
        assert is_in_progress("a", folders) and not is_in_progress("b", folders)
        with pytest.raises(BusyError, match=r"'a' is being trained"), hold_run_lock("a", folders):
            pass
        monkeypatch.setenv("RANK", "1")
        with hold_run_lock("a", folders):
            pass
        raise ZeroDivisionError
    assert not is_in_progress("a", folders)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stroy 2", "There is no LoRA 'stroy 2' .* Did you mean 'story 2'"),
        ("story 2/checkpoint-9", "checkpoint-2, checkpoint-4, backup/checkpoint-5"),
        ("story 2/../story 10", "has no checkpoint"),
    ],
)
def test_names_are_resolved_to_folders_and_an_unknown_one_is_an_error(folders, tmp_path, name, words):
    with pytest.raises(SavingError, match=words):
        inventory.find_folder(name, folders)
    backup = folders.loras / "story 2" / "backup" / "checkpoint-5"
    for found in ("story 2/backup/checkpoint-5", "story 2\\backup\\checkpoint-5\\"):
        assert inventory.find_folder(found, folders) == backup
    assert inventory.list_entries(make_folders(tmp_path / "empty")) == []


def test_the_newest_the_best_and_those_saved_by_hand_stay_whole(folders):
    story, cut_off = folders.loras / "story 10", folders.loras / "story 2"
    write_files(folders.loras, "story 10", {"checkpoint-5-best/run_state.json": {}})
    first, backup = story / "checkpoint-4-epoch-1", cut_off / "backup" / "checkpoint-5"
    for chosen, slimmed in ((story, first), (backup, backup)):
        assert inventory.slimmable_checkpoints(chosen) == [slimmed]
    for nothing_to_remove in (story / "Backup-2026-11-20", cut_off / "checkpoint-2"):
        assert inventory.slimmable_checkpoints(nothing_to_remove) == []


@pytest.mark.parametrize(
    "place",
    [
        *("root/loras/story 10", "root/loras/story 10/checkpoint-4-epoch-1/merged", "elsewhere/deep/../merged"),
        *("elsewhere", "whole/merged", "linked/merged", "root/models/tiny/merged"),
        *("root/user/training/datasets/merged", "root/examples/merged", "root/loras/trash-np/merged"),
    ],
)
def test_a_merged_model_is_not_written_into_the_folder_of_another(folders, tmp_path, place):
    (tmp_path / "linked").symlink_to(folders.loras / "story 10", target_is_directory=True)
    with pytest.raises(SavingError, match="Choose a separate folder"):
        choose_output(str(tmp_path / place), folders)


def test_a_new_folder_is_fine_and_the_folder_of_the_lora_itself_for_its_files(folders, tmp_path):
    (tmp_path / "config.json").write_text("{}")  # of another program
    for place in ("root/models/new", "free/deep/new"):
        assert choose_output(str(tmp_path / place), folders) == tmp_path / place
    own = folders.loras / "story 10"
    assert choose_output(str(own / "a.gguf"), folders, own=own) == own / "a.gguf"
