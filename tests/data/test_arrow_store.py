"""Stored data come back bit-equal, within the size limit; anything wrong with them is built again."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from training_pro.core.errors import DataError
from training_pro.core.host import ModelCard
from training_pro.data import arrow_store
from training_pro.data.prepare import prepare
from training_pro.settings.parsing import training_settings
from training_pro.tests.conftest import ROOT
from training_pro.tests.fakes import WordTokenizer, make_folders
from training_pro.tests.rowing import as_json, chat, family

pytest.importorskip("pyarrow")
ROWS = [chat(f"Question {n}?", f"Answer {n} is here.", "And?", "No.", conversation_id=n // 3) for n in range(60)]
BOOK = "\n\n\n".join(
    f"Chapter {n}. " + " ".join(f"In {n} she told story {m} again." for m in range(30)) for n in range(14)
)


@pytest.fixture
def folders(tmp_path):
    result = replace(make_folders(tmp_path), examples=ROOT / "examples")
    (result.datasets / "rows.jsonl").write_text(as_json("a.jsonl", ROWS), encoding="utf-8")
    (result.datasets / "book.txt").write_text(BOOK, encoding="utf-8")
    return result


def prepare_data(folders, name="ChatML", keep=True, **values):
    """The data, and the names of the datasets whose stored version was used."""
    said, tokenizer = [], family(name) if isinstance(name, str) else name
    settings = training_settings({"name": "a", "data": ["rows.jsonl", "book.txt:50"], **values})
    card = ModelCard("toy", {}, getattr(tokenizer, "tokenizer", None), "auto")
    data = prepare(settings, folders, card, tokenizer, lambda text, share: said.append(text), keep=keep)
    return data, [text.split()[-1] for text in said if "Using the cached version" in text]


def all_of(data):
    """The training and validation examples with their places, and the report of Check."""
    splits = [
        [(e.ids.tolist(), e.labels.tolist(), e.text, e.place, e.source.name) for e in split]
        for split in (data.examples, data.validation)
    ]
    neighbors = [split.successors() for split in (data.examples, data.validation)]
    return splits, neighbors, data.examples.digest(), data.plan, data.report, data.report.text()


EXAMPLE_FILES = ["ferry-answers.csv", "ferry-log.db", "ferry-talk.parquet", "ferry-notebook/"]
DEMENTOR = {"chunking": "dementor", "min_chars": 40, "too_long": "split", "cutoff": 32}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"eval_share": 0.2, "cutoff": 64},
        {"data": ["rows.jsonl:30", "book.txt"], **DEMENTOR},
        {"data": ["book.txt"], "eval_data": ["rows.jsonl"], "add_eos": "every_block"},
        {"data": EXAMPLE_FILES},
    ],
)
def test_data_are_bit_equal_with_and_without_the_store(folders, values):
    without, _ = prepare_data(folders, keep=False, **values)
    assert not folders.prepared_data.exists()
    first, cached = prepare_data(folders, **values)
    assert cached == []
    second, cached = prepare_data(folders, **values)
    names = {name.partition(":")[0] for name in values.get("data", ["rows.jsonl", "book.txt"])}
    assert names <= set(cached)
    assert all_of(first) == all_of(without) == all_of(second)
    assert first.examples[0].ids.dtype == second.examples[0].ids.dtype
    assert second.examples[0].ids.flags.writeable == without.examples[0].ids.flags.writeable


class Refusing(WordTokenizer):
    def encode(self, texts):
        raise AssertionError("prepared again")


def test_the_second_start_encodes_nothing(folders):
    data = ["book.txt", "geese.pdf", "fourth-stroke.epub"]
    prepare_data(folders, WordTokenizer(fingerprint="words"), data=data)
    assert prepare_data(folders, Refusing(fingerprint="words"), data=data)[1] == data


@pytest.mark.parametrize(
    ("change", "cached"),
    [
        ({"train_on": "everything"}, ["book.txt"]),
        ({"add_bos": False}, ["book.txt"]),
        ({"too_long": "split"}, ["book.txt"]),
        ({"format": "Q %instruction% A %output%"}, ["book.txt"]),
        ({"hard_cut": "Chapter"}, ["ferry-questions.json"]),
        ({"cutoff": 40}, ["ferry-questions.json"]),
        ({"learning_rate": 1e-3, "epochs": 5, "batch_size": 2, "rank": 4}, ["ferry-questions.json", "book.txt"]),
    ],
)
def test_only_settings_that_matter_are_part_of_the_key(folders, change, cached):
    data = ["ferry-questions.json", "book.txt"]
    prepare_data(folders, data=data)
    second, used = prepare_data(folders, data=data, **change)
    assert used == cached
    assert all_of(second) == all_of(prepare_data(folders, keep=False, data=data, **change)[0])


@pytest.mark.long
def test_another_tokenizer_content_or_list_of_phrases_is_prepared_again(folders):
    prepare_data(folders)
    assert prepare_data(folders, "Llama-3")[1] == []
    (folders.datasets / "rows.jsonl").write_text(as_json("a.jsonl", ROWS[:-1]), encoding="utf-8")
    assert prepare_data(folders)[1] == ["book.txt"]
    folders.refusal_phrases.write_text("never again", encoding="utf-8")
    assert prepare_data(folders)[1] == ["book.txt"]  # its slices; its words are inspected again


def test_a_database_in_use_is_not_taken_from_the_store(folders):
    """Its latest changes are in its write-ahead log, while its own bytes are unchanged."""
    with closing(sqlite3.connect(folders.datasets / "rows.db")) as database:
        database.executescript("PRAGMA journal_mode = wal; CREATE TABLE talk (instruction TEXT, output TEXT)")
        database.executescript("INSERT INTO talk VALUES ('Who?', 'Nobody.'); PRAGMA wal_checkpoint(truncate)")
        assert len(prepare_data(folders, data=["rows.db"])[0].examples) == 1
        database.executescript("INSERT INTO talk VALUES ('When?', 'Never.')")
        with pytest.raises(DataError, match=r"rows\.db is in use: its latest changes are still in rows\.db-wal"):
            prepare_data(folders, data=["rows.db"])
    assert len(prepare_data(folders, data=["rows.db"])[0].examples) == 2


def test_broken_or_foreign_files_are_ignored_and_replaced(folders):
    before, _ = prepare_data(folders)
    files = sorted(folders.prepared_data.glob("*.arrow"))
    intact = [file.read_bytes() for file in files]
    for damage in (
        lambda data: data[: len(data) // 2],
        lambda data: data[: len(data) // 2] + b"\x55" * 64 + data[len(data) // 2 + 64 :],
        lambda data: b"",
        lambda data: intact[0] if data != intact[0] else intact[1],
    ):
        for file, data in zip(files, intact, strict=True):
            file.write_bytes(damage(data))
        assert all_of(prepare_data(folders)[0]) == all_of(before)
        assert [file.read_bytes() for file in files] == intact
    assert len(prepare_data(folders)[1]) == 2 and list(folders.prepared_data.glob(".*")) == []


def test_a_single_changed_byte_is_noticed(tmp_path):
    """The metadata count as much as the arrays; a wrong number in Arrow's own could end the program."""
    store, key = arrow_store.Store(tmp_path), arrow_store.cache_key("a")
    store.save(key, arrow_store.StoreEntry({"ids": np.arange(40, dtype=np.int32)}, {"text": "Nobody came."}))
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    assert store.load(key).metadata == {"text": "Nobody came."}
    for place in range(0, len(data), 3):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert store.load(key) is None


def test_the_oldest_are_removed_and_foreign_files_stay(tmp_path):
    def entry(size):
        return arrow_store.StoreEntry({"ids": np.zeros(size, np.int8)}, {})

    (tmp_path / "notes.txt").write_text("mine")
    store = arrow_store.Store(tmp_path, 10**6)
    for number in range(4):
        store.save(f"a{number}", entry(200_000))
        for path in set(tmp_path.glob("*.arrow")):
            os.utime(path, (path.stat().st_mtime - 1000,) * 2)
    assert store.load("a0") and len(list(tmp_path.iterdir())) == 5
    # a0 was used last
    store.save("b", entry(400_000))
    assert store.load("b") and (tmp_path / "notes.txt").exists()
    assert [bool(store.load(f"a{number}")) for number in range(4)] == [True, False, False, True]


def test_without_pyarrow_or_a_writable_folder_results_are_the_same(folders, monkeypatch):
    expected = all_of(prepare_data(folders, keep=False)[0])
    folders.prepared_data.write_text("a file in the way")
    assert all_of(prepare_data(folders)[0]) == expected
    folders.prepared_data.unlink()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert all_of(prepare_data(folders)[0]) == expected and not folders.prepared_data.exists()
