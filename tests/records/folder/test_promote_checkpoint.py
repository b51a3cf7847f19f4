"""A checkpoint copied to a LoRA of its own, with its settings and log."""

import json

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.jobs import RecallFigures, RecallMeasured
from training_pro.records.folder import copy_as_lora, inventory, loras, read_log, run_files
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, LOG, SAMPLE, write_files
from training_pro.tests.tiny import read_tree


@pytest.fixture
def folders(tmp_path):
    folders = make_folders(tmp_path)
    write_files(folders.loras, "story", FINISHED)
    write_files(folders.loras, "night", CUT_OFF)
    return folders


@pytest.fixture
def copy(folders):
    return lambda part, name: copy_as_lora(folders.loras / part, name, folders)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_with_its_parameters_and_its_log(folders, copy):
    before = read_tree(folders.loras / "story")
    new = copy("story/checkpoint-4-epoch-1", "early")
    assert read_tree(folders.loras / "story") == before
    assert loras.list_loras(folders.loras) == ["early", "story"]
    assert read(new / "training_parameters.json") == {"name": "early", "rank": 4}
    assert read(new / "training_prompt.json") == {"kind": "text"}
    log = read(new / "training_log.json")
    assert (log["base_model_name"], log["current_steps"], log["loss"]) == ("toy", 4, 2.5)
    assert log["made_from"] == "story/checkpoint-4-epoch-1"
    assert [entry["current_steps"] for entry in read(new / "training_graph.json")] == [1, 2, 3, 4]
    assert (new / "samples.jsonl").read_text() == SAMPLE.format(0)
    assert not (new / "optimizer.pt").exists()
    assert inventory.read_entry(new, folders).status == "stopped"
    assert inventory.read_entry(copy("story/checkpoint-8-epoch-2", "last"), folders).status == "finished"


def test_its_log_has_recall_up_to_its_step_and_nothing_of_the_whole_run(folders, copy):
    learned = RecallFigures(9, 0.5, 0, 3, 2.0)
    figures = {"epoch": 1.0, "why": "planned", "learned": learned, "control": None}
    recalls = [RecallMeasured(step=step, **figures).as_log() for step in (0, 4, 8)]
    whole = {"recall": recalls, "verdict": {"text": "By heart."}, "kept_step": 6, "kept_because": "the best"}
    story = write_files(folders.loras, "story", {"training_log.json": {**LOG, **whole}})
    early, last = copy("story/checkpoint-4-epoch-1", "early"), copy("story/checkpoint-8-epoch-2", "last")
    damage = []
    logs = [read_log(folder, damage) for folder in (early, last)]
    assert [[recall.step for recall in log["recall"]] for log in logs] == [[0, 4], [0, 4, 8]] and damage == []
    assert not {"verdict", "kept_step", "kept_because"} & read(early / "training_log.json").keys()
    assert "verdict" in read(last / "training_log.json")
    assert [run_files.trained_steps(read_log(folder)) for folder in (story, early)] == [6, 4]


def test_what_fails_leaves_nothing_partial(folders, copy):
    part = "story/checkpoint-6-user"
    (folders.loras / part / "adapter_model.safetensors").unlink()
    (folders.loras / part / "adapter_model.safetensors").symlink_to("gone")
    before = read_tree(folders.loras)
    names = {"story": "'story' already exists", "a.b": "contains a dot", "new": "."}
    for name, words in names.items():
        with pytest.raises(SavingError, match=words):
            copy(part, name)
        assert read_tree(folders.loras) == before
