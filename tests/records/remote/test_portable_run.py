"""A run as a folder for another machine: it trains there to the same bytes, and comes back with its records."""

import shutil

import pytest
from training_pro.commands import main
from training_pro.core.errors import SavingError
from training_pro.core.host import ModelCard
from training_pro.data.dataset_index import find_datasets
from training_pro.hosts.standalone import standalone_folders
from training_pro.records.folder import REPORT, inventory, read_graph
from training_pro.records.remote import PortableRun
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


def portable(place, settings, card=TINY) -> PortableRun:
    datasets = find_datasets((*settings.what.data, *settings.aside.eval_data), place.folders)
    return PortableRun(settings, {dataset.name: dataset.path for dataset in datasets}, card, place.folders)


def flags(workspace: Workspace) -> list[str]:
    return ["--user-data", str(workspace.folders.user_data), "--model", str(workspace.tiny)]


def test_it_trains_elsewhere_to_the_same_bytes_and_comes_back_with_its_records(place, tmp_path):
    place.train(**SETTINGS)
    portable(place, place.settings(**SETTINGS)).write(tmp_path / "out")
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
    place.folders.formats.mkdir(parents=True, exist_ok=True)
    (place.folders.formats / "mine.json").write_text('{"instruction,output": "%instruction% %output%"}', "utf-8")
    portable(place, place.settings(**SETTINGS, format="mine")).write(tmp_path / "out")
    out = tmp_path / "out"
    datasets = ("training/datasets/chapters/one.txt", "training/datasets/mine.txt", "training/formats/mine.json")
    written = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    assert written == ["README.txt", "requirements.txt", "settings.json", *datasets]
    loaded = files.load_settings(tmp_path / "out" / "settings.json").values
    assert training_settings(loaded) == place.settings(**SETTINGS, format="mine")
    readme = (tmp_path / "out" / "README.txt").read_text("utf-8")
    assert "train FOLDER/settings.json --user-data FOLDER --model tiny" in readme and "loras/a" in readme
    torch_line = (tmp_path / "out" / "requirements.txt").read_text("utf-8").splitlines()[0]
    assert torch_line.startswith("torch==") and "+" not in torch_line


def test_a_folder_that_exists_or_can_not_be_written_is_refused_and_a_format_outside_is_not_copied(place, tmp_path):
    run = portable(place, place.settings(**SETTINGS))
    (tmp_path / "out").mkdir()
    (tmp_path / "closed").touch()
    for out, words in (("out", "already exists"), ("closed/out", "can't be written")):
        with pytest.raises(SavingError, match=words):
            run.write(tmp_path / out)
    outside = portable(place, place.settings(**{**SETTINGS, "format": "../x"}))
    outside.write(tmp_path / "new")
    assert not list((tmp_path / "new").rglob("x.json"))


def test_the_command_writes_the_folder(place, tmp_path, capsys):
    words = ["export", *flags(place), "--out", str(tmp_path / "out"), "--data", "mine.txt", "--name", "a"]
    for code, said in ((0, "README.txt"), (1, "already exists")):
        assert main.main(words) == code
        assert said in capsys.readouterr().err
    assert (tmp_path / "out" / "settings.json").is_file()


def test_the_other_machine_loads_the_model_in_the_same_way(place, tmp_path):
    card = ModelCard("tiny", {}, None, "4bit", tokenizer_name="/some/where/its tokenizer", max_memory="20GB")
    portable(place, place.settings(**SETTINGS), card).write(tmp_path / "out")
    readme = (tmp_path / "out" / "README.txt").read_text("utf-8")
    assert readme.count('--model tiny --tokenizer "its tokenizer" --load 4bit\n') == 3 and "20GB" not in readme
    assert "Copy the folder of the model 'tiny' and the folder of the tokenizer 'its tokenizer' into" in readme
