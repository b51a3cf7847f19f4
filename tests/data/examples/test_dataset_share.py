"""Dataset shares: parsing, even spread, choice by the seed, and mixtures."""

from __future__ import annotations

import numpy as np
import pytest
from training_pro.core.errors import DataError
from training_pro.data.dataset_index import DatasetShare, parse_share
from training_pro.data.examples import pick_examples
from training_pro.tests.rowing import family, prepare_rows

CHATML = family("ChatML")
ROWS = [{"instruction": f"Say {n}", "output": f"It is {n}."} for n in range(40)]


class SourceOfLength:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("a.txt", DatasetShare("a.txt", 100)),
        ("a.txt:50", DatasetShare("a.txt", 50)),
        ("book/:12.5", DatasetShare("book/", 12.5)),
        ("a.txt: 200 %", DatasetShare("a.txt", 200)),
        ("odd:name.txt", DatasetShare("odd:name.txt", 100)),
    ],
)
def test_names_with_a_percentage(name, share):
    assert parse_share(name) == share


@pytest.mark.parametrize("name", ["a.txt:0", "a.txt:1.2.3", "a.txt:99999"])
def test_an_invalid_percentage_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="Use a number above 0 and at most 10000"):
        parse_share(name)
    with pytest.raises(DataError, match=r"^Dataset: 'a\.txt:"):
        prepare_rows(tmp_path, CHATML, {"a.txt": "One. Two."}, data=[name])


@pytest.mark.parametrize(("count", "per_cent", "taken"), [(100, 50, 50), (10, 25, 2), (3, 1, 1), (7, 250, 18)])
def test_the_share_decides_how_many_are_taken(count, per_cent, taken):
    (picked,) = pick_examples([SourceOfLength(count)], DatasetShare("a", per_cent), 1)
    assert len(picked) == taken
    counts = np.bincount(picked, minlength=count)
    assert counts.max() - counts.min() <= 1


def test_examples_are_spread_evenly():
    (picked,) = pick_examples([SourceOfLength(1000)], DatasetShare("a", 10), 1)
    assert (np.diff(picked) > 0).all()
    assert [int(n) // 10 for n in picked] == list(range(100))


@pytest.mark.parametrize("per_cent", [1, 30, 40, 60, 75, 90, 99, 99.9, 150, 290])
@pytest.mark.parametrize("count", [1, 2, 7, 40, 1000])
def test_no_example_is_taken_twice_before_all_are_taken(count, per_cent):
    for seed in range(5):
        (picked,) = pick_examples([SourceOfLength(count)], DatasetShare("a", per_cent), seed)
        counts = np.bincount(picked, minlength=count)
        assert len(counts) == count and counts.max() - counts.min() <= 1


def test_examples_are_chosen_by_the_seed_and_the_name():
    first, repeated, other_seed, other_name = (
        pick_examples([SourceOfLength(100)], DatasetShare(name, 30), seed)[0].tolist()
        for name, seed in (("a", 1), ("a", 1), ("a", 2), ("b", 1))
    )
    assert first == repeated
    assert first != other_seed != other_name != first


def test_the_share_is_that_of_all_sources_of_a_dataset():
    picked = pick_examples([SourceOfLength(1), SourceOfLength(1), SourceOfLength(98)], DatasetShare("a", 50), 1)
    assert sum(map(len, picked)) == 50


def test_a_mixture(tmp_path):
    files = {"rows.jsonl": ROWS, "story.txt": "A short story of a few words. " * 60}
    data = prepare_rows(tmp_path, CHATML, files, data=["rows.jsonl:50", "story.txt:200"])
    rows, story = data.report.sources
    assert (rows.examples, rows.rows.rows) == (20, 40)
    assert rows.notes[-1] == "50% of this dataset is used: 20 examples."
    assert story.examples == 2 * (story.text.blocks + story.text.overlaps)
    assert data.report.examples == len(data.examples) == rows.examples + story.examples
    assert data.report.trained_tokens == rows.trained_tokens + story.trained_tokens
    assert data.report.text().count("Trained tokens by dataset: rows.jsonl ") == 1
    assert data.examples.source_numbers() == [0] * rows.examples + [1] * story.examples


def test_the_same_seed_takes_the_same(tmp_path):
    values = {"data": ["rows.jsonl:30"]}
    first, second, other = (
        prepare_rows(tmp_path / str(n), CHATML, {"rows.jsonl": ROWS}, **values, seed=seed).examples.digest()
        for n, seed in enumerate((5, 5, 6))
    )
    assert first == second != other


def test_a_comma_in_a_share_is_refused_with_the_correction():
    with pytest.raises(
        ValueError, match=r"'notes\.md:12,5': 12,5 is not a valid percentage\. Write 12\.5 with a decimal point\."
    ):
        parse_share("notes.md:12,5")
