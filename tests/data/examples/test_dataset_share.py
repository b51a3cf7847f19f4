"""So much of a data set: by name and per cent, spread evenly, by the seed, together with others."""

from __future__ import annotations

import numpy as np
import pytest
from training_pro.core.errors import DataError
from training_pro.data.examples.dataset_share import Share, asked, picks
from training_pro.tests.rowing import family, made

CHATML = family("ChatML")
ROWS = [{"instruction": f"Say {n}", "output": f"It is {n}."} for n in range(40)]


class Counted:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("a.txt", Share("a.txt", 100)),
        ("a.txt:50", Share("a.txt", 50)),
        ("book/:12.5", Share("book/", 12.5)),
        ("a.txt: 200 %", Share("a.txt", 200)),
        ("odd:name.txt", Share("odd:name.txt", 100)),
    ],
)
def test_names_with_a_per_cent(name, share):
    assert asked(name) == share


@pytest.mark.parametrize("name", ["a.txt:0", "a.txt:1.2.3", "a.txt:99999"])
def test_a_per_cent_that_is_none(tmp_path, name):
    with pytest.raises(ValueError, match="Give a number above 0, up to 10000"):
        asked(name)
    with pytest.raises(DataError, match=r"^Data: 'a\.txt:"):
        made(tmp_path, CHATML, {"a.txt": "One. Two."}, data=[name])


@pytest.mark.parametrize(("count", "per_cent", "taken"), [(100, 50, 50), (10, 25, 2), (3, 1, 1), (7, 250, 18)])
def test_so_many_are_taken(count, per_cent, taken):
    (found,) = picks([Counted(count)], Share("a", per_cent), 1)
    assert len(found) == taken
    each = np.bincount(found, minlength=count)
    assert each.max() - each.min() <= 1


def test_they_are_spread_evenly():
    (found,) = picks([Counted(1000)], Share("a", 10), 1)
    assert (np.diff(found) > 0).all()
    assert [int(n) // 10 for n in found] == list(range(100))


def test_they_are_chosen_by_the_seed_and_the_name():
    one, again, other, another = (
        picks([Counted(100)], Share(name, 30), seed)[0].tolist()
        for name, seed in (("a", 1), ("a", 1), ("a", 2), ("b", 1))
    )
    assert one == again
    assert one != other != another != one


def test_the_sources_of_a_data_set_share_it():
    found = picks([Counted(1), Counted(1), Counted(98)], Share("a", 50), 1)
    assert sum(map(len, found)) == 50


def test_a_mixture(tmp_path):
    files = {"rows.jsonl": ROWS, "story.txt": "A short story of a few words. " * 60}
    data = made(tmp_path, CHATML, files, data=["rows.jsonl:50", "story.txt:200"])
    rows, story = data.report.sources
    assert (rows.examples, rows.rows.rows) == (20, 40)
    assert rows.notes[-1] == "50 % of it is used: 20 examples."
    assert story.examples == 2 * (story.text.blocks + story.text.overlaps)
    assert data.report.examples == len(data.examples) == rows.examples + story.examples
    assert data.report.trained_tokens == rows.trained_tokens + story.trained_tokens
    assert data.report.text().count("Mixture, in tokens learned from: rows.jsonl ") == 1
    assert data.examples.source_of_each() == [0] * rows.examples + [1] * story.examples


def test_the_same_seed_takes_the_same(tmp_path):
    values = {"data": ["rows.jsonl:30"]}
    one, two, other = (
        made(tmp_path / str(n), CHATML, {"rows.jsonl": ROWS}, **values, seed=seed).examples.digest()
        for n, seed in enumerate((5, 5, 6))
    )
    assert one == two != other


def test_a_comma_in_a_share_is_told():
    with pytest.raises(ValueError, match=r"'notes\.md:12,5' asks for 12,5 per cent\. Write 12\.5, with a point\."):
        asked("notes.md:12,5")
