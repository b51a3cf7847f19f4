"""`runs` as the user meets it: what is listed, what goes and comes back, and a sentence for a wrong name."""

from __future__ import annotations

import json

import pytest
from training_pro.commands.main import main
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, write_files


@pytest.fixture
def loras(tmp_path):
    folder = make_folders(tmp_path).loras  # the same places as a working folder's: tmp_path/loras
    write_files(folder, "story", FINISHED)
    write_files(folder, "night", CUT_OFF)
    return folder


@pytest.fixture
def runs(loras, capsys):
    def call(*words):
        code = main(["runs", *words, "--user-data", str(loras.parent)])
        out, err = capsys.readouterr()
        assert err.splitlines()[0].startswith("Working folder: ")
        return code, out, "\n".join(err.splitlines()[1:])

    return call


def test_all_of_them_in_a_table_and_as_json(runs):
    code, out, err = runs()
    assert (code, err) == (0, "")
    head, night, story, total = out.splitlines()
    assert head.split() == ["name", "status", "when", "model", "steps", "loss", "checkpoints", "size"]
    assert night.split()[:3] == ["night", "cut", "off"] and night.split()[5:8] == ["toy-7B", "5", "2"]  # no loss
    assert "8 of 8" in story and total.startswith("2 in total, ")
    found = json.loads(runs("--json")[1])
    assert [one["name"] for one in found["loras"]] == ["night", "story"] and found["trash"] == []
    assert found["loras"][1]["parts"][3]["kind"] == "earlier"
    assert [one["name"] for one in json.loads(runs("night", "--json")[1])["loras"]] == ["night"]


def test_one_with_its_parts_and_note(runs):
    out = runs("story")[1]
    assert "8 of 8 steps, loss 1.7500" in out
    assert "  checkpoint-4-epoch-1  full checkpoint  " in out
    assert "  Backup-2026-11-20  backup of previous contents  " in out
    assert runs("story/checkpoint-6-user", "--note", "the better one")[0] == 0
    assert runs("story")[1].endswith("Note: the better one\n")


def test_deleted_comes_back(runs, loras):
    code, out, err = runs("story", "--delete")
    assert (code, out) == (0, "") and "story is in the trash" in err
    assert [path.name for path in loras.iterdir() if path.name != "trash-np"] == ["night"]
    assert "In the trash: story, " in runs()[1]
    assert json.loads(runs("--json")[1])["trash"][0]["name"] == "story"
    assert runs("story", "--restore") == (0, "", "story is restored.")
    assert runs("story", "--restore")[::2] == (1, "There is no 'story' in the trash. It contains: nothing.")
    checkpoint = r"story\checkpoint-4-epoch-1"  # as Windows puts it between folders
    assert runs(checkpoint, "--delete")[0] == runs(f"{checkpoint}\\", "--restore")[0] == 0
    assert (loras / "story" / "checkpoint-4-epoch-1").is_dir()
    runs("night", "--delete")
    assert runs("--empty-trash")[2].endswith(" freed.")
    assert sorted(path.name for path in loras.iterdir()) == ["story"]


def test_data_made_ready_are_shown_and_cleared(runs, loras):
    kept = loras.parent / "training" / "prepared" / f"{'a' * 64}.arrow"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(2000 * b"x")
    assert "Cached datasets: 2 kB. " in runs()[1]
    assert runs("--clear-prepared")[2].startswith("2 kB freed") and not kept.exists()


def test_a_checkpoint_is_slimmed_or_made_a_lora(runs, loras):
    assert "early is now a separate LoRA" in runs("story/checkpoint-4-epoch-1", "--as", "early")[2]
    code, _, err = runs("story/checkpoint-6-user", "--as", "early")
    assert (code, err) == (1, "Name: 'early' already exists. Choose another name.")
    assert "checkpoint-4-epoch-1: " in runs("story", "--slim")[2]
    assert (loras / "story/checkpoint-6-user/optimizer.pt").exists()
    assert "checkpoint-6-user: " in runs("story/checkpoint-6-user", "--slim")[2]
    assert "  checkpoint-6-user  the LoRA only  " in runs("story")[1]
    assert "There is no checkpoint to make smaller." in runs("story", "--slim")[2]


@pytest.mark.parametrize("act", [("--delete",), ("--slim",), ("--as", "b"), ("--note", "n"), ()])
def test_a_name_that_is_not_there(runs, act):
    code, out, err = runs("stroy", *act)
    assert (code, out) == (1, "")
    assert "There is no LoRA 'stroy'" in err and "Did you mean 'story'?" in err
