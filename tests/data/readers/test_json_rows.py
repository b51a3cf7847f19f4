"""JSON and JSONL as people have them, and a sentence with the place for each broken one."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import DataError
from training_pro.data.readers.json_rows import read_json, read_jsonl

PAIR = {"instruction": "a", "output": "b"}


def read_rows(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = (read_jsonl if name.endswith("l") else read_json)(path, name)
    return table, list(table.rows())


@pytest.mark.parametrize(
    "value",
    [
        [PAIR, PAIR],
        {"data": [PAIR, PAIR]},
        {"version": 1, "data": {"train": [PAIR, PAIR], "extra": [{"x": 1}]}},
        {"instruction": ["a", "a"], "output": ["b", "b"]},
        {"instruction": {"0": "a", "1": "a"}, "output": {"0": "b", "1": "b"}},
    ],
)
def test_rows_at_any_depth(tmp_path, value):
    table, rows = read_rows(tmp_path, "a.json", json.dumps(value))
    assert [(row.number, row.columns) for row in rows] == [(1, PAIR), (2, PAIR)]
    assert (table.unit, table.notes) == ("row", ())


def test_texts_and_bare_chats_get_the_usual_column_names(tmp_path):
    talk = [{"role": "user", "content": "a"}]
    assert [r.columns for r in read_rows(tmp_path, "a.json", json.dumps(["one"]))[1]] == [{"text": "one"}]
    assert [r.columns for r in read_rows(tmp_path, "a.json", json.dumps([talk]))[1]] == [{"messages": talk}]


def test_a_single_chat_is_one_row(tmp_path):
    value = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    assert [r.columns for r in read_rows(tmp_path, "a.json", json.dumps(value))[1]] == [value]


def test_lines(tmp_path):
    table, rows = read_rows(tmp_path, "a.jsonl", '\ufeff{"text": "é"}\r\n\n  \n{"text": "b"}\n')
    assert [(row.number, row.columns) for row in rows] == [(1, {"text": "é"}), (4, {"text": "b"})]
    assert (table.unit, table.notes) == ("line", ())


def test_an_array_misnamed_as_lines(tmp_path):
    table, rows = read_rows(tmp_path, "a.jsonl", json.dumps([PAIR, PAIR], indent=1))
    assert [row.columns for row in rows] == [PAIR, PAIR]
    assert table.notes == ("a.jsonl does not have one row per line, so it was read as JSON.",)


def test_lines_misnamed_as_an_array(tmp_path):
    table, rows = read_rows(tmp_path, "a.json", f"{json.dumps(PAIR)}\n{json.dumps(PAIR)}\n")
    assert [(row.number, row.columns) for row in rows] == [(1, PAIR), (2, PAIR)]
    assert table.notes == ("a.json has one row per line, so it was read as JSONL.",)


def test_lines_that_are_chats(tmp_path):
    talk = [{"role": "user", "content": "a"}]
    _, rows = read_rows(tmp_path, "a.jsonl", f"{json.dumps(talk)}\n{json.dumps(talk)}\n")
    assert [row.columns for row in rows] == [{"messages": talk}] * 2


def test_utf_16(tmp_path):
    _, rows = read_rows(tmp_path, "a.jsonl", '{"text": "é"}\n{"text": "b"}\n'.encode("utf-16"))
    assert [row.columns for row in rows] == [{"text": "é"}, {"text": "b"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '[{"a": "b"}, {"a"',
            "a.json, line 1: the file ends too early. The file must be one complete JSON array of rows.",
        ),
        (
            '[{"a": "b"},\n {"a": \'b\'}]',
            "a.json, line 2: at column 8 (\"'b'}]\"): put keys and strings in straight double",
        ),
        (
            "[{'a': 'b'}]",
            ("a.json, line 1: at column 3 (\"'a': 'b'}]\"): put keys and strings in straight double quotes"),
        ),
        ('[{"a": "b"},]', "a.json, line 1: at column"),
        (
            '[{"a": "b\nc"}]',
            "a string contains a line break or control character that is not escaped. Write a line break as \\n",
        ),
        ('[{"a": "C:\\dir"}]', "there is a single backslash. Write it twice"),
        ("", "a.json is empty. Add rows to it, or remove it from the dataset."),
        (" \n ", "a.json is empty."),
        ("[]", "a.json has no rows. Add rows to it, or remove it from the dataset."),
        ("{}", "a.json has no rows."),
        ("null", "a.json contains null. It must contain a JSON array of rows."),
        ("5", "a.json contains a number (5). It must contain a JSON array of rows."),
        (
            "[" * 100_000,
            "a.json is nested too deeply. Each row must be a JSON object whose keys are column names.",
        ),
        (b"\x00" * 5000, "a.json is not text"),
        (b"%PDF-1.7", "a.json is a PDF document"),
        (b"\x89PNG\r\n", "a.json is an image"),
        ('[{"a": "b"}] [{"a": "c"}]', "there is extra text after the end"),
        ("hello", "a.json, line 1: at column 1 ('hello'): expecting value."),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    with pytest.raises(DataError) as error:
        read_rows(tmp_path, "a.json", content)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": "b"', "ends too early. Each row must be a complete JSON object on one line."),
        (
            "{",
            "starts an object that does not end on the same line. Put each row on one line, or save all rows "
            "as an array in a .json file.",
        ),
        ("{'a': 'b'}", "at column 2 (\"'a': 'b'}\"): put keys and strings in straight double quotes (\")."),
        ("{“a”: “b”}", "put keys and strings in straight double quotes"),
        (
            '{"a": "b"} {"a": "c"}',
            'at column 12 (\'{"a": "c"}\'): there is extra text after the end of the JSON value.',
        ),
        ('{"a": "b\x00c"}', "a string contains a line break or control character"),
        ('{"a": "\\x"}', "there is a single backslash. Write it twice"),
        ("5", "is a number (5). Each row must be a JSON object whose keys are column names."),
        ("null", "is null. Each row must be a JSON object whose keys are column names."),
        ("[1, 2]", "is a list. Each row must be a JSON object whose keys are column names."),
        ("[" * 100_000, "is nested too deeply. Each row must be a JSON object whose keys are column names."),
        (b'{"a": ' + b"1" * 5_000 + b"}", "contains a number with thousands of digits. Put it in quotes"),
        (b'{"a": "\xe9"}', "byte 8 is not UTF-8. Save the file as UTF-8."),
        ("a,b,c", "at column 1 ('a,b,c'): expecting value."),
    ],
)
def test_lines_that_cannot_be_read(tmp_path, line, message):
    line_bytes = line if isinstance(line, bytes) else line.encode()
    _, (first, second, third) = read_rows(tmp_path, "a.jsonl", b'{"a": "b"}\n' + line_bytes + b'\n{"a": "c"}\n')
    assert (first.problem, third.problem) == ("", "")
    assert (second.number, dict(second.columns)) == (2, {})
    assert message in second.problem


def test_odd_rows_that_load(tmp_path):
    long_text = "x" * 10_000_000
    _, rows = read_rows(tmp_path, "a.jsonl", json.dumps({"text": long_text}) + '\n{"a": 1, "a": 2}\n')
    assert [len(rows[0].columns["text"]), rows[1].columns] == [10_000_000, {"a": 2}]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf", b"\x00\x00"])
def test_empty_files(tmp_path, content):
    with pytest.raises(DataError, match=r"a\.jsonl is empty\. Add rows to it, or remove it"):
        read_rows(tmp_path, "a.jsonl", content)


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"a\.jsonl can't be read"):
        read_jsonl(tmp_path / "a.jsonl", "a.jsonl")
