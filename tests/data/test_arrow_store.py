"""Prepared data come back equal to the bit, are bounded, and whatever is wrong with them is made anew."""

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
from training_pro.data import arrow_store, build_examples, example_cache, prepare
from training_pro.data.rows import row_dataset
from training_pro.engine.tokenizer import tokenizer as tokenizing
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import made_folders
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
ANSWERS_IN_THE_KEY = (
    "core/",
    "settings/definitions.py",
    "settings/rules.py",
    "settings/setting.py",
    "schedulers.py",
    "train_utils.py",
)
SAID = "was prepared before"


@pytest.fixture
def folders(tmp_path):
    found = replace(made_folders(tmp_path), examples=EXAMPLES)
    (found.datasets / "rows.jsonl").write_text(as_json("a.jsonl", ROWS), encoding="utf-8")
    (found.datasets / "book.txt").write_text(BOOK, encoding="utf-8")
    return found


def made(folders, name="ChatML", keep=True, **values):
    said = []
    tokenizer = family(name)
    settings = training_settings({"name": "a", "data": ["rows.jsonl", "book.txt:50"], **values})
    card = ModelCard("toy", {}, tokenizer.tokenizer, "auto")
    data = prepare.prepare(settings, folders, card, tokenizer, lambda text, share: said.append(text), keep=keep)
    return data, [text for text in said if SAID in text]


def test_a_database_in_use_is_not_taken_from_the_store(folders):
    """Its last changes are in a file beside it, so that its own bytes are as they were."""
    with closing(sqlite3.connect(folders.datasets / "rows.db")) as database:
        database.execute("PRAGMA journal_mode = wal")
        database.execute("CREATE TABLE talk (instruction TEXT, output TEXT)")
        database.execute("INSERT INTO talk VALUES ('Who?', 'Nobody.')")
        database.commit()
        database.execute("PRAGMA wal_checkpoint(truncate)")
        assert len(made(folders, data=["rows.db"])[0].examples) == 1
        database.execute("INSERT INTO talk VALUES ('When?', 'Never.')")
        database.commit()
        with pytest.raises(DataError, match=r"rows\.db is in use: its last changes are still in rows\.db-wal"):
            made(folders, data=["rows.db"])
    assert len(made(folders, data=["rows.db"])[0].examples) == 2


def everything(data):
    """All that a run learns, what is kept aside, where each example came from, and what Check says."""
    sides = [
        [(e.ids.tolist(), e.labels.tolist(), e.text, e.place, e.source.name) for e in side]
        for side in (data.examples, data.kept_aside)
    ]
    flows = [side.neighbours() for side in (data.examples, data.kept_aside)]
    return sides, flows, data.examples.digest(), data.plan, data.report, data.report.text()


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
def test_all_is_equal_to_the_bit_with_and_without(folders, values):
    without, _ = made(folders, keep=False, **values)
    assert not folders.prepared.exists()
    first, said = made(folders, **values)
    assert said == []
    second, said = made(folders, **values)
    names = [name.partition(":")[0] for name in (values.get("data") or ["rows.jsonl", "book.txt"])]
    assert all(any(text.startswith(name) for text in said) for name in names)
    assert everything(first) == everything(without) == everything(second)
    assert first.examples[0].ids.dtype == second.examples[0].ids.dtype
    assert second.examples[0].ids.flags.writeable == without.examples[0].ids.flags.writeable


def test_the_second_start_encodes_nothing(folders, monkeypatch):
    data = ["rows.jsonl", "book.txt", "geese.pdf", "fourth-stroke.epub", "ferry-answers.csv"]
    made(folders, data=data)

    def refused(*_):
        raise AssertionError("prepared again")

    monkeypatch.setattr(row_dataset, "row_set", refused)
    monkeypatch.setattr(example_cache, "slices", refused)
    monkeypatch.setattr(example_cache.documents, "read", refused)
    monkeypatch.setattr(build_examples, "Inspector", refused)
    assert len(made(folders, data=data)[1]) == len(data)


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
def test_what_matters_is_part_of_the_key(folders, change):
    data = ["ferry-questions.json", "book.txt"]
    made(folders, data=data)
    again, said = made(folders, data=data, **change)
    assert len(said) < 2
    assert everything(again) == everything(made(folders, keep=False, data=data, **change)[0])


def test_another_tokenizer_or_content_is_prepared_anew_and_other_settings_are_not(folders):
    made(folders)
    assert made(folders, "Llama-3")[1] == []
    assert len(made(folders, learning_rate=1e-3, epochs=5, batch_size=2, rank=4)[1]) == 2
    (folders.datasets / "rows.jsonl").write_text(as_json("a.jsonl", ROWS[:-1]), encoding="utf-8")
    assert [text.split()[0] for text in made(folders)[1]] == ["book.txt"]
    folders.refusals.write_text("never again", encoding="utf-8")
    assert [text.split()[0] for text in made(folders)[1]] == ["book.txt"]  # its slices; its words are looked at


def reached(file):
    """The files of ours that a file imports."""
    for name, node in imports(file):
        if name.startswith("."):
            within = ["/".join([*name[1:].split("."), alias.name]) for alias in node.names]
            yield from (Path(f"{each}.py") for each in (name[1:].replace(".", "/"), *within))


def test_every_file_that_decides_on_examples_is_part_of_the_key():
    hashed = {path.relative_to(arrow_store.ROOT) for path in [*arrow_store.code_files(), *tokenizing.CODE]}
    files = {
        file.relative_to(arrow_store.ROOT) for file in (arrow_store.ROOT / "data").rglob("*") if file.is_file()
    }
    files = {file for file in files if file.suffix != ".pyc"}
    assert files - hashed == {Path("data/rows/refusals.txt")}  # its phrases are in the key themselves
    used = {found for file in hashed if file.suffix == ".py" for found in reached(file)}
    used = {file for file in used if (arrow_store.ROOT / file).is_file()}
    assert Path("chunking.py") in used and Path("engine/tokenizer/mistral_chat_template.py") in used
    assert {file for file in used - hashed if not file.as_posix().startswith(ANSWERS_IN_THE_KEY)} == set()


@pytest.fixture
def forget():
    """What was worked out of the code is worked out again; also after the test."""

    def cleared():
        arrow_store._code_digest.cache_clear()
        family.cache_clear()

    yield cleared
    cleared()


def test_another_table_or_another_way_to_tokenize_is_prepared_anew(folders, tmp_path, monkeypatch, forget):
    made(folders)
    table = tmp_path / "table.json"
    table.write_text("[]")
    for place, name, value in ((arrow_store, "code_files", lambda: [table]), (tokenizing, "CODE", (table,))):
        monkeypatch.setattr(place, name, value)
        forget()
        assert made(folders)[1] == [] and len(made(folders)[1]) == 2


def test_files_that_are_broken_or_not_ours_are_ignored_and_replaced(folders):
    before, _ = made(folders)
    files = sorted(folders.prepared.glob("*.arrow"))
    assert len(files) == 3
    whole = [file.read_bytes() for file in files]
    for damage in (
        lambda data: data[: len(data) // 2],
        lambda data: data[: len(data) // 2] + b"\x55" * 64 + data[len(data) // 2 + 64 :],
        lambda data: b"",
        lambda data: b"something else entirely",
        lambda data: whole[0] if data != whole[0] else whole[1],
    ):
        for file, data in zip(files, whole, strict=True):
            file.write_bytes(damage(data))
        after, _ = made(folders)
        assert everything(after) == everything(before)
        assert len(made(folders)[1]) == 2
        assert [file.read_bytes() for file in files] == whole
    assert list(folders.prepared.glob(".*")) == []


@pytest.mark.parametrize("part", ["what was said", "its numbers"])
def test_a_single_byte_that_is_another_is_noticed(tmp_path, part):
    """What was said is as much a part of it as the arrays; and some numbers of Arrow's own ended the program."""
    store, key = arrow_store.Store(tmp_path), arrow_store.key("a")
    store.save(key, arrow_store.Entry({"ids": np.arange(40, dtype=np.int32)}, {"text": "Nobody came."}))
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    assert store.load(key).metadata == {"text": "Nobody came."}
    said = data.index(b"Nobody")
    for place in range(said, said + 12) if part == "what was said" else range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert store.load(key) is None


def test_the_oldest_go_and_foreign_files_stay(folders):
    made(folders)
    folder = folders.prepared
    (folder / "notes.txt").write_text("mine")
    ages = {path: number for number, path in enumerate(sorted(folder.glob("*.arrow")))}
    for path, age in ages.items():
        os.utime(path, (1000 + age, 1000 + age))
    _, *others = ages
    room = sum(path.stat().st_size for path in others)
    arrow_store._remove_oldest(folder, room)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*(path.name for path in others), "notes.txt"])
    entry = arrow_store.Entry({}, "x" * room)
    arrow_store.Store(folder, room // 2).save("a", entry)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_its_size_is_told_and_it_can_be_cleared(folders):
    assert (arrow_store.size(folders), arrow_store.clear(folders)) == (0, 0)
    made(folders)
    size = sum(path.stat().st_size for path in folders.prepared.iterdir())
    assert arrow_store.size(folders) == size > 0
    assert arrow_store.clear(folders) == size
    assert list(folders.prepared.iterdir()) == []


def test_without_pyarrow_or_a_folder_to_write_to_all_is_as_it_was(folders, monkeypatch):
    expected = everything(made(folders, keep=False)[0])
    folders.prepared.write_text("a file in the way")
    assert everything(made(folders)[0]) == expected
    folders.prepared.unlink()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert everything(made(folders)[0]) == expected
    assert not folders.prepared.exists()


def test_rows_that_stop_a_run_are_not_kept(folders):
    (folders.datasets / "rows.jsonl").write_text('{"text": "a b c"}\n{"text": 5}\n', encoding="utf-8")
    data, _ = made(folders, data=["rows.jsonl"])
    assert data.report.problems and not folders.prepared.exists()
    for _ in range(2):
        data, said = made(folders, data=["rows.jsonl", "ferry-answers.csv"], bad_rows="skip")
        assert data.report.problems[0].startswith("rows.jsonl, line 2")
    assert [text.split()[0] for text in said] == ["ferry-answers.csv"]
