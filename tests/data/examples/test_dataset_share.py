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


def pick(*counts, percent, name="a", seed=1):
    """Which examples of sources with so many examples are taken."""
    return pick_examples([range(count) for count in counts], DatasetShare(name, percent), seed)


@pytest.mark.parametrize(
    ("text", "name", "percent"),
    [
        ("a.txt", "a.txt", 100),
        ("a.txt:50", "a.txt", 50),
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
        assert len(picked) == max(1, round(count * percent / 100 + 1e-9))
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
