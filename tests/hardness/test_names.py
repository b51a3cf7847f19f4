"""Hostile names through every field, flag and file that carries names: nothing outside is touched."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

import pytest
from training_pro.commands.main import main
from training_pro.core.errors import TrainingProError
from training_pro.core.jobs import Session
from training_pro.data.dataset_index import find_datasets
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost, standalone_folders
from training_pro.interface.base import Form
from training_pro.records.folder import choose_run_folder, inventory
from training_pro.records.queue import QueueRunner
from training_pro.settings import presets
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.tests import hostile
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, write_files

SAFE = {"name": "new", "data": ["book.txt"]}
OWN_LOCKS = ("queue.json.lock", "queue.damaged.json", "queue.json", "form.json")


@pytest.fixture
def root(tmp_path):
    """A working folder beside a folder to which links lead out of it."""
    made, outside = tmp_path / "user_data", tmp_path / "outside"
    write_files(tmp_path, "outside", {**FINISHED, "secret.txt": "not yours", "mine.json": {"rank": 4}})
    write_files(made / "loras", "story", FINISHED)
    write_files(made / "loras", "night", CUT_OFF)
    write_files(made / "models", "tiny", {"config.json": {"model_type": "none"}})
    for name in ("presets", "formats"):
        write_files(made / "training", name, {"mine.json": {"instruction": "%instruction%"}})
    write_files(made / "training", "datasets", {"book.txt": "Once upon a time.\n"})
    hostile.plant_link(made / "loras", outside)
    values = [*hostile.VALUES, *hostile.NOT_ELSEWHERE, str(outside)]
    for folder in (tmp_path / "a" / "here", made / "loras", made / "models", *(made / "training").iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        assert all(hostile.is_harmless(value, folder, tmp_path) for value in values)
    return made


def names(root):
    outside = root.parent / "outside"
    return [*hostile.NOT_ELSEWHERE, *hostile.hostile_values(outside)]


def tree(root):
    """Hashes of all files beside and inside the working folder, but of those that are written on purpose."""
    state = {}
    for path in root.parent.rglob("*"):
        if path.name not in OWN_LOCKS and "prepared" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else str(path.is_symlink())
            state[str(path.relative_to(root.parent))] = content
    return state


def test_every_field_of_settings(root):
    folders = standalone_folders(root)
    fields = [key for key, setting in SETTINGS.items() if setting.kind in ("text", "names", "choice")]
    before = tree(root)
    assert len(fields) > 20
    for value in names(root):
        for key in fields:
            with suppress(TrainingProError):
                settings = training_settings({**SAFE, key: [value] if key in ("data", "eval_data") else value})
                found = find_datasets((*settings.what.data, *settings.aside.eval_data), folders)
                assert all(entry.path.is_relative_to(folders.datasets) for entry in found)
                run = choose_run_folder(settings, folders, "")
                assert run.path.parent in (folders.loras, folders.models) and not run.path.is_symlink()
    assert tree(root) == before


FLAGS = (
    *("train --name", "train --data", "check --preset", "check --format", "slice", "push --to me/it --yes", "get"),
    *("gguf --model tiny --lora", "merge --model tiny --out merged --lora", "runs --note n"),
    *("runs --delete", "runs story --as"),
    "perplexity --model tiny --data book.txt --lora",
)


@pytest.mark.long
@pytest.mark.parametrize("words", FLAGS)
def test_every_flag_of_every_command(root, words, capsys, monkeypatch):
    """A path is any path on a command line, which is read; what is not there is a sentence."""
    monkeypatch.chdir(root.parent / "a" / "here")  # paths on a command line begin in it
    monkeypatch.setattr("training_pro.downloads.download.download_model", lambda *_: pytest.fail("downloads"))
    before = tree(root)
    command, *flags = words.split()
    model = ["--model", hostile.ABSENT] if command in ("train", "check", "slice") else []
    for value in names(root):
        if "\x00" in value or (command == "get" and not value.startswith((".", "\ud800"))):
            continue  # a command line cannot hold it; a word is the name of a model on the hub
        with suppress(SystemExit):  # a wrong command line
            assert main([command, *model, "--user-data", str(root), *flags, value]) in (0, 1), value
        new = {path for path in tree(root).keys() ^ before.keys() if not path.startswith("user_data/loras/")}
        assert new == set(), value
    assert "Traceback" not in capsys.readouterr().err
    assert {path: tree(root)[path] for path in before} == before


def test_every_file_that_carries_names(root):
    host = StandaloneHost(standalone_folders(root))
    folders = host.folders
    before = tree(root)
    run = {"number": 1, "model": "tiny", "values": {**SAFE, "if_exists": "replace"}}
    for value in names(root):
        queue = {"waiting": [], "begun": [{**run, "name": value}], "done": [], "numbered": 1}
        folders.queue.write_text(json.dumps(queue), encoding="utf-8")
        with suppress(TrainingProError):
            QueueRunner(host, PeftEngine(), Session()).recover()
        folders.form.write_text(json.dumps(dict.fromkeys(SETTINGS, value)), encoding="utf-8")
        Form().updates(presets.load_form(folders.form))
        with suppress(TrainingProError):
            presets.find_preset(value, folders.presets)
        with suppress(TrainingProError):
            presets.delete(folders.presets, value) if value.strip() != "mine" else None
    assert tree(root) == before


def test_a_record_of_a_run_names_no_other_folder(root):
    folders = standalone_folders(root)
    for number, value in enumerate(names(root)):
        folder = folders.loras / f"cut-{number}"
        folder.mkdir()
        action = ("begin", "run", "discard")[number % 3]
        journal = {"action": action, "began_at_step": 0, "backup": value, "initial_lora": True}
        (folder / ".journal.json").write_text(json.dumps(journal), encoding="utf-8")
    kept = {path: content for path, content in tree(root).items() if "cut-" not in path}
    for run in inventory.find_crashed_runs(folders):
        if run.name.startswith("cut-"):
            inventory.discard_run(run, folders)
    assert tree(root) == kept


@pytest.mark.parametrize(
    "words", ["runs story --note caf\udce9", "train caf\udce9", f"gguf --lora {'x' * 5000}", f"slice {'x' * 5000}"]
)
def test_bytes_that_are_not_text_and_names_longer_than_disks_allow_are_a_sentence(root, words, capsys):
    command, *rest = words.split()
    model = ["--model", "tiny"] if command == "slice" else []
    assert main([command, *model, *rest, "--user-data", str(root)]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said and max(map(len, said.splitlines())) < 1500
    assert "x" in words or "bytes that are not valid UTF-8. Rename the file, or type its name again." in said
