"""Files from the browser: safe names, never over another file; and names for LoRAs out of data and model."""

from __future__ import annotations

import pytest
from training_pro.core.errors import DataError
from training_pro.core.jobs.session import Session
from training_pro.data import dataset_index
from training_pro.interface.base.page_context import Joined
from training_pro.interface.train import data_menu
from training_pro.interface.train.data_preview import look
from training_pro.settings.name_rules import name_problem
from training_pro.tests.fakes import FakeHost, made_folders


@pytest.fixture
def joined(tmp_path):
    return Joined(FakeHost(folders=made_folders(tmp_path)), None, Session())


def names_of(joined, folder, *names):
    """What these files are called among the data sets."""
    return [one.name for one in data_menu.take_in(joined.host.folders, [str(folder / name) for name in names])]


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


def test_files_are_taken_in_beside_what_is_there(joined, tmp_path):
    folder = joined.host.folders.datasets
    (folder / "story.txt").write_text("the old one")
    (tmp_path / "story.txt").write_text("the new one")
    assert names_of(joined, tmp_path, "story.txt") == ["story-2.txt"]
    assert (folder / "story.txt").read_text() == "the old one"
    assert (folder / "story-2.txt").read_text() == "the new one"
    assert sorted(p.name for p in folder.iterdir()) == ["story-2.txt", "story.txt"]


def test_the_same_bytes_are_the_same_file(joined, tmp_path):
    """Added twice it would be learned from twice."""
    for name, text in (
        ("story.txt", "told"),
        ("copy of it.txt", "told"),
        ("story.md", "told"),
        ("new.txt", "tell"),
    ):
        (tmp_path / name).write_text(text)
    names_of(joined, tmp_path, "story.txt")
    again = data_menu.take_in(
        joined.host.folders,
        [str(tmp_path / n) for n in ("story.txt", "copy of it.txt", "story.md", "new.txt")],
    )
    assert [one.name for one in again] == ["story.txt", "story.txt", "story.md", "new.txt"]
    assert [one.existed for one in again] == [True, True, False, False]
    assert again[1].words == ("copy of it.txt is there already as story.txt: it is chosen, and not added again.")
    assert sorted(p.name for p in joined.host.folders.datasets.iterdir()) == ["new.txt", "story.md", "story.txt"]
    assert data_menu.chosen_with(["story.txt:50"], again) == ["story.txt:50", "story.md", "new.txt"]


def test_a_file_that_is_too_large_is_refused_with_where_to_put_it(joined, tmp_path, monkeypatch):
    monkeypatch.setattr(data_menu, "LARGEST", 10)
    (tmp_path / "long.txt").write_text("more than ten characters")
    with pytest.raises(DataError, match=r"long\.txt has 24 bytes; at most 10 bytes go through the browser"):
        data_menu.take_in(joined.host.folders, [str(tmp_path / "long.txt")])
    assert list(joined.host.folders.datasets.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "model", "name"),
    [
        ("story.txt", "SmolLM2-135M-Instruct", "story-SmolLM2-135M-Instruct"),
        ("book/", "Llama-3.1-8B", "book-Llama-3_1-8B"),
        ("My odd (one).txt", "", "My_odd_one"),
        ("x" * 90 + ".txt", "m", "x" * 50),
    ],
)
def test_a_name_out_of_data_and_model_is_one_that_a_lora_may_have(data, model, name):
    assert data_menu.name_for(data, model) == name
    assert name_problem(name) == ""


def test_all_kinds_are_taken_in_and_nothing_else(joined, tmp_path):
    names = [f"a{ending}" for ending in dataset_index.KINDS]
    for name in (*names, "picture.png"):
        (tmp_path / name).write_text("x")
    assert names_of(joined, tmp_path, *names) == names
    assert {value for _, value in data_menu.choices(joined)} == set(names)
    with pytest.raises(DataError, match=r"picture\.png cannot be learned from\. Choose \.txt, "):
        data_menu.take_in(joined.host.folders, [str(tmp_path / "picture.png")])


def test_what_is_not_read_is_told_below_the_menu_and_by_add_files(joined, tmp_path):
    folder = joined.host.folders.datasets
    folder.mkdir(parents=True, exist_ok=True)
    assert "Not read" not in look({}, joined).html
    (folder / "letters.rtf").write_text("x")
    assert "Not read: letters.rtf (save it as .docx or .odt, or its text as .txt)." in look({}, joined).html
    assert "Not read: letters.rtf" in look({"data": ["letters.rtf"]}, joined).html
    (tmp_path / "novel.mobi").write_text("x")
    with pytest.raises(DataError, match=r"novel\.mobi: turn it into an \.epub"):
        data_menu.take_in(joined.host.folders, [str(tmp_path / "novel.mobi")])
