"""The datasets that exist, the user's and the project's, and the names that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_pro.core.errors import DataError
from training_pro.data.dataset_index import (
    WHOLE_DATASET,
    DatasetEntry,
    absolute_path,
    dataset_files,
    dataset_name_at,
    find_datasets,
    list_datasets,
    locate_dataset,
)
from training_pro.tests.fakes import make_folders


@pytest.fixture
def folders(tmp_path):
    result = make_folders(tmp_path)
    for name in ("chapter 10.txt", "chapter 2.txt", "notes.MD", "rows.jsonl", "table.csv", "picture.png"):
        (result.datasets / name).write_text("text")
    (result.datasets / "put-trainer-datasets-here.txt").write_text("")
    (result.datasets / ".hidden.txt").write_text("")
    (result.datasets / "empty").mkdir()
    (result.datasets / "book" / "part").mkdir(parents=True)
    (result.datasets / "book" / "part" / "one.txt").write_text("text")
    (result.datasets / "signs").mkdir()
    (result.datasets / "signs" / "put-trainer-datasets-here.txt").write_text("")
    (result.examples / "story.txt").write_text("the example's")
    (result.examples / "notes.MD").write_text("the example's")
    return result


def test_the_users_own_come_first_in_natural_order_then_the_examples_they_do_not_hide(folders):
    own, examples = folders.datasets, folders.examples
    assert list_datasets(folders) == [
        DatasetEntry("book/", own / "book"),
        DatasetEntry("chapter 2.txt", own / "chapter 2.txt"),
        DatasetEntry("chapter 10.txt", own / "chapter 10.txt"),
        DatasetEntry("notes.MD", own / "notes.MD"),
        DatasetEntry("rows.jsonl", own / "rows.jsonl"),
        DatasetEntry("table.csv", own / "table.csv"),
        DatasetEntry("story.txt", examples / "story.txt", example=True),
    ]


def test_without_a_folder_only_the_examples_are_listed(folders, tmp_path):
    for path in sorted(folders.datasets.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folders.datasets.rmdir()
    assert [data.name for data in list_datasets(folders)] == ["notes.MD", "story.txt"]


def test_names_are_searched_among_the_users_then_among_the_examples(folders):
    names = ["notes.MD", "story.txt", "book/", "book/part/one.txt"]
    datasets = [replace(data, share=WHOLE_DATASET) for data in find_datasets(names, folders)]
    assert datasets == [
        DatasetEntry("notes.MD", folders.datasets / "notes.MD"),
        DatasetEntry("story.txt", folders.examples / "story.txt", example=True),
        DatasetEntry("book/", folders.datasets / "book"),
        DatasetEntry("book/part/one.txt", folders.datasets / "book" / "part" / "one.txt"),
    ]
    assert find_datasets(["book"], folders)[0].path == find_datasets(["book/"], folders)[0].path


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
def test_paths_out_of_the_folder_are_refused(folders, name):
    (folders.user_data / "training" / "secret.txt").write_text("secret")
    with pytest.raises(DataError) as refusal:
        find_datasets([name], folders)
    assert (
        str(refusal.value) == f"Dataset: {name!r} is a path, but a name is needed. "
        f"Enter the name of a file or folder in {folders.datasets}."
    )


def test_a_dataset_named_twice_is_refused_with_how_to_learn_it_twice(folders):
    with pytest.raises(
        DataError,
        match=(r"'book' is listed more than once. List it only once. To use it twice, write book:200 \(200%\)."),
    ):
        find_datasets(["book", "notes.MD", "book/"], folders)
    assert [data.share.percent for data in find_datasets(["book:200"], folders)] == [200]


def test_all_missing_datasets_are_named_at_once(folders):
    with pytest.raises(DataError) as refusal:
        find_datasets(["missing.txt", "story.txt", "x" * 256], folders)
    existing = "book/, chapter 2.txt, chapter 10.txt, notes.MD, rows.jsonl, table.csv, story.txt"
    assert str(refusal.value).splitlines() == [
        f"Dataset: there is no dataset named 'missing.txt' in {folders.datasets}. Available: {existing}.",
        f"Dataset: there is no dataset named '{'x' * 256}' in {folders.datasets}. Available: {existing}.",
    ]


@pytest.fixture
def current_folder(tmp_path, monkeypatch):
    """A current folder next to the datasets, with a file of the same name as one of these and as an example."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("chapter 2.txt", "story.txt", "mine.txt"):
        (folder / name).write_text("from here")
    monkeypatch.chdir(folder)
    return folder


def test_a_command_line_argument_is_a_dataset_else_a_path_else_an_example(folders, current_folder):
    own, examples = folders.datasets, folders.examples
    names = [
        "chapter 2.txt",
        "./chapter 2.txt",
        "story.txt",
        "mine.txt",
        "book/",
        str(current_folder / "mine.txt"),
    ]
    paths = [locate_dataset(name, folders) for name in names]
    assert paths[:3] == [own / "chapter 2.txt", current_folder / "chapter 2.txt", current_folder / "story.txt"]
    assert paths[3:] == [current_folder / "mine.txt", own / "book", current_folder / "mine.txt"]
    (current_folder / "story.txt").unlink()
    assert locate_dataset("story.txt", folders) == examples / "story.txt"
    assert locate_dataset("../here/mine.txt", folders) == current_folder / "mine.txt"
    with pytest.raises(DataError) as error:
        locate_dataset("no.txt", folders)
    assert str(own) in str(error.value)
    assert str(current_folder / "no.txt") in str(error.value)
    assert "chapter 10.txt" in str(error.value)


def test_a_run_takes_a_path_into_the_datasets_by_its_name_and_refuses_one_elsewhere(
    folders, current_folder, monkeypatch
):
    (folders.datasets / "link.txt").symlink_to(current_folder / "mine.txt")
    assert dataset_name_at("chapter 2.txt:50", folders) == "chapter 2.txt:50"
    assert dataset_name_at(f"{folders.datasets / 'chapter 10.txt'}:50", folders) == "chapter 10.txt:50"
    assert dataset_name_at(str(folders.datasets / "link.txt"), folders) == "link.txt"
    assert dataset_name_at(str(folders.examples / "notes.MD"), folders) == "notes.MD"
    monkeypatch.chdir(folders.datasets / "book")
    assert dataset_name_at("part", folders) == "book/part"
    assert dataset_name_at("../notes.MD", folders) == "notes.MD"
    with pytest.raises(DataError, match=r"mine\.txt' is at .*, but a run only reads datasets in .*Copy it there"):
        dataset_name_at(str(current_folder / "mine.txt"), folders)
    with pytest.raises(DataError, match="0 is not a valid percentage"):
        dataset_name_at("notes.MD:0", folders)
    assert absolute_path("x") == folders.datasets / "book" / "x"


@pytest.mark.parametrize("name", ["~$ok.docx", "Thumbs.db", "ehthumbs.db", "._ok.docx"])
def test_files_that_programs_leave_behind_are_not_listed(folders, name):
    """Files of Word with a document open, of Explorer and of Finder are neither documents nor databases."""
    before = list_datasets(folders)
    for folder in (folders.datasets, folders.datasets / "book"):
        (folder / name).write_bytes(b"\x00\x01\x02")
    assert list_datasets(folders) == before
    assert [file.name for file in dataset_files(folders.datasets / "book")] == ["one.txt"]
