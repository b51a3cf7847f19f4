"""Which data sets there are, whose, and which names are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_pro.core.errors import DataError
from training_pro.data.dataset_index import DataSet, files, found, from_here, listed, located, named_at
from training_pro.data.examples.dataset_share import EVERYTHING
from training_pro.tests.fakes import made_folders


@pytest.fixture
def folders(tmp_path):
    made = made_folders(tmp_path)
    for name in ("chapter 10.txt", "chapter 2.txt", "notes.MD", "rows.jsonl", "table.csv", "picture.png"):
        (made.datasets / name).write_text("text")
    (made.datasets / "put-trainer-datasets-here.txt").write_text("")
    (made.datasets / ".hidden.txt").write_text("")
    (made.datasets / "empty").mkdir()
    (made.datasets / "book" / "part").mkdir(parents=True)
    (made.datasets / "book" / "part" / "one.txt").write_text("text")
    (made.datasets / "signs").mkdir()
    (made.datasets / "signs" / "put-trainer-datasets-here.txt").write_text("")
    (made.examples / "story.txt").write_text("the example's")
    (made.examples / "notes.MD").write_text("the example's")
    return made


def test_the_users_own_come_first_in_natural_order_then_the_examples_they_do_not_hide(folders):
    own, examples = folders.datasets, folders.examples
    assert listed(folders) == [
        DataSet("book/", own / "book"),
        DataSet("chapter 2.txt", own / "chapter 2.txt"),
        DataSet("chapter 10.txt", own / "chapter 10.txt"),
        DataSet("notes.MD", own / "notes.MD"),
        DataSet("rows.jsonl", own / "rows.jsonl"),
        DataSet("table.csv", own / "table.csv"),
        DataSet("story.txt", examples / "story.txt", example=True),
    ]


def test_without_a_folder_there_are_the_examples(folders, tmp_path):
    for path in sorted(folders.datasets.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folders.datasets.rmdir()
    assert [data.name for data in listed(folders)] == ["notes.MD", "story.txt"]


def test_names_are_looked_for_among_the_users_then_among_the_examples(folders):
    names = ["notes.MD", "story.txt", "book/", "book/part/one.txt"]
    bare = [replace(data, share=EVERYTHING) for data in found(names, folders)]
    assert bare == [
        DataSet("notes.MD", folders.datasets / "notes.MD"),
        DataSet("story.txt", folders.examples / "story.txt", example=True),
        DataSet("book/", folders.datasets / "book"),
        DataSet("book/part/one.txt", folders.datasets / "book" / "part" / "one.txt"),
    ]
    assert found(["book"], folders)[0].path == found(["book/"], folders)[0].path


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../secret.txt",
        "book/../../secret.txt",
        "..\\secret.txt",
        "C:\\secret.txt",
        "C:x",
        ".",
        "./",
        "/",
    ],
)
def test_what_leads_out_of_the_folder_is_refused(folders, name):
    (folders.user_data / "training" / "secret.txt").write_text("secret")
    with pytest.raises(DataError) as refusal:
        found([name], folders)
    assert str(refusal.value) == (
        f"Data: {name!r} is a path. Give the name of a file or folder in {folders.datasets}."
    )


def test_what_is_named_twice_is_refused_with_how_to_learn_it_twice(folders):
    with pytest.raises(DataError, match=r"'book' is named twice. Name it once; book:200 learns from it twice."):
        found(["book", "notes.MD", "book/"], folders)
    assert [one.share.per_cent for one in found(["book:200"], folders)] == [200]


def test_all_that_cannot_be_had_is_named_at_once(folders):
    with pytest.raises(DataError) as refusal:
        found(["missing.txt", "story.txt", "x" * 300], folders)
    there = "book/, chapter 2.txt, chapter 10.txt, notes.MD, rows.jsonl, table.csv, story.txt"
    assert str(refusal.value).splitlines() == [
        f"Data: there is no 'missing.txt' in {folders.datasets}. There is: {there}.",
        f"Data: there is no '{'x' * 300}' in {folders.datasets}. There is: {there}.",
    ]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder beside the data sets, with a file of the same name as one of these, and as an example."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("chapter 2.txt", "story.txt", "mine.txt"):
        (folder / name).write_text("from here")
    monkeypatch.chdir(folder)
    return folder


def test_what_a_command_line_names_is_a_data_set_else_a_path_else_an_example(folders, here):
    own, examples = folders.datasets, folders.examples
    asked = ["chapter 2.txt", "./chapter 2.txt", "story.txt", "mine.txt", "book/", str(here / "mine.txt")]
    found = [located(name, folders) for name in asked]
    assert found[:3] == [own / "chapter 2.txt", here / "chapter 2.txt", here / "story.txt"]
    assert found[3:] == [here / "mine.txt", own / "book", here / "mine.txt"]
    (here / "story.txt").unlink()
    assert located("story.txt", folders) == examples / "story.txt"
    assert located("../here/mine.txt", folders) == here / "mine.txt"
    with pytest.raises(DataError) as error:
        located("no.txt", folders)
    assert str(own) in str(error.value)
    assert str(here / "no.txt") in str(error.value)
    assert "chapter 10.txt" in str(error.value)


def test_a_run_takes_a_path_into_the_data_sets_by_its_name_and_refuses_one_elsewhere(folders, here, monkeypatch):
    (folders.datasets / "link.txt").symlink_to(here / "mine.txt")
    assert named_at("chapter 2.txt:50", folders) == "chapter 2.txt:50"
    assert named_at(f"{folders.datasets / 'chapter 10.txt'}:50", folders) == "chapter 10.txt:50"
    assert named_at(str(folders.datasets / "link.txt"), folders) == "link.txt"
    assert named_at(str(folders.examples / "notes.MD"), folders) == "notes.MD"
    monkeypatch.chdir(folders.datasets / "book")
    assert named_at("part", folders) == "book/part"
    assert named_at("../notes.MD", folders) == "notes.MD"
    with pytest.raises(DataError, match=r"mine\.txt' is .*, and a run learns from what lies in .*Put it there"):
        named_at(str(here / "mine.txt"), folders)
    with pytest.raises(DataError, match="asks for 0 per cent"):
        named_at("notes.MD:0", folders)
    assert from_here("x") == folders.datasets / "book" / "x"


@pytest.mark.parametrize("beside", ["~$ok.docx", "Thumbs.db", "ehthumbs.db", "._ok.docx"])
def test_what_programs_put_beside_a_users_own_is_not_seen(folders, beside):
    """Word while a document is open, the Explorer, the Finder: none of it is a document or a database."""
    before = listed(folders)
    for folder in (folders.datasets, folders.datasets / "book"):
        (folder / beside).write_bytes(b"\x00\x01\x02")
    assert listed(folders) == before
    assert [file.name for file in files(folders.datasets / "book")] == ["one.txt"]
