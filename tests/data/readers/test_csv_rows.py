"""Tables as people have them: CSV dialects, databases and Parquet, and column names of many kinds."""

from __future__ import annotations

import csv
import io
import json
import sqlite3

import pytest
from training_pro.core.errors import DataError
from training_pro.data.readers import csv_rows, sqlite_rows
from training_pro.settings.columns import parse_columns as columns
from training_pro.tests.rowing import family, prepare_rows

NO_COLUMNS = columns("")


def read_csv(tmp_path, content, name="a.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = csv_rows.read_table(path, name)
    return table, list(table.rows())


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_detected(tmp_path, separator, ending):
    lines = [["question", "answer"], ["What, then; is | it?", "A\tcat"], ["x", "y"]]
    content = ending.join(separator.join(f'"{cell}"' for cell in line) for line in lines)
    table, rows = read_csv(tmp_path, content)
    assert [dict(row.columns) for row in rows] == [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    assert (
        table.what == f'columns separated by {csv_rows.SEPARATOR_WORDS[separator]}, " as the quote character, '
        "column names in the first line"
    )


def test_tables_as_excel_writes_them(tmp_path):
    table, rows = read_csv(
        tmp_path, '\ufeffFrage;Antwort;\r\n"Was ""ist"" das?";"Ein\nBaum; groß";\r\n;;\r\nUnd?;Nichts;\r\n'
    )
    assert [(row.number, dict(row.columns)) for row in rows] == [
        (2, {"Frage": 'Was "ist" das?', "Antwort": "Ein\nBaum; groß"}),
        (5, {"Frage": "Und?", "Antwort": "Nichts"}),
    ]
    _, rows = read_csv(tmp_path, 'sep=;\r\nquestion;answer\r\n"a, b";c\r\n')
    assert [(row.number, dict(row.columns)) for row in rows] == [(3, {"question": "a, b", "answer": "c"})]
    table, rows = read_csv(
        tmp_path, "question;answer\r\nWie heißt du?;Käthe ist mein Name, schön.\r\n".encode("cp1252")
    )
    assert rows[0].columns["answer"] == "Käthe ist mein Name, schön."
    assert "was read as cp1252" in table.notes[0]
    _, rows = read_csv(tmp_path, "question\tanswer\r\nä\tö\r\n".encode("utf-16"))
    assert rows[0].columns == {"question": "ä", "answer": "ö"}


def test_single_quotes_and_a_table_of_one_column(tmp_path):
    table, rows = read_csv(tmp_path, "'text','n'\n'It''s, well','1'\n'b','2'\n")
    assert dict(rows[0].columns) == {"text": "It's, well", "n": "1"}
    assert "' as the quote character" in table.what
    _, rows = read_csv(tmp_path, "text\nOne line\nAnother line\n")
    assert [row.columns for row in rows] == [{"text": "One line"}, {"text": "Another line"}]


def test_single_quotes_of_speech_in_a_table_with_tabs_stay(tmp_path):
    for answer in ("'Gone to the sea.'", "'Gone,' said Tom."):
        _, rows = read_csv(tmp_path, "question\tanswer\n" + f"'Where is he?'\t{answer}\n" * 5)
        assert [row.columns for row in rows] == [{"question": "'Where is he?'", "answer": answer}] * 5
    _, rows = read_csv(tmp_path, "'question'\t'answer'\n" + "'Where\nis he?'\t'Gone.'\n" * 5)
    assert rows[0].columns == {"question": "Where\nis he?", "answer": "Gone."}


def test_missing_cells_at_the_end_of_a_row_are_empty(tmp_path):
    _, rows = read_csv(tmp_path, "question;answer;note;year\na;b;c;d\ne;f\ng;h;i\nj\n")
    assert [list(row.columns.values()) for row in rows[:3]] == [list("abcd"), ["e", "f", "", ""], [*"ghi", ""]]
    assert rows[3].problem.startswith("has 1 column instead of 4.")


def test_quotes_that_are_letters_numbers_of_rows_and_separators_in_a_single_column(tmp_path):
    table, rows = read_csv(tmp_path, 'question\tanswer\nWho said "no"?\t"Yes" he said.\n')
    assert rows[0].columns == {"question": 'Who said "no"?', "answer": '"Yes" he said.'}
    assert table.what == "columns separated by a tab, no quote character, column names in the first line"
    _, rows = read_csv(tmp_path, ",question,answer\n0,a b,c d\n")
    assert rows[0].columns == {"1": "0", "question": "a b", "answer": "c d"}
    table, rows = read_csv(tmp_path, 'text\nFirst, with a comma\n"Second, quoted"\n')
    assert [row.columns["text"] for row in rows] == ["First, with a comma", "Second, quoted"]
    assert table.what == 'one column, " as the quote character, column names in the first line'


def numbered_lines(count, separator="\t"):
    return [f"question {number}{separator}answer {number}" for number in range(count)]


@pytest.mark.parametrize("separator", ["\t", ",", "|"])
@pytest.mark.parametrize("later", ["", 'question 900{}He said "no" and left.', 'question 900{}"Two\nlines"'])
def test_a_quote_that_is_never_closed_costs_only_its_own_row(tmp_path, separator, later):
    lines = numbered_lines(1500, separator)
    lines[300] = f'question 300{separator}"It was late when he came.'
    lines[900] = later.format(separator) or lines[900]
    _, rows = read_csv(tmp_path, "\n".join([f"question{separator}answer", *lines]))
    assert [(row.number, row.problem) for row in rows if row.problem] == [
        (302, 'ends too early: an opening " has no closing ".')
    ]
    assert len(rows) == 1500
    assert [row.number for row in rows[:900]] == [*range(2, 902)]
    assert rows[-1].columns == {"question": "question 1499", "answer": "answer 1499"}


def test_an_unclosed_quote_in_the_last_line_costs_only_its_own_row(tmp_path):
    lines = [*numbered_lines(300), 'question\t"It was late.\n']
    _, rows = read_csv(tmp_path, "\n".join(["question\tanswer", *lines]))
    assert [row.number for row in rows if row.problem] == [302] and len(rows) == 301


def test_a_speech_over_several_rows_is_no_cell_of_a_table_with_tabs(tmp_path):
    lines = numbered_lines(300)
    lines[250:252] = ['question\t"It was late.', 'question\tand it rained"']
    lines[260] = 'question\t"Two\nlines"'
    _, rows = read_csv(tmp_path, "\n".join(["question\tanswer", *lines]))
    assert [row.number for row in rows if row.problem] == [252] and len(rows) == 300
    assert rows[251].columns["answer"] == 'and it rained"' and rows[260].columns["answer"] == "Two\nlines"


def test_without_names_columns_have_numbers(tmp_path):
    table, rows = read_csv(tmp_path, "Who are you?,I am Maren.\nAnd he?,He is a goat.\n")
    assert dict(rows[0].columns) == {"1": "Who are you?", "2": "I am Maren."}
    assert "no column names in the first line, so the columns are numbered" in table.what


def test_columns_by_other_names_and_the_source_line_says_how_it_was_read(tmp_path):
    content = {"a.csv": "Frage;Die Antwort;Jahr\nWer?;Ich war es.;1999\nWas?;Ein Hund war es.;2001\n"}
    with pytest.raises(
        DataError, match=r"have the columns Frage, Die Antwort, Jahr.*output=ANSWERS.*spaces in double quotes"
    ):
        prepare_rows(tmp_path / "a", family("ChatML"), content)
    data = prepare_rows(
        tmp_path / "b", family("ChatML"), content, columns='instruction=Frage output="Die Antwort"'
    )
    assert data.examples[0].text.startswith("<|im_start|>user\nWer?<|im_end|>\n<|im_start|>assistant\nIch war es.")
    assert data.report.sources[0].what == (
        'rows (columns separated by a semicolon, " as the quote character, column names in the first line): '
        "questions and answers, "
        "because the rows have the columns 'instruction' and 'output'"
    )
    with pytest.raises(
        DataError, match=r"a\.csv has no column Antwort, which you entered .+ columns: Die Antwort, Frage, Jahr"
    ):
        prepare_rows(tmp_path / "c", family("ChatML"), content, columns="instruction=Frage output=Antwort")


def test_chats_in_a_table(tmp_path):
    """As pandas writes them, and as JSON."""
    chat = [
        {"role": "system", "content": ""},
        {"role": "user", "content": "It's?"},
        {"role": "assistant", "content": "No."},
    ]
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["id", "messages"], [1, str(chat)], [2, json.dumps(chat)]])
    data = prepare_rows(tmp_path, family("ChatML"), {"a.csv": buffer.getvalue()})
    first, second = (example.text for example in data.examples)
    assert first == second == "<|im_start|>user\nIt's?<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n"
    assert "lists of messages as text in the column 'messages'" in data.report.sources[0].what


def test_a_template_for_a_table(tmp_path):
    content = {"a.csv": "name,year\nMaren Tull the ferrywoman,1999\nThe goat,2001\n"}
    data = prepare_rows(tmp_path, family("ChatML"), content, format="In %year% there was %name%.")
    assert data.examples[1].text == "In 2001 there was The goat.<|im_end|>"


def make_database(tmp_path, script, name="a.db"):
    path = tmp_path / name
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.commit()
    connection.close()
    return path


TWO_TABLES = """
create table people (id integer primary key, name text); insert into people (name) values ('x');
create table "the talks" (question text, answer text, year integer);
insert into "the talks" values ('a', 'b', 1), ('c', 'd', 2);
"""


def read_database(path, columns_setting=""):
    return [dict(row.columns) for row in sqlite_rows.read_table(path, path.name, columns(columns_setting)).rows()]


def test_the_table_whose_columns_are_known_or_the_one_that_is_asked_for(tmp_path):
    path = make_database(tmp_path, TWO_TABLES)
    assert read_database(path) == [
        {"question": "a", "answer": "b", "year": 1},
        {"question": "c", "answer": "d", "year": 2},
    ]
    assert read_database(path, "table=people") == [{"id": 1, "name": "x"}]
    assert read_database(path, 'SELECT answer AS text FROM "the talks" WHERE year > 1;') == [{"text": "d"}]
    assert read_database(path, "WITH t AS (SELECT 'q' AS text) SELECT upper(text) AS text FROM t") == [
        {"text": "Q"}
    ]
    with pytest.raises(DataError, match=r"has no table 'x'\. Its tables: people, the talks"):
        read_database(path, "table=x")


def test_several_tables_are_named(tmp_path):
    path = make_database(
        tmp_path, "create table a (text text); create table b (text text); create view c as select 1 as x;"
    )
    with pytest.raises(
        DataError,
        match=(
            r"has several tables: a \(text\); b \(text\). Choose a table under Column names, for example table=a"
        ),
    ):
        read_database(path)


@pytest.mark.parametrize(
    "statement",
    [
        "WITH x AS (SELECT 1) DELETE FROM people",
        "WITH x AS (SELECT 1) INSERT INTO people (name) SELECT 'y'",
        "WITH x AS (SELECT 1) UPDATE people SET name = 'y'",
        "SELECT 1; DELETE FROM people",
        "SELECT load_extension('x')",
        "SELECT * FROM pragma_user_version",
    ],
)
def test_statements_that_do_more_than_read_are_refused(tmp_path, statement):
    path = make_database(tmp_path, TWO_TABLES)
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"a\.db: "):
        read_database(path, statement)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_a_database_that_writes_ahead_is_read_without_a_file_beside_it(tmp_path):
    path = make_database(
        tmp_path, "pragma journal_mode = wal; create table a (text text); insert into a values ('b');"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]
    assert read_database(path) == [{"text": "b"}]
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.parametrize(
    ("columns_setting", "message"),
    [
        ("instruction", "'instruction' can't be parsed"),
        ("a='b", "is missing a quotation mark"),
        ("=b", "'=b' can't be parsed"),
    ],
)
def test_columns_that_cannot_be_understood(tmp_path, columns_setting, message):
    with pytest.raises(Exception, match=message):
        prepare_rows(tmp_path, family("ChatML"), {"a.csv": "text\nab cd ef\n"}, columns=columns_setting)


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
    with pytest.raises(
        sqlite3.OperationalError, match="unable to open database file"
    ):  # and not: invalid authority
        sqlite3.connect(f"{address}?mode=ro", uri=True)
