"""Uploaded files get safe, free names; suggested names for LoRAs; and what the preview says of chosen data."""

from __future__ import annotations

from html import unescape

import pytest
from training_pro.core.errors import DataError
from training_pro.core.host import ModelStatus
from training_pro.core.jobs import Session
from training_pro.data import dataset_index
from training_pro.interface.base import PageContext
from training_pro.interface.train import TrainTab, data_menu
from training_pro.settings import name_rules
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.interface.visit import open_tab


@pytest.fixture
def context(tmp_path):
    return PageContext(FakeHost(folders=make_folders(tmp_path)), None, Session())


@pytest.fixture
def add(context, tmp_path):
    """Upload files of these texts; return the message and the datasets that are then chosen."""

    def add(chosen=(), **texts):
        folder = tmp_path / "uploaded"
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
        entries = list(chosen)
        return data_menu.add_files(context.host.folders, [str(folder / name) for name in texts], entries), entries

    return add


def test_uploaded_files_get_safe_names():
    for name, safe in (
        ("My: odd (name).txt", "My_ odd (name).txt"),
        ("..txt", "text.txt"),
        ("\u00e4 b?.md", "\u00e4 b_.md"),
        ("x" * 200 + ".txt", "x" * 80 + ".txt"),
    ):
        assert data_menu.safe_name(name) == safe


def test_added_files_replace_nothing_and_the_same_bytes_are_not_added_again(context, add):
    """A file that is added twice would be trained on twice."""
    folder = context.host.folders.datasets
    (folder / "story.txt").write_text("the old one")
    assert add(**{"story.txt": "the new one"}) == ("Added: story-2.txt.", ["story-2.txt"])
    assert (folder / "story.txt").read_text() == "the old one"
    same = {"copy of it.txt": "the old one", "story.md": "the old one", "new.txt": "tell"}
    message, chosen = add(["story.txt:50"], **same)
    assert message.count("already exists") == 1 and chosen == ["story.txt:50", "story.md", "new.txt"]
    assert "copy of it.txt already exists as story.txt, so it was selected" in message
    examples = context.host.folders.examples
    examples.mkdir(exist_ok=True)
    (examples / "novel.txt").write_text("once")
    assert add(["novel.txt:50"], **{"two.txt": "two"}) == (
        "Added: two.txt. novel.txt:50 is no longer chosen.", ["two.txt"]
    )  # fmt: skip
    assert add(["novel.txt", "two.txt"], **{"new.txt": "tell"})[1] == ["novel.txt", "two.txt", "new.txt"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "new.txt",
        "story-2.txt",
        "story.md",
        "story.txt",
        "two.txt",
    ]


def test_only_supported_file_types_are_added(context, add):
    names = [f"a{ending}" for ending in dataset_index.DATA_SUFFIXES]
    assert add(**dict.fromkeys(names, "x"))[1] == names
    assert {value for _, value in data_menu.dataset_choices(context)} == set(names)
    with pytest.raises(DataError, match=r"picture\.png can't be used as a dataset\. Choose \.txt, "):
        add(**{"picture.png": "x"})
    with pytest.raises(DataError, match=r"novel\.mobi: convert it to \.epub"):
        add(**{"novel.mobi": "x"})


def test_a_suggested_name_is_a_valid_name_of_a_lora():
    for data, model, name in (
        ("story.txt", "SmolLM2-135M-Instruct", "story-SmolLM2-135M-Instruct"),
        ("book/", "Llama-3.1-8B", "book-Llama-3_1-8B"),
        ("My odd (one).txt", "", "My_odd_one"),
        ("x" * 90 + ".txt", "m", "x" * 50),
    ):
        assert data_menu.suggest_lora_name(data, model) == name and name_rules.name_problem(name) == ""


def test_entries_that_no_menu_lists_stay_as_long_as_their_files_exist(context):
    folder = context.host.folders.datasets / "book"
    folder.mkdir()
    (folder / "1.txt").write_text("x")
    entries = ["book", "book/", "book/1.txt", "book:50", "gone.txt", "book/2.txt", "../book"]
    assert data_menu.existing_entries(entries, context.host.folders) == entries[:4]


@pytest.mark.parametrize("problem", ["", "No model is loaded."])
def test_the_preview_names_files_that_are_gone_or_not_supported(context, problem):
    class Host(FakeHost):
        def model_status(self):
            return ModelStatus(problem=problem)

    folder = context.host.folders.datasets
    page = open_tab(TrainTab, PageContext(Host(folders=context.host.folders), None, Session()))
    gone = unescape(page.press("data", "change", data=["gone.txt:50"])["data-said"])
    assert "Dataset: there is no dataset named 'gone.txt:50' in" in gone and "% of gone.txt" in gone
    assert "not supported" not in page.press("data", "change", data=[])["data-said"]
    (folder / "letters.rtf").write_text("x")
    for data in ([], ["letters.rtf"]):
        said = page.press("data", "change", data=data)["data-said"]
        assert "This file is not supported: letters.rtf (save it as .docx" in said
    upload = folder.parent / "new.txt"
    upload.write_text("It was night.")
    folder.rename(folder.parent / "moved")
    folder.write_text("a file, where the folder should be")
    added = page.press("add", "upload", add=[str(upload)], data=["geese.pdf"])
    assert str(folder) in added["add-said"] and "tp-bad" in added["add-said"]
    assert added["data"]["value"] == ["geese.pdf"]
