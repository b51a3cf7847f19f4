"""A run as a folder for another machine: it trains there to the same bytes, and comes back with its records."""

import shutil

import pytest
from training_pro.commands import main
from training_pro.core.files import write_json
from training_pro.core.host import ModelCard
from training_pro.data.dataset_index import find_datasets
from training_pro.hosts.standalone import standalone_folders
from training_pro.records.folder import REPORT, inventory, read_graph
from training_pro.records.remote import write_portable_run
from training_pro.settings import files
from training_pro.settings.parsing import training_settings
from training_pro.tests.tiny import Workspace

TINY = ModelCard("tiny", {}, None, "auto")
SETTINGS = {"name": "a", "data": ["mine.txt"], "eval_data": ["chapters/"], "max_steps": 3}


@pytest.fixture
def place(place):
    place.write("mine.txt", "The ferry leaves at noon. Nobody is on it. The river is high. " * 30)
    place.write("chapters/one.txt", "A chapter about the tide, which comes back every day. " * 10)
    return place


def write(place, settings, out, card=TINY):
    datasets = find_datasets((*settings.what.data, *settings.aside.eval_data), place.folders)
    write_portable_run(settings, {dataset.name: dataset.path for dataset in datasets}, card, place.folders, out)


def flags(workspace: Workspace) -> list[str]:
    return ["--user-data", str(workspace.folders.user_data), "--model", str(workspace.tiny)]


@pytest.mark.long
def test_it_trains_elsewhere_to_the_same_bytes_and_comes_back_with_its_records(place, tmp_path):
    place.train(**SETTINGS)
    write(place, place.settings(**SETTINGS), tmp_path / "out")
    away = Workspace(standalone_folders(tmp_path / "out"), place.tiny)  # on another machine
    assert main.main(["check", str(tmp_path / "out" / "settings.json"), *flags(away)]) == 0
    assert main.main(["train", str(tmp_path / "out" / "settings.json"), *flags(away)]) == 0
    assert away.weights("a") == place.weights("a")
    shutil.copytree(away.lora("a"), place.folders.loras / "b")
    entry = inventory.read_entry(place.folders.loras / "b", place.folders)
    assert (entry.status, entry.step) == ("finished", 3)
    assert read_graph(entry.folder) and (entry.folder / REPORT).is_file()


def test_the_folder_holds_what_the_run_reads_and_nothing_else(place, tmp_path):
    place.write("other.txt", "Not part of it.")
    write(place, place.settings(**SETTINGS), tmp_path / "out")
    out = tmp_path / "out"
    datasets = ("training/datasets/chapters/one.txt", "training/datasets/mine.txt")
    written = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    assert written == ["README.txt", "requirements.txt", "settings.json", *datasets]
    loaded = files.load_settings(tmp_path / "out" / "settings.json").values
    assert training_settings(loaded) == place.settings(**SETTINGS)
    write_json(place.folders.pairs, {})  # which replies the user switched or dropped
    write(place, place.settings(**SETTINGS, objective="dpo"), tmp_path / "pairs")
    assert (tmp_path / "pairs" / place.folders.pairs.relative_to(place.folders.user_data)).is_file()
    readme = (tmp_path / "out" / "README.txt").read_text("utf-8")
    assert "train FOLDER/settings.json --user-data FOLDER --model tiny" in readme and "loras/a" in readme
    assert "+" not in (tmp_path / "out" / "requirements.txt").read_text("utf-8").splitlines()[0]


def test_a_gguf_model_is_named_by_its_file(place, tmp_path):
    card = ModelCard("m-00001-of-00002", {}, None, "auto", given_name="/models/m-00001-of-00002.gguf")
    write(place, place.settings(**SETTINGS), tmp_path / "out", card)
    readme = (tmp_path / "out" / "README.txt").read_text("utf-8")
    assert f"file '{card.name}.gguf' and its other parts" in readme and f"--model {card.name}.gguf\n" in readme
