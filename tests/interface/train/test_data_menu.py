"""Uploaded files get safe, free names; and suggested names for LoRAs."""

from __future__ import annotations

import pytest
from training_pro.core.errors import DataError
from training_pro.core.host import ModelStatus
from training_pro.core.jobs import Session
from training_pro.data import dataset_index
from training_pro.interface.base import PageContext
from training_pro.interface.train import data_menu
from training_pro.interface.train.data_preview import preview_data
from training_pro.settings.name_rules import name_problem
from training_pro.tests.fakes import FakeHost, make_folders


@pytest.fixture
def context(tmp_path):
    return PageContext(FakeHost(folders=make_folders(tmp_path)), None, Session())


def add_files(context, folder, *names):
    """Add files, and return their names in the datasets folder."""
    return [
        file.name for file in data_menu.add_files(context.host.folders, [str(folder / name) for name in names])
    ]


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("story.txt", "story.txt"),
        ("My: odd (name).txt", "My_ odd (name).txt"),
        ("..txt", "text.txt"),
        ("\u00e4 b?.md", "\u00e4 b_.md"),
        ("x" * 200 + ".txt", "x" * 80 + ".txt"),
    ],
)
def test_safe_names(name, safe):
    assert data_menu.safe_name(name) == safe


def test_added_files_never_replace_existing_ones(context, tmp_path):
    folder = context.host.folders.datasets
    (folder / "story.txt").write_text("the old one")
    (tmp_path / "story.txt").write_text("the new one")
    assert add_files(context, tmp_path, "story.txt") == ["story-2.txt"]
    assert (folder / "story.txt").read_text() == "the old one"
    assert (folder / "story-2.txt").read_text() == "the new one"
    assert sorted(p.name for p in folder.iterdir()) == ["story-2.txt", "story.txt"]


def test_the_same_bytes_are_not_added_again(context, tmp_path):
    """A file that is added twice would be trained on twice."""
    for name, text in (
        ("story.txt", "told"),
        ("copy of it.txt", "told"),
        ("story.md", "told"),
        ("new.txt", "tell"),
    ):
        (tmp_path / name).write_text(text)
    add_files(context, tmp_path, "story.txt")
    again = data_menu.add_files(
        context.host.folders,
        [str(tmp_path / n) for n in ("story.txt", "copy of it.txt", "story.md", "new.txt")],
    )
    assert [file.name for file in again] == ["story.txt", "story.txt", "story.md", "new.txt"]
    assert [file.existed for file in again] == [True, True, False, False]
    assert again[1].message == (
        "copy of it.txt already exists as story.txt, so it was selected instead of being added again."
    )
    assert sorted(p.name for p in context.host.folders.datasets.iterdir()) == ["new.txt", "story.md", "story.txt"]
    assert data_menu.merge_chosen(["story.txt:50"], again) == ["story.txt:50", "story.md", "new.txt"]


def test_a_file_that_is_too_large_is_refused_with_where_to_put_it(context, tmp_path, monkeypatch):
    monkeypatch.setattr(data_menu, "MAX_UPLOAD_BYTES", 10)
    (tmp_path / "long.txt").write_text("more than ten characters")
    with pytest.raises(DataError, match=r"long\.txt is 24 bytes, but an upload can be at most 10 bytes"):
        data_menu.add_files(context.host.folders, [str(tmp_path / "long.txt")])
    assert list(context.host.folders.datasets.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "model", "name"),
    [
        ("story.txt", "SmolLM2-135M-Instruct", "story-SmolLM2-135M-Instruct"),
        ("book/", "Llama-3.1-8B", "book-Llama-3_1-8B"),
        ("My odd (one).txt", "", "My_odd_one"),
        ("x" * 90 + ".txt", "m", "x" * 50),
    ],
)
def test_a_suggested_name_is_a_valid_name_of_a_lora(data, model, name):
    assert data_menu.suggest_lora_name(data, model) == name
    assert name_problem(name) == ""


def test_only_supported_file_types_are_added(context, tmp_path):
    names = [f"a{ending}" for ending in dataset_index.DATA_SUFFIXES]
    for name in (*names, "picture.png"):
        (tmp_path / name).write_text("x")
    assert add_files(context, tmp_path, *names) == names
    assert {value for _, value in data_menu.dataset_choices(context)} == set(names)
    with pytest.raises(DataError, match=r"picture\.png can't be used as a dataset\. Choose \.txt, "):
        data_menu.add_files(context.host.folders, [str(tmp_path / "picture.png")])


@pytest.mark.parametrize("problem", ["", "No model is loaded."])
def test_the_preview_says_that_a_chosen_file_is_gone(context, monkeypatch, problem):
    monkeypatch.setattr(context.host, "model_status", lambda: ModelStatus(problem=problem))
    html = preview_data({"data": ["gone.txt:50"]}, context).html
    assert "Dataset: there is no dataset named &#39;gone.txt:50&#39; in" in html and "% of gone.txt" in html


def test_unsupported_files_are_named_below_the_menu_and_by_add_files(context, tmp_path):
    folder = context.host.folders.datasets
    folder.mkdir(parents=True, exist_ok=True)
    assert "Not supported" not in preview_data({}, context).html
    (folder / "letters.rtf").write_text("x")
    assert (
        "This file is not supported: letters.rtf (save it as .docx or .odt, or save its text as .txt)."
        in preview_data({}, context).html
    )
    assert "This file is not supported: letters.rtf" in preview_data({"data": ["letters.rtf"]}, context).html
    (tmp_path / "novel.mobi").write_text("x")
    with pytest.raises(DataError, match=r"novel\.mobi: convert it to \.epub"):
        data_menu.add_files(context.host.folders, [str(tmp_path / "novel.mobi")])


def test_entries_that_no_menu_lists_stay_as_long_as_their_files_exist(context):
    folder = context.host.folders.datasets / "book"
    folder.mkdir(parents=True)
    (folder / "1.txt").write_text("x")
    entries = ["book", "book/", "book/1.txt", "book:50", "gone.txt", "book/2.txt", "../book"]
    assert data_menu.existing_entries(entries, context.host.folders) == entries[:4]
