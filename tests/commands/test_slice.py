"""`slice` as the user meets it: one JSON object a block, a summary on standard error, a sentence for bad input."""

from __future__ import annotations

import io
import json
import sys

import pytest
from training_pro.commands.main import main

TEXT = "One two three. Four five six.\n\nSeven \u00e4\u00f6 eight.\n\n\nNine ten. Eleven twelve thirteen."
KEYS = ["file", "start", "end", "text", "tokens", "kind", "section", "ends_section"]


@pytest.fixture
def book(tmp_path):
    folder = tmp_path / "anywhere"
    folder.mkdir()
    (folder / "chapter 10.txt").write_text("The last one. It ends.", encoding="utf-8")
    (folder / "chapter 2.txt").write_text(TEXT.replace("\n", "\r\n"), encoding="utf-8")
    return folder


def cut(place, path, *more):
    return main(["slice", str(path), "--model", str(place.tiny), "--cutoff", "16", *more])


def test_each_block_is_the_text_between_its_places(place, book, capsys):
    assert cut(place, book, "--json") == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    texts = {"chapter 2.txt": TEXT, "chapter 10.txt": "The last one. It ends."}
    assert [list(row) for row in rows] == [KEYS] * len(rows)
    assert list(dict.fromkeys(row["file"] for row in rows)) == ["chapter 2.txt", "chapter 10.txt"]
    for row in rows:
        assert row["text"] == texts[row["file"]][row["start"] : row["end"]]
        assert 0 < row["tokens"] <= 16
        assert "\n\n\n" not in row["text"]
    assert [row["ends_section"] for row in rows if row["text"].endswith("thirteen.")] == [True]
    assert err.count("No characters are lost in slicing.") == 2


def windows_pipe():
    """Standard output as Windows makes it where it is not a console: one alphabet, and no letter more."""
    return io.TextIOWrapper(io.BytesIO(), encoding="cp1252")


def test_into_a_pipe_any_letter_is_utf_8(place, tmp_path, monkeypatch):
    text = "\u4eca\u65e5\u306f\u3002 \u041f\u0440\u0438\u0432\u0435\u0442, \U0001f600."
    (tmp_path / "letters.txt").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", pipe := windows_pipe())
    assert cut(place, tmp_path / "letters.txt", "--json") == 0
    pipe.flush()
    rows = [json.loads(line) for line in pipe.buffer.getvalue().decode("utf-8").splitlines()]
    assert "".join(row["text"] for row in rows) == text


def test_a_console_keeps_its_letters_and_spells_out_the_others(monkeypatch):
    monkeypatch.setattr(sys, "stderr", console := windows_pipe())
    monkeypatch.setattr(console, "isatty", lambda: True, raising=False)
    assert main(["\u00e4\u4eca"]) == 2
    console.flush()
    assert "Unknown command '\u00e4\\u4eca'." in console.buffer.getvalue().decode("cp1252")


def test_dementor_and_its_kind(place, book, capsys):
    assert cut(place, book / "chapter 2.txt", "--chunking", "dementor", "--json") == 0
    assert {json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()} == {"dementor"}


def test_without_json_it_is_for_reading(place, book, capsys):
    assert cut(place, book / "chapter 10.txt") == 0
    out = capsys.readouterr().out
    assert out.startswith("--- chapter 10.txt 0-")
    assert "The last one." in out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing.txt", "There is no dataset {path!r} in "),
        ("picture.txt", "is not text"),
        ("empty.txt", "is empty"),
    ],
)
def test_what_cannot_be_cut_is_one_sentence(place, tmp_path, capsys, name, said):
    (tmp_path / "picture.txt").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "empty.txt").write_text("")
    assert cut(place, tmp_path / name, "--json") == 1
    out, err = capsys.readouterr()
    assert (out, said.format(path=str(tmp_path / name)) in err, "Traceback" in err) == ("", True, False)


def test_boilerplate_is_dropped_when_asked_for(place, tmp_path, capsys):
    book = tmp_path / "book.txt"
    book.write_text("*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\n\nOne two. Three.\n", encoding="utf-8")
    assert cut(place, book, "--drop-boilerplate", "true") == 0
    out, err = capsys.readouterr()
    assert "One two. Three." in out
    assert "GUTENBERG" not in out
    assert "Dropped from book.txt: 1 publisher notice (46 characters)." in err
