"""The datasets that exist, the names that are refused, and the shares of datasets that are used."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from training_pro.core.errors import DataError
from training_pro.data.dataset_index import (
    DatasetEntry,
    DatasetShare,
    absolute_path,
    dataset_files,
    dataset_name_at,
    find_datasets,
    list_datasets,
    locate_dataset,
    parse_share,
)
from training_pro.data.split import pick_examples
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import family, prepare_rows

NAMES = ("chapter 10.txt", "chapter 2.txt", "notes.MD", "rows.jsonl", "table.csv", "picture.png", ".hidden.txt")
LEFT_BEHIND = ("~$ok.docx", "Thumbs.db", "ehthumbs.db", "._ok.docx")  # by Word, Explorer and Finder
SIGN = "put-trainer-datasets-here.txt"


@pytest.fixture
def folders(tmp_path):
    result = make_folders(tmp_path)
    files = [*NAMES, SIGN, f"signs/{SIGN}", "book/part/one.txt", *LEFT_BEHIND, *(f"book/{n}" for n in LEFT_BEHIND)]
    for path in (*(result.datasets / n for n in files), *(result.examples / n for n in ("story.txt", "notes.MD"))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    (result.datasets / "empty").mkdir()
    return result


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder next to the datasets, with a file of the same name as one of these and as an example."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("chapter 2.txt", "story.txt", "mine.txt"):
        (folder / name).write_text("from here")
    monkeypatch.chdir(folder)
    return folder


def test_the_users_own_come_first_in_natural_order_then_the_examples_they_do_not_hide(folders):
    names = ["book/", "chapter 2.txt", "chapter 10.txt", "notes.MD", "rows.jsonl", "table.csv"]
    own = [DatasetEntry(name, folders.datasets / name.rstrip("/")) for name in names]
    story = DatasetEntry("story.txt", folders.examples / "story.txt", example=True)
    assert list_datasets(folders) == [*own, story]
    assert [file.name for file in dataset_files(folders.datasets / "book")] == ["one.txt"]
    shutil.rmtree(folders.datasets)
    assert [data.name for data in list_datasets(folders)] == ["notes.MD", "story.txt"]


def test_names_are_searched_among_the_users_then_among_the_examples(folders):
    datasets = find_datasets(["notes.MD", "story.txt", "book/", "book/part/one.txt:200"], folders)
    own = folders.datasets
    paths = [own / "notes.MD", folders.examples / "story.txt", own / "book", own / "book" / "part" / "one.txt"]
    assert [data.path for data in datasets] == paths
    assert [data.example for data in datasets] == [False, True, False, False]
    assert [data.share.percent for data in datasets] == [100, 100, 100, 200]


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../secret.txt", "book/../../secret.txt", "..\\secret.txt", "C:\\x.txt", "C:x", "."]
)
def test_paths_out_of_the_folder_are_refused(folders, name):
    (folders.user_data / "training" / "secret.txt").write_text("secret")
    with pytest.raises(DataError) as refusal:
        find_datasets([name], folders)
    assert str(refusal.value).startswith(f"Dataset: {name!r} is a path, but a name is needed.")


def test_all_missing_datasets_are_named_at_once_and_one_named_twice_is_refused(folders):
    with pytest.raises(DataError) as refusal:
        find_datasets(["missing.txt", "story.txt", "x" * 256], folders)
    existing = "book/, chapter 2.txt, chapter 10.txt, notes.MD, rows.jsonl, table.csv, story.txt"
    assert str(refusal.value).splitlines() == [
        f"Dataset: there is no dataset named '{name}' in {folders.datasets}. Available: {existing}."
        for name in ("missing.txt", "x" * 256)
    ]
    with pytest.raises(DataError, match=r"'book' is listed more than once. .* To use it twice, write book:200"):
        find_datasets(["book", "notes.MD", "book/"], folders)


def test_a_command_line_argument_is_a_dataset_else_a_path_else_an_example(folders, here):
    own, examples = folders.datasets, folders.examples
    for name, path in (
        ("chapter 2.txt", own / "chapter 2.txt"),
        ("./chapter 2.txt", here / "chapter 2.txt"),
        ("story.txt", here / "story.txt"),
        ("mine.txt", here / "mine.txt"),
        ("book/", own / "book"),
        (str(here / "mine.txt"), here / "mine.txt"),
        ("../here/mine.txt", here / "mine.txt"),
    ):
        assert locate_dataset(name, folders) == path
    (here / "story.txt").unlink()
    assert locate_dataset("story.txt", folders) == examples / "story.txt"
    with pytest.raises(DataError) as error:
        locate_dataset("no.txt", folders)
    assert all(part in str(error.value) for part in (str(own), str(here / "no.txt"), "chapter 10.txt"))


def test_a_run_takes_a_path_into_the_datasets_by_its_name_and_refuses_one_elsewhere(folders, here, monkeypatch):
    own = folders.datasets
    (own / "link.txt").symlink_to(here / "mine.txt")
    assert dataset_name_at("chapter 2.txt:50", folders) == "chapter 2.txt:50"
    assert dataset_name_at(f"{own / 'chapter 10.txt'}:50", folders) == "chapter 10.txt:50"
    assert dataset_name_at(str(own / "link.txt"), folders) == "link.txt"
    assert dataset_name_at(str(folders.examples / "notes.MD"), folders) == "notes.MD"
    monkeypatch.chdir(own / "book")
    assert dataset_name_at("part", folders) == "book/part"
    assert dataset_name_at("../notes.MD", folders) == "notes.MD"
    assert absolute_path("x") == own / "book" / "x"
    with pytest.raises(DataError, match=r"mine\.txt' is at .*, but a run only reads datasets in .*Copy it there"):
        dataset_name_at(str(here / "mine.txt"), folders)
    with pytest.raises(DataError, match="0 is not a valid percentage"):
        dataset_name_at("notes.MD:0", folders)


CHATML = family("ChatML")
ROWS = [{"instruction": f"Say {n}", "output": f"It is {n}."} for n in range(40)]


def pick(*counts, percent, name="a", seed=1):
    """Which examples of sources with so many examples are taken."""
    return pick_examples([range(count) for count in counts], DatasetShare(name, percent), seed)


@pytest.mark.parametrize(
    ("text", "name", "percent"),
    [
        ("a.txt", "a.txt", 100),
        ("book/:12.5", "book/", 12.5),
        ("a.txt: 200 %", "a.txt", 200),
        ("odd:name.txt", "odd:name.txt", 100),
    ],
)
def test_names_with_a_percentage(text, name, percent):
    assert parse_share(text) == DatasetShare(name, percent)


@pytest.mark.parametrize("name", ["a.txt:0", "a.txt:1.2.3", "a.txt:99999"])
def test_an_invalid_percentage_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="Use a number above 0 and at most 10000"):
        parse_share(name)
    with pytest.raises(DataError, match=r"^Dataset: 'a\.txt:"):
        prepare_rows(tmp_path, CHATML, {"a.txt": "One. Two."}, data=[name])
    with pytest.raises(ValueError, match=r"12,5 is not a valid percentage\. Write 12\.5 with a decimal point\."):
        parse_share("notes.md:12,5")


@pytest.mark.parametrize("percent", [1, 30, 60, 75, 99.9, 150, 250, 290])
@pytest.mark.parametrize("count", [1, 7, 40, 1000])
def test_the_share_decides_how_many_are_taken_and_none_twice_before_all(count, percent):
    for seed in range(5):
        (picked,) = pick(count, percent=percent, seed=seed)
        assert len(picked) == max(1, round(count * percent / 100))
        counts = np.bincount(picked, minlength=count)
        assert len(counts) == count and counts.max() - counts.min() <= 1


def test_examples_are_spread_evenly_over_all_sources_and_chosen_by_the_seed_and_the_name():
    (picked,) = pick(1000, percent=10)
    assert [int(n) // 10 for n in picked] == list(range(100))
    assert sum(map(len, pick(1, 1, 98, percent=50))) == 50
    first, repeated, other_seed, other_name = (
        pick(100, percent=30, name=name, seed=seed)[0].tolist()
        for name, seed in (("a", 1), ("a", 1), ("a", 2), ("b", 1))
    )
    assert first == repeated and first != other_seed != other_name != first


def test_a_mixture(tmp_path):
    files = {"rows.jsonl": ROWS, "story.txt": "A short story of a few words. " * 60}

    def mixture(folder, seed):
        return prepare_rows(tmp_path / folder, CHATML, files, data=["rows.jsonl:50", "story.txt:200"], seed=seed)

    data = mixture("a", 5)
    rows, story = data.report.sources
    assert (rows.examples, rows.rows.rows) == (20, 40)
    assert rows.notes[-1] == "50% of this dataset is used: 20 examples."
    assert story.examples == 2 * (story.text.blocks + story.text.overlaps)
    assert data.report.examples == len(data.examples) == rows.examples + story.examples
    assert data.report.trained_tokens == rows.trained_tokens + story.trained_tokens
    assert data.report.text().count("Trained tokens by dataset: rows.jsonl ") == 1
    assert data.examples.source_numbers() == [0] * rows.examples + [1] * story.examples
    assert data.examples.digest() == mixture("b", 5).examples.digest() != mixture("c", 6).examples.digest()
