"""Stored data come back bit-equal, within the size limit; anything wrong with them is built again."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_pro.core.errors import DataError
from training_pro.core.host import ModelCard
from training_pro.data import arrow_store, prepare
from training_pro.data.readers import documents
from training_pro.data.rows import row_dataset, text_quality
from training_pro.data.text import slicing
from training_pro.engine.tokenizer import tokenizer as tokenizing
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import as_json, chat, family
from training_pro.tests.test_architecture import imports

pytest.importorskip("pyarrow")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROWS = [chat(f"Question {n}?", f"Answer {n} is here.", "And?", "No.") for n in range(60)] + [
    chat("Question 1?", "Answer 1 is here.", "And?", "No.")
]
BOOK = "\n\n\n".join(
    f"Chapter {n}. " + " ".join(f"In {n} she told story {m} again." for m in range(30)) for n in range(14)
)
RESULTS_IN_THE_KEY = (
    "core/",
    "settings/definitions.py",
    "settings/effects.py",
    "settings/rules.py",
    "settings/setting.py",
    "settings/target_layers.py",
    "schedulers.py",
    "train_utils.py",
)
CACHED_MESSAGE = "Using the cached version"


@pytest.fixture
def folders(tmp_path):
    result = replace(make_folders(tmp_path), examples=EXAMPLES)
    (result.datasets / "rows.jsonl").write_text(as_json("a.jsonl", ROWS), encoding="utf-8")
    (result.datasets / "book.txt").write_text(BOOK, encoding="utf-8")
    return result


def prepare_data(folders, name="ChatML", keep=True, **values):
    messages = []
    tokenizer = family(name)
    settings = training_settings({"name": "a", "data": ["rows.jsonl", "book.txt:50"], **values})
    card = ModelCard("toy", {}, tokenizer.tokenizer, "auto")
    data = prepare.prepare(
        settings, folders, card, tokenizer, lambda text, share: messages.append(text), keep=keep
    )
    return data, [text for text in messages if CACHED_MESSAGE in text]


def test_a_database_in_use_is_not_taken_from_the_store(folders):
    """Its latest changes are in its write-ahead log, while its own bytes are unchanged."""
    with closing(sqlite3.connect(folders.datasets / "rows.db")) as database:
        database.execute("PRAGMA journal_mode = wal")
        database.execute("CREATE TABLE talk (instruction TEXT, output TEXT)")
        database.execute("INSERT INTO talk VALUES ('Who?', 'Nobody.')")
        database.commit()
        database.execute("PRAGMA wal_checkpoint(truncate)")
        assert len(prepare_data(folders, data=["rows.db"])[0].examples) == 1
        database.execute("INSERT INTO talk VALUES ('When?', 'Never.')")
        database.commit()
        with pytest.raises(
            DataError,
            match=(
                r"rows\.db is in use: its latest changes are still in "
                r"rows\.db-wal"
            ),
        ):
            prepare_data(folders, data=["rows.db"])
    assert len(prepare_data(folders, data=["rows.db"])[0].examples) == 2


def all_of(data):
    """The training and validation examples with their places, and the report of Check."""
    splits = [
        [
            (example.ids.tolist(), example.labels.tolist(), example.text, example.place, example.source.name)
            for example in split
        ]
        for split in (data.examples, data.validation)
    ]
    neighbours = [split.successors() for split in (data.examples, data.validation)]
    return splits, neighbours, data.examples.digest(), data.plan, data.report, data.report.text()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"eval_share": 0.2, "cutoff": 64},
        {
            "data": ["rows.jsonl:30", "book.txt"],
            "chunking": "dementor",
            "min_chars": 40,
            "too_long": "split",
            "cutoff": 32,
        },
        {"data": ["book.txt"], "eval_data": ["rows.jsonl"], "add_eos": "every_block"},
        {
            "data": [
                "ferry-answers.csv",
                "ferry-log.db",
                "ferry-talk.parquet",
                "fourth-stroke.epub",
                "ferry-notebook/",
            ]
        },
        {"data": ["ferry-questions.json"], "format": "alpaca-format"},
    ],
)
def test_data_are_bit_equal_with_and_without_the_store(folders, values):
    without, _ = prepare_data(folders, keep=False, **values)
    assert not folders.prepared_data.exists()
    first, cached = prepare_data(folders, **values)
    assert cached == []
    second, cached = prepare_data(folders, **values)
    names = [name.partition(":")[0] for name in (values.get("data") or ["rows.jsonl", "book.txt"])]
    assert all(any(text.endswith(name) for text in cached) for name in names)
    assert all_of(first) == all_of(without) == all_of(second)
    assert first.examples[0].ids.dtype == second.examples[0].ids.dtype
    assert second.examples[0].ids.flags.writeable == without.examples[0].ids.flags.writeable


def test_the_second_start_encodes_nothing(folders, monkeypatch):
    data = ["rows.jsonl", "book.txt", "geese.pdf", "fourth-stroke.epub", "ferry-answers.csv"]
    prepare_data(folders, data=data)

    def refused(*_):
        raise AssertionError("prepared again")

    monkeypatch.setattr(row_dataset, "load_row_dataset", refused)
    monkeypatch.setattr(slicing, "slice_text", refused)
    monkeypatch.setattr(documents, "read_document", refused)
    monkeypatch.setattr(text_quality, "TextInspector", refused)
    assert len(prepare_data(folders, data=data)[1]) == len(data)


@pytest.mark.parametrize(
    "change",
    [
        {"train_on": "everything"},
        {"train_only_after": "Answer"},
        {"system": "Be brief."},
        {"add_bos": False},
        {"format": "Q %instruction% A %output%"},
        {"hard_cut": "Chapter"},
        {"cutoff": 40},
    ],
)
def test_settings_that_matter_are_part_of_the_key(folders, change):
    data = ["ferry-questions.json", "book.txt"]
    prepare_data(folders, data=data)
    second, cached = prepare_data(folders, data=data, **change)
    assert len(cached) < 2
    assert all_of(second) == all_of(prepare_data(folders, keep=False, data=data, **change)[0])


def test_another_tokenizer_or_content_is_prepared_again_and_other_settings_are_not(folders):
    prepare_data(folders)
    assert prepare_data(folders, "Llama-3")[1] == []
    assert len(prepare_data(folders, learning_rate=1e-3, epochs=5, batch_size=2, rank=4)[1]) == 2
    (folders.datasets / "rows.jsonl").write_text(as_json("a.jsonl", ROWS[:-1]), encoding="utf-8")
    assert [text.split()[-1] for text in prepare_data(folders)[1]] == ["book.txt"]
    folders.refusal_phrases.write_text("never again", encoding="utf-8")
    assert [text.split()[-1] for text in prepare_data(folders)[1]] == [
        "book.txt"
    ]  # its slices; its words are inspected again


def imported_files(file):
    """The project files that a file imports."""
    for name, node in imports(file):
        if name.startswith("."):
            candidates = ["/".join([*name[1:].split("."), alias.name]) for alias in node.names]
            yield from (Path(f"{path}.py") for path in (name[1:].replace(".", "/"), *candidates))


def test_every_file_that_affects_examples_is_part_of_the_key():
    hashed = {path.relative_to(arrow_store.ROOT) for path in [*arrow_store.code_files(), *tokenizing.SOURCE_FILES]}
    files = {
        file.relative_to(arrow_store.ROOT) for file in (arrow_store.ROOT / "data").rglob("*") if file.is_file()
    }
    files = {file for file in files if file.suffix != ".pyc"}
    texts = {Path("data/general/prose.txt"), Path("data/general/chats.jsonl")}  # read like any dataset
    assert files - hashed - texts == {Path("data/rows/refusals.txt")}  # its phrases are part of the keys
    used = {imported for file in hashed if file.suffix == ".py" for imported in imported_files(file)}
    used = {file for file in used if (arrow_store.ROOT / file).is_file()}
    assert Path("chunking.py") in used and Path("engine/tokenizer/mistral_chat_template.py") in used
    assert {file for file in used - hashed if not file.as_posix().startswith(RESULTS_IN_THE_KEY)} == set()


@pytest.fixture
def clear_caches():
    """A function that clears the caches of values computed from the code, also called after the test."""

    def cleared():
        arrow_store._code_digest.cache_clear()
        family.cache_clear()

    yield cleared
    cleared()


def test_changed_tables_or_tokenizer_code_are_prepared_again(folders, tmp_path, monkeypatch, clear_caches):
    prepare_data(folders)
    table = tmp_path / "table.json"
    table.write_text("[]")
    for place, name, value in (
        (arrow_store, "code_files", lambda: [table]),
        (tokenizing, "SOURCE_FILES", (table,)),
    ):
        monkeypatch.setattr(place, name, value)
        clear_caches()
        assert prepare_data(folders)[1] == [] and len(prepare_data(folders)[1]) == 2


def test_broken_or_foreign_files_are_ignored_and_replaced(folders):
    before, _ = prepare_data(folders)
    files = sorted(folders.prepared_data.glob("*.arrow"))
    assert len(files) == 4
    intact = [file.read_bytes() for file in files]
    for damage in (
        lambda data: data[: len(data) // 2],
        lambda data: data[: len(data) // 2] + b"\x55" * 64 + data[len(data) // 2 + 64 :],
        lambda data: b"",
        lambda data: b"something else entirely",
        lambda data: intact[0] if data != intact[0] else intact[1],
    ):
        for file, data in zip(files, intact, strict=True):
            file.write_bytes(damage(data))
        after, _ = prepare_data(folders)
        assert all_of(after) == all_of(before)
        assert len(prepare_data(folders)[1]) == 2
        assert [file.read_bytes() for file in files] == intact
    assert list(folders.prepared_data.glob(".*")) == []


@pytest.mark.parametrize("part", ["metadata", "arrays"])
def test_a_single_changed_byte_is_noticed(tmp_path, part):
    """The metadata count as much as the arrays; a wrong number in Arrow's own could end the program."""
    store, key = arrow_store.Store(tmp_path), arrow_store.cache_key("a")
    store.save(key, arrow_store.StoreEntry({"ids": np.arange(40, dtype=np.int32)}, {"text": "Nobody came."}))
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    assert store.load(key).metadata == {"text": "Nobody came."}
    text_start = data.index(b"Nobody")
    for place in range(text_start, text_start + 12) if part == "metadata" else range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert store.load(key) is None


def test_the_oldest_are_removed_and_foreign_files_stay(folders):
    prepare_data(folders)
    folder = folders.prepared_data
    (folder / "notes.txt").write_text("mine")
    ages = {path: number for number, path in enumerate(sorted(folder.glob("*.arrow")))}
    for path, age in ages.items():
        os.utime(path, (1000 + age, 1000 + age))
    _, *others = ages
    room = sum(path.stat().st_size for path in others)
    arrow_store._remove_oldest(folder, room)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*(path.name for path in others), "notes.txt"])
    entry = arrow_store.StoreEntry({}, "x" * room)
    arrow_store.Store(folder, room // 2).save("a", entry)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_its_size_is_known_and_it_can_be_cleared(folders):
    assert (arrow_store.store_size(folders), arrow_store.clear_store(folders)) == (0, 0)
    prepare_data(folders)
    size = sum(path.stat().st_size for path in folders.prepared_data.iterdir())
    assert arrow_store.store_size(folders) == size > 0
    assert arrow_store.clear_store(folders) == size
    assert list(folders.prepared_data.iterdir()) == []


def test_without_pyarrow_or_a_writable_folder_results_are_the_same(folders, monkeypatch):
    expected = all_of(prepare_data(folders, keep=False)[0])
    folders.prepared_data.write_text("a file in the way")
    assert all_of(prepare_data(folders)[0]) == expected
    folders.prepared_data.unlink()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert all_of(prepare_data(folders)[0]) == expected
    assert not folders.prepared_data.exists()


def test_rows_that_stop_a_run_are_not_stored(folders):
    (folders.datasets / "rows.jsonl").write_text('{"text": "a b c"}\n{"text": 5}\n', encoding="utf-8")
    data, _ = prepare_data(folders, data=["rows.jsonl"])
    assert data.report.problems and not folders.prepared_data.exists()
    for _ in range(2):
        data, cached = prepare_data(folders, data=["rows.jsonl", "ferry-answers.csv"], bad_rows="skip")
        assert data.report.problems[0].startswith("rows.jsonl, line 2")
    assert [text.split()[-1] for text in cached] == ["ferry-answers.csv"]
