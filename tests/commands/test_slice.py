"""`slice` as the user meets it: one JSON object a block, a summary on standard error, a sentence for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from training_pro.commands.environment import ROOT
from training_pro.commands.main import main

TEXT = "One two three. Four five six.\n\nSeven \u00e4\u00f6 eight.\n\n\nNine ten. Eleven twelve thirteen."
KEYS = ["file", "start", "end", "text", "tokens", "kind", "section", "ends_section"]


@pytest.fixture
def cut(place, capsys):
    def call(path, *more):
        code = main(["slice", str(path), "--model", str(place.tiny), "--cutoff", "16", *more])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def book(tmp_path):
    folder = tmp_path / "anywhere"
    folder.mkdir()
    (folder / "chapter 10.txt").write_text("The last one. It ends.", encoding="utf-8")
    (folder / "chapter 2.txt").write_text(TEXT.replace("\n", "\r\n"), encoding="utf-8")
    return folder


def test_each_block_is_the_text_between_its_places(cut, book):
    code, out, err = cut(book, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    texts = {"chapter 2.txt": TEXT, "chapter 10.txt": "The last one. It ends."}
    assert code == 0 and [list(row) for row in rows] == [KEYS] * len(rows)
    assert list(dict.fromkeys(row["file"] for row in rows)) == ["chapter 2.txt", "chapter 10.txt"]
    for row in rows:
        assert row["text"] == texts[row["file"]][row["start"] : row["end"]]
        assert 0 < row["tokens"] <= 16 and "\n\n\n" not in row["text"]
    assert [row["ends_section"] for row in rows if row["text"].endswith("thirteen.")] == [True]
    assert err.count("No characters are lost in slicing.") == 2


@pytest.mark.long
def test_into_a_pipe_any_letter_is_utf_8_and_a_console_keeps_its_letters(place, tmp_path):
    """As on Windows, where standard output has one alphabet, and no letter more."""
    text = "\u4eca\u65e5\u306f\u3002 \u041f\u0440\u0438\u0432\u0435\u0442, \U0001f600."
    (tmp_path / "letters.txt").write_text(text, encoding="utf-8")
    program = [sys.executable, str(ROOT / "script.py")]
    command = [*program, "slice", str(tmp_path / "letters.txt"), "--model", str(place.tiny), "--json"]
    env = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert "".join(json.loads(line)["text"] for line in done.stdout.decode().splitlines()) == text
