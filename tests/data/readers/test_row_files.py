"""Rows as people have them: JSON and JSONL of any shape, CSV, databases; a reason for each broken row."""

from __future__ import annotations

import csv
import io
import json
import sqlite3

import pytest
from training_pro.core.errors import DataError, SettingsError
from training_pro.data.readers import sqlite_rows
from training_pro.tests.data.readers.reading import (
    make_database,
    one_process,  # noqa: F401
    read_columns,
    read_table,
    refusal,
    write,
)
from training_pro.tests.rowing import family, prepare_rows

PAIR = {"instruction": "a", "output": "b"}
TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        ([PAIR, PAIR], [PAIR, PAIR]),
        ({"version": 1, "data": {"train": [PAIR, PAIR], "extra": [{"x": 1}]}}, [PAIR, PAIR]),
        ({"instruction": ["a", "a"], "output": ["b", "b"]}, [PAIR, PAIR]),
        ({"instruction": {"0": "a", "1": "a"}, "output": {"0": "b", "1": "b"}}, [PAIR, PAIR]),
        (["one"], [{"text": "one"}]),
        ([TALK], [{"messages": TALK}]),
        ({"messages": TALK}, [{"messages": TALK}]),
    ],
)
def test_json_has_its_rows_at_any_depth(tmp_path, value, columns):
    table, rows = read_table(write(tmp_path / "a.json", json.dumps(value)))
    assert [dict(row.columns) for row in rows] == columns
    assert ([row.number for row in rows], table.unit, table.notes) == ([*range(1, len(rows) + 1)], "row", ())


def test_lines_have_the_numbers_of_the_file(tmp_path):
    lines = '\ufeff{"text": "é"}\r\n\n  \n{"text": "b"}\n'
    for content in (lines.encode(), lines.encode("utf-16-le")):
        table, rows = read_table(write(tmp_path / "a.jsonl", content))
        assert [(row.number, row.columns) for row in rows] == [(1, {"text": "é"}), (4, {"text": "b"})]
        assert table.unit == "line"
    assert read_columns(write(tmp_path / "b.jsonl", f"{json.dumps(TALK)}\n{{}}\n"))[0] == {"messages": TALK}


def test_an_array_and_lines_with_the_suffix_of_the_other_are_read_with_a_note(tmp_path):
    for name, content, note in (
        ("a.jsonl", json.dumps([PAIR, PAIR], indent=1), "so it was read as JSON."),
        ("a.json", f"{json.dumps(PAIR)}\n{json.dumps(PAIR)}\n", "so it was read as JSONL."),
    ):
        table, rows = read_table(write(tmp_path / name, content))
        assert [row.columns for row in rows] == [PAIR, PAIR] and table.notes[0].endswith(note)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": "b"}, {"a"', "a.json, line 1: the file ends too early"),
        (
            '[{"a": "b"},\n {"a": \'b\'}]',
            "a.json, line 2: at column 8 (\"'b'}]\"): put keys and strings in straight",
        ),
        ('[{"a": "b"},]', "a.json, line 1: at column"),
        ('[{"a": "b\nc"}]', "Write a line break as \\n"),
        ('[{"a": "C:\\dir"}]', "there is a single backslash. Write it twice"),
        (" \n ", "a.json is empty. Add rows to it, or remove it from the dataset."),
        ("[]", "a.json has no rows."),
        ("{}", "a.json has no rows."),
        ("5", "a.json contains a number (5). It must contain a JSON array of rows."),
        ("[" * 100_000, "a.json is nested too deeply"),
        (b"\x00" * 5000, "a.json is not text"),
        (b"%PDF-1.7", "a.json is a PDF document"),
        ('[{"a": "b"}] [{"a": "c"}]', "there is extra text after the end"),
    ],
)
def test_json_that_cannot_be_read(tmp_path, content, message):
    assert message in refusal(tmp_path / "a.json", content)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": "b"', "ends too early"),
        ("{", "starts an object that does not end on the same line. Put each row on one line"),
        ("{'a': 'b'}", "at column 2 (\"'a': 'b'}\"): put keys and strings in straight double quotes"),
        ("{“a”: “b”}", "put keys and strings in straight double quotes"),
        ('{"a": "b"} {"a": "c"}', 'at column 12 (\'{"a": "c"}\'): there is extra text after the end'),
        ("null", "is null. Each row must be a JSON object"),
        ("[1, 2]", "is a list. Each row must be a JSON object"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"text": ' + "[" * 600 + "]" * 600 + "}", "is nested more than 64 levels deep"),
        (b'{"a": ' + b"1" * 5_000 + b"}", "contains a number with thousands of digits"),
        (b'{"a": "\xe9"}', "byte 8 is not UTF-8"),
        ("a,b,c", "at column 1 ('a,b,c'): expecting value."),
    ],
)
def test_a_broken_line_costs_only_its_row(tmp_path, line, message):
    content = b'{"a": "b"}\n' + (line if isinstance(line, bytes) else line.encode()) + b'\n{"a": "c"}\n'
    _, (first, second, third) = read_table(write(tmp_path / "a.jsonl", content))
    assert (first.problem, third.problem, second.number, dict(second.columns)) == ("", "", 2, {})
    assert message in second.problem


def test_empty_and_missing_files(tmp_path):
    for content in (b"", b"\n \n", b"\xef\xbb\xbf", b"\x00\x00"):
        assert refusal(tmp_path / "a.jsonl", content).startswith("a.jsonl is empty. Add rows to it")
    assert "b.jsonl can't be read" in refusal(tmp_path / "b.jsonl")


def read_csv(tmp_path, content):
    table, rows = read_table(write(tmp_path / "a.csv", content))
    return table.what, [dict(row.columns) for row in rows]


@pytest.mark.parametrize(
    ("separator", "ending", "words"), [(",", "\n", "a comma"), (";", "\r\n", "a semicolon"), ("\t", "\r", "a tab")]
)
def test_separators_are_detected(tmp_path, separator, ending, words):
    lines = [["question", "answer"], ["What, then; is | it?", "A\tcat"], ["x", "y"]]
    what, rows = read_csv(tmp_path, ending.join(separator.join(f'"{cell}"' for cell in line) for line in lines))
    assert rows == [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    assert what == f'columns separated by {words}, " as the quote character, column names in the first line'


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ('\ufeffFrage;Antwort;\r\n"Was ""ist"" das?";"Ein\nBaum; groß";\r\n;;\r\n',
         {"Frage": 'Was "ist" das?', "Antwort": "Ein\nBaum; groß"}),
        ('sep=;\r\nquestion;answer\r\n"a, b";c\r\n', {"question": "a, b", "answer": "c"}),
        ("question;answer\r\nWie heißt du?;Käthe, schön.\r\n".encode("cp1252"),
         {"question": "Wie heißt du?", "answer": "Käthe, schön."}),
        ("question\tanswer\r\nä\tö\r\n".encode("utf-16"), {"question": "ä", "answer": "ö"}),
        ("'text','n'\n'It''s, well','1'\n'b','2'\n", {"text": "It's, well", "n": "1"}),
        ("text\nOne line\nAnother line\n", {"text": "One line"}),
        ('text\nFirst, with a comma\n"Second, quoted"\n', {"text": "First, with a comma"}),
        ('question\tanswer\nWho said "no"?\t"Yes" he said.\n',
         {"question": 'Who said "no"?', "answer": '"Yes" he said.'}),
        ("question\tanswer\n" + "'Where?'\t'Gone,' said Tom.\n" * 5,
         {"question": "'Where?'", "answer": "'Gone,' said Tom."}),
        ("'question'\t'answer'\n" + "'Where\nis he?'\t'Gone.'\n" * 5,
         {"question": "Where\nis he?", "answer": "Gone."}),
        (",question,answer\n0,a b,c d\n", {"1": "0", "question": "a b", "answer": "c d"}),
        ("Who are you?,I am Maren.\nAnd he?,He is a goat.\n", {"1": "Who are you?", "2": "I am Maren."}),
    ],
)  # fmt: skip
def test_tables_as_programs_and_people_write_them(tmp_path, content, columns):
    assert read_csv(tmp_path, content)[1][0] == columns


def test_missing_cells_at_the_end_of_a_row_are_empty(tmp_path):
    _, rows = read_table(write(tmp_path / "a.csv", "question;answer;note;year\na;b;c;d\ne;f\ng;h;i\nj\n"))
    assert [list(row.columns.values()) for row in rows[:3]] == [list("abcd"), ["e", "f", "", ""], [*"ghi", ""]]
    assert rows[3].problem.startswith("has 1 column instead of 4.")


def numbered_lines(count, separator="\t"):
    return [f"question {number}{separator}answer {number}" for number in range(count)]


@pytest.mark.parametrize("separator", ["\t", ","])
@pytest.mark.parametrize("later", ['question 900{}He said "no" and left.', 'question 900{}"Two\nlines"'])
def test_a_quote_that_is_never_closed_costs_only_its_own_row(tmp_path, separator, later):
    lines = numbered_lines(1500, separator)
    lines[300] = f'question 300{separator}"It was late when he came.'
    lines[900] = later.format(separator)
    _, rows = read_table(write(tmp_path / "a.csv", "\n".join([f"question{separator}answer", *lines])))
    assert [(row.number, row.problem) for row in rows if row.problem] == [
        (302, 'ends too early: an opening " has no closing ".')
    ]
    assert [row.number for row in rows[:900]] == [*range(2, 902)] and len(rows) == 1500
    assert rows[-1].columns == {"question": "question 1499", "answer": "answer 1499"}


def test_a_speech_over_several_rows_is_no_cell_of_a_table_with_tabs(tmp_path):
    lines = [*numbered_lines(300), 'question\t"It was late.\n']
    lines[250:252] = ['question\t"It was late.', 'question\tand it rained"']
    lines[260] = 'question\t"Two\nlines"'
    _, rows = read_table(write(tmp_path / "a.csv", "\n".join(["question\tanswer", *lines])))
    assert [row.number for row in rows if row.problem] == [252, 303] and len(rows) == 301
    assert rows[251].columns["answer"] == 'and it rained"' and rows[260].columns["answer"] == "Two\nlines"


def test_many_empty_columns_are_read(tmp_path):
    _, rows = read_csv(tmp_path, "a,b" + "," * 100_000 + "\n" + "x,y" + "," * 100_000 + "\n")
    assert rows == [{"a": "x", "b": "y"}]


def test_columns_by_other_names_and_the_source_line_says_how_it_was_read(tmp_path):
    content = {"a.csv": "Frage;Die Antwort;Jahr\nWer?;Ich war es.;1999\nWas?;Ein Hund war es.;2001\n"}
    for names, message in (
        ("", r"have the columns Frage, Die Antwort, Jahr.*output=ANSWERS.*spaces in double quotes"),
        ("instruction=Frage output=Antwort", r"a\.csv has no column Antwort, .+: Die Antwort, Frage, Jahr"),
    ):
        with pytest.raises(DataError, match=message):
            prepare_rows(tmp_path / names, family("ChatML"), content, columns=names)
    names = 'instruction=Frage output="Die Antwort"'
    data = prepare_rows(tmp_path / "b", family("ChatML"), content, columns=names)
    assert data.examples[0].text.startswith("<|im_start|>user\nWer?<|im_end|>\n<|im_start|>assistant\nIch war es.")
    assert data.report.sources[0].what.endswith("because the rows have the columns 'instruction' and 'output'")
    data = prepare_rows(tmp_path / "c", family("ChatML"), content, format="%Jahr%: %Die Antwort%.")
    assert data.examples[1].text == "2001: Ein Hund war es..<|im_end|>"
    for names, message in (("instruction", "can't be parsed"), ("a='b", "is missing a quotation mark")):
        with pytest.raises(SettingsError, match=message):
            prepare_rows(tmp_path / f"d{len(names)}", family("ChatML"), content, columns=names)


def test_chats_in_a_table_as_pandas_writes_them_and_as_json(tmp_path):
    chat = [{"role": "system", "content": ""}, {"role": "user", "content": "It's?"}]
    chat.append({"role": "assistant", "content": "No."})
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["id", "messages"], [1, str(chat)], [2, json.dumps(chat)]])
    data = prepare_rows(tmp_path, family("ChatML"), {"a.csv": buffer.getvalue()})
    first, second = (example.text for example in data.examples)
    assert first == second == "<|im_start|>user\nIt's?<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n"
    assert "lists of messages as text in the column 'messages'" in data.report.sources[0].what


TWO_TABLES = """
create table people (id integer primary key, name text); insert into people (name) values ('x');
create table "the talks" (question text, answer text, year integer);
insert into "the talks" values ('a', 'b', 1), ('c', 'd', 2);
"""


def test_the_table_whose_columns_are_known_or_the_one_that_is_asked_for(tmp_path):
    path = make_database(tmp_path / "a.db", TWO_TABLES)
    assert read_columns(path)[0] == {"question": "a", "answer": "b", "year": 1}
    assert read_columns(path, "table=people") == [{"id": 1, "name": "x"}]
    assert read_columns(path, 'SELECT answer AS text FROM "the talks" WHERE year > 1;') == [{"text": "d"}]
    assert read_columns(path, "WITH t AS (SELECT 'q' AS text) SELECT text FROM t") == [{"text": "q"}]
    with pytest.raises(DataError, match=r"has no table 'x'\. Its tables: people, the talks"):
        read_columns(path, "table=x")
    several = make_database(tmp_path / "b.db", "create table a (text text); create table b (text text)")
    assert "has several tables: a (text); b (text). Choose a table under Column names" in refusal(several)


@pytest.mark.parametrize(
    "statement",
    [
        "WITH x AS (SELECT 1) DELETE FROM people",
        "WITH x AS (SELECT 1) UPDATE people SET name = 'y'",
        "SELECT 1; DELETE FROM people",
        "SELECT load_extension('x')",
        "SELECT * FROM pragma_user_version",
    ],
)
def test_statements_that_do_more_than_read_are_refused(tmp_path, statement):
    path = make_database(tmp_path / "a.db", TWO_TABLES)
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"a\.db: "):
        read_columns(path, statement)
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_a_database_that_writes_ahead_is_read_without_a_file_beside_it(tmp_path):
    script = "pragma journal_mode = wal; create table a (text text); insert into a values ('b');"
    path = make_database(tmp_path / "a.db", script)
    assert read_columns(path) == [{"text": "b"}] and [file.name for file in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("/home/x/a b.db", "file:///home/x/a%20b.db"),
        ("C:/Users/x/a.db", "file:C%3A/Users/x/a.db"),
        ("//nas/share/a.db", "file:////nas/share/a.db"),  # with two, SQLite takes the machine for a host: refused
    ],
)
def test_a_database_is_found_on_any_disk_also_on_a_share_of_windows(path, address):
    assert sqlite_rows.file_uri(path) == address
    with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):  # not: invalid authority
        sqlite3.connect(f"{address}?mode=ro", uri=True)


def test_dates_that_python_does_not_have_are_a_row_with_a_reason(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    dates = arrow.array([0, 10**8], arrow.int32()).cast(arrow.date32())
    parquet.write_table(arrow.table({"text": ["a b", "c d"], "day": dates}), tmp_path / "a.parquet")
    _, (first, second) = read_table(tmp_path / "a.parquet")
    assert (first.columns["text"], first.problem) == ("a b", "")
    assert second.problem.startswith("has a value that can't be read")
