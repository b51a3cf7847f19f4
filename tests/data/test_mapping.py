"""The map of a dataset: planted clusters are found, what is odd is marked, and a share is written."""

from __future__ import annotations

import json

import numpy as np
import pytest
from training_pro.core.errors import DataError, SavingError
from training_pro.data.workshop import Dataset, mapping

WORDS = {"kitchen": "onion soup", "sea": "harbor tide", "court": "judge trial"}
SIZES = {"kitchen": 60, "sea": 40, "court": 30}


@pytest.fixture
def drawn(tmp_path):
    """A map of rows in three clouds, the last of which repeats the first but for a word; one lies apart."""
    rng = np.random.default_rng(0)
    rows = [(topic, number) for topic, size in SIZES.items() for number in range(size)]
    texts = [
        f"The {WORDS[topic]} number {number} of the day: "
        + " ".join(f"{topic}{number}{letter}" for letter in "abcdef")
        for topic, number in rows
    ]
    texts[-1] = texts[0].replace("kitchen0f", "and")
    centers = dict(zip(WORDS, rng.normal(size=(3, 40), scale=1.5), strict=True))
    vectors = np.array([centers[topic] for topic, _ in rows]) + rng.normal(size=(len(rows), 40))
    vectors[:, 0] *= 1000  # a feature that would be all that counts
    vectors[-1], vectors[70] = vectors[0], vectors[70] * 6  # a copy but for a word, and one far away
    path = tmp_path / "rows.map.jsonl"
    mapping.write_map([(text, {"text": text, "n": 1.5}) for text in texts], vectors, path)
    return mapping.read_map(path)


def test_planted_clusters_are_found_by_size_and_named_by_their_words(drawn):
    assert [count for _, count in drawn.clusters.values()] == [61, 40, 29]
    for (name, _), topic in zip(drawn.clusters.values(), WORDS, strict=True):
        assert set(WORDS[topic].split()) <= set(name.split(", "))
    rows = drawn.rows
    assert rows[-1]["like"] == 0 and [row["like"] for row in rows[:-1]] == [None] * 129
    assert rows[70]["outlier"] and sum(row["outlier"] for row in rows) <= 4
    assert "nearly the same as an earlier one: 1" in list(drawn.lines())


def test_a_share_of_each_cluster_is_written_as_its_rows_were_and_nothing_over_a_file(drawn, tmp_path):
    out = tmp_path / "new.jsonl"
    result = mapping.keep_shares(drawn, mapping.parse_shares(["1=.5", "3=0"]), 42, out)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert result.kept == len(written) == round(61 / 2) + 40 and written[0]["n"] == 1.5
    order = [row["row"] for row in drawn.rows]
    assert [order.index(row) for row in written] == sorted(order.index(row) for row in written)
    with pytest.raises(SavingError, match="exists already"):
        mapping.keep_shares(drawn, {}, 42, out)
    for shares, name, sentence in (
        ({9: 1.0}, "a.jsonl", "no cluster 9. Its clusters are 1, 2, 3"),
        ({}, "a.csv", "can be written as .jsonl"),
        (dict.fromkeys((1, 2, 3), 0.0), "a.jsonl", "Nothing is left"),
    ):
        with pytest.raises(DataError, match=sentence):
            mapping.keep_shares(drawn, shares, 42, tmp_path / name)
    for word in ("2", "2=1.5", "x=1", "2=-1", "2=nan"):
        with pytest.raises(DataError, match="is not a share of a cluster"):
            mapping.parse_shares([word])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.jsonl", "rows.map.jsonl"]


@pytest.mark.parametrize("line", ["{", "[]", '{"cluster": 1}', '{"x": NaN}', "[" * 100_000, "\udce9"])
def test_a_line_that_is_no_row_of_a_map_is_named(drawn, tmp_path, line):
    path = tmp_path / "rows.map.jsonl"
    with path.open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(DataError, match=r"rows.map.jsonl can't be read: line \d+ is no row of a map"):
        mapping.read_map(path)


def test_rows_come_whole_texts_as_passages_and_equal_rows_are_one_cluster_or_more(tmp_path):
    rows = [{"instruction": f"Say {n}.", "output": "Yes. " * 500} for n in range(20)]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a" / "text.txt").write_text("The lamp was lit, and the ferry came late that evening. " * 100)
    read = mapping.read_rows(Dataset(tmp_path / "a"))
    assert [columns for _, columns in read[-20:]] == rows
    assert all(columns == {"text": words} for words, columns in read[:-20]) and len(read) > 22
    mapping.write_map(read, np.ones((len(read), 8)), tmp_path / "same.map.jsonl")
    assert len(mapping.read_map(tmp_path / "same.map.jsonl").rows) == len(read)
    (tmp_path / "few.jsonl").write_text(json.dumps(rows[0]))
    with pytest.raises(DataError, match=r"few.jsonl has 1 rows or passages. A map needs 20"):
        mapping.read_rows(Dataset(tmp_path / "few.jsonl"))
