"""Rows as people have them: JSON, CSV, databases and exports of chats; a reason for each broken row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from training_pro.core.errors import DataError
from training_pro.data.readers import Row
from training_pro.tests.data.readers import reading
from training_pro.tests.data.readers.reading import make_database, read_columns, read_table, refusal, write
from training_pro.tests.rowing import family, learned_text, prepare_rows

one_process = reading.one_process  # for all tests here
PAIR = {"instruction": "a", "output": "b"}
TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


STORY = {"text": "A long story. " * 9, "authors": [{"name": "Jo"}, {"name": "Al"}]}
SOURCED, TOOLED = {**PAIR, "sources": [{"url": "c"}]}, {"messages": TALK, "tools": [{"name": "c"}]}


@pytest.mark.parametrize(
    ("value", "columns", "only"),
    [
        ([PAIR, PAIR], [PAIR, PAIR], ""),
        ({"data": [PAIR, PAIR]}, [PAIR, PAIR], ""),
        ({"version": 1, "data": {"train": [PAIR, PAIR], "extra": [{"x": 1}]}}, [PAIR, PAIR], "data.train"),
        ({"instruction": ["a", "a"], "output": ["b", "b"]}, [PAIR, PAIR], ""),
        ({"instruction": {"0": "a", "1": "a"}, "output": {"0": "b", "1": "b"}}, [PAIR, PAIR], ""),
        (["one"], [{"text": "one"}], ""),
        ([TALK], [{"messages": TALK}], ""),
        ({"messages": TALK}, [{"messages": TALK}], ""),
        (STORY, [STORY], ""),
        (SOURCED, [SOURCED], ""),
        ({"text": "About these rows, at length. " * 9, "data": [PAIR]}, [PAIR], "data"),
        ({"user": "bob", "assistant": "Kim", "conversations": [TALK]}, [{"messages": TALK}], "conversations"),
        (TOOLED, [TOOLED], ""),
        ({"story": "Lamps", "parts": [{"text": "It was late."}]}, [{"text": "It was late."}], "parts"),
    ],
)
def test_json_has_its_rows_at_any_depth(tmp_path, value, columns, only):
    table, rows = read_table(write(tmp_path / "a.json", json.dumps(value)))
    assert [dict(row.columns) for row in rows] == columns
    assert ([row.number for row in rows], table.unit) == ([*range(1, len(rows) + 1)], "row")
    assert [note.split("'")[1] for note in table.notes] == [only] * bool(only)


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
            "a.json, line 2: at column 8 (\"'b'}]\"): expecting value. Put keys and texts",
        ),
        ('[{"a": "C:\\dir"}]', r"invalid \escape. Put keys and texts in straight double quotes"),
        (" \n ", "a.json is empty. Add rows to it, or remove it from the dataset."),
        ("[]", "a.json has no rows."),
        ("5", "a.json contains a number (5). It must contain a JSON array of rows."),
        (b"\x00" * 5000, "a.json is not text"),
        ('[{"a": "b"}] [{"a": "c"}]', "extra data. Put keys"),
        ('{"data": {"first_mes": "a", "mes_example": "", "book": [{"text": "b"}]}}', "is a character card."),
    ],
)
def test_json_that_cannot_be_read(tmp_path, content, message):
    assert message in refusal(tmp_path / "a.json", content)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": "b"', "ends too early"),
        ("{", "ends too early. Each row must be a complete JSON object on one line."),
        ("{'a': 'b'}", "at column 2 (\"'a': 'b'}\"): expecting property name enclosed in double quotes. Put"),
        ("null", "is null. Each row must be a JSON object"),
        ("[" * 100_000, "is nested too deeply"),
        (b'{"a": ' + b"1" * 5_000 + b"}", "contains a number with thousands of digits"),
        (b'{"a": "\xe9"}', "byte 8 is not UTF-8"),
    ],
)
def test_a_broken_line_costs_only_its_row(tmp_path, line, message):
    content = b'{"a": "b"}\n' + (line if isinstance(line, bytes) else line.encode()) + b'\n{"a": "c"}\n'
    _, (first, second, third) = read_table(write(tmp_path / "a.jsonl", content))
    assert (first.problem, third.problem, second.number, dict(second.columns)) == ("", "", 2, {})
    assert message in second.problem


def read_csv(tmp_path, content):
    table, rows = read_table(write(tmp_path / "a.csv", content))
    return table.what, [dict(row.columns) for row in rows]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ('\ufeffFrage;Antwort;\r\n"Was ""ist"" das?";"Ein\nBaum; groß";\r\n;;\r\n',
         {"Frage": 'Was "ist" das?', "Antwort": "Ein\nBaum; groß"}),
        ('sep=;\r\nquestion;answer\r\n"a, b";c\r\n', {"question": "a, b", "answer": "c"}),
        ("question;answer\r\nWie heißt du?;Käthe, schön.\r\n".encode("cp1252"),
         {"question": "Wie heißt du?", "answer": "Käthe, schön."}),
        ("question\tanswer\r\nä\tö\r\n".encode("utf-16"), {"question": "ä", "answer": "ö"}),
        ('text\nFirst, with a comma\n"Second, quoted"\n', {"text": "First, with a comma"}),
        ('question\tanswer\nWho said "no"?\t"Yes" he said.\n',
         {"question": 'Who said "no"?', "answer": '"Yes" he said.'}),
        ("question\tanswer\n" + "'Where?'\t'Gone,' said Tom.\n" * 5,
         {"question": "'Where?'", "answer": "'Gone,' said Tom."}),
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


@pytest.mark.parametrize("later", ['question 900,He said "no" and left.', 'question 900,"Two\nlines"', "a,b"])
def test_a_quote_that_is_never_closed_is_named_with_its_line(tmp_path, later):
    lines = [f"question {number},answer {number}" for number in range(1500)]
    lines[300] = 'question 300,"It was late when he came.'
    lines[900] = later
    message = refusal(tmp_path / "a.csv", "\n".join(["question,answer", *lines]))
    assert message.startswith('a.csv, line 302: an opening " has no closing "')


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
    assert "user\nWer?<|im_end|>\n<|im_start|>assistant\nIch war es." in data.examples[0].text
    assert data.report.sources[0].what.endswith("because the rows have the columns 'instruction' and 'output'")


TWO_TABLES = """pragma journal_mode = wal;
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
        "SELECT 1; DELETE FROM people",
        "SELECT * FROM pragma_user_version",
    ],
)
def test_statements_that_do_more_than_read_are_refused(tmp_path, statement):
    path = make_database(tmp_path / "a.db", TWO_TABLES)
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"a\.db: "):
        read_columns(path, statement)
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["a.db"]


def node(parent: str | None, role: str = "", *parts: Any, **fields: Any) -> dict[str, Any]:
    """A message of a ChatGPT export; without a role, the empty root."""
    if not role:
        return {"parent": parent, "message": None, "children": []}
    content = fields.pop("content", {"content_type": "text", "parts": list(parts)})
    message = {"author": {"role": role}, "content": content, "recipient": "all", "metadata": {}, **fields}
    return {"parent": parent, "message": message, "children": []}


ENTITY = '\ue200entity\ue202["knot", "knot", 0]\ue201'
LINK = "\ue200url\ue202loop\ue202https://example.org\ue201"


def chatgpt(last: str = "e", **nodes: Any) -> dict[str, Any]:
    """A conversation with an abandoned branch, a tool, a picture and thoughts."""
    mapping = {
        "r": node(None),
        "s": node("r", "system", ""),
        "h": node("s", "user", "I sail.", metadata={"is_visually_hidden_from_conversation": True}),
        "a": node("h", "user", {"content_type": "image_asset_pointer"}, "What is a bowline?"),
        "b": node("a", "assistant", "A given up answer."),
        "t": node("a", "assistant", content={"content_type": "thoughts", "thoughts": []}),
        "c": node("t", "assistant", "search('bowline')", recipient="web"),
        "u": node("c", "tool", "Results."),
        "d": node("u", "assistant", f"A {ENTITY} \ue200cite\ue202turn0\ue201 with a {LINK}."),
        "e": node("d", "assistant", "It does not slip."),
        **nodes,
    }
    return {"title": "Knots", "mapping": mapping, "current_node": last}


def claude_conversation(*messages: Any) -> dict[str, Any]:
    return {"uuid": "1", "name": "Knots", "chat_messages": list(messages)}


def claude_message(sender: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    return {"sender": sender, "text": "shown", "content": [*parts], "attachments": [], "files": [], **fields}


def text_part(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


KNOTS = [{"role": "user", "content": "What is a bowline?"}]
BOTH = [*KNOTS, {"role": "assistant", "content": "A knot with a loop.\n\nIt does not slip."}]


def read_rows(tmp_path, content: Any) -> list[Row]:
    return read_table(write(tmp_path / "conversations.json", json.dumps(content)))[1]


def left_out_counts(row: Row) -> dict[str, int]:
    return {kind: count for kind, count in row.left_out.items() if count}


def test_the_branch_that_ends_in_the_current_node(tmp_path):
    first, second = read_rows(tmp_path, [chatgpt(), chatgpt("b")])
    assert first.columns == {"messages": BOTH} and not first.without_reply
    counts = {"system messages": 2, "thoughts": 1, "tool messages": 2, "citation marks": 1}
    assert left_out_counts(first) == {**counts, "parts that are not text": 1}
    assert second.columns["messages"][1]["content"] == "A given up answer."


def test_claude(tmp_path):
    question = claude_message("human", text_part("What is a bowline?"), attachments=[{"extracted_content": "..."}])
    thought, tool_use = {"type": "thinking", "thinking": "Hm."}, {"type": "tool_use", "input": {}}
    parts = [thought, text_part("A knot with a loop."), tool_use, text_part("It does "), text_part("not slip.")]
    answer = claude_message("assistant", *parts)
    [row] = read_rows(tmp_path, [claude_conversation(question, answer)])
    assert row.columns == {"messages": BOTH}
    assert left_out_counts(row) == {"attachments": 1, "thoughts": 1, "tool messages": 1}
    without_content = {"sender": "assistant", "text": "And it opens again."}
    [row] = read_rows(tmp_path, claude_conversation(question, answer, without_content))
    assert row.columns["messages"][1]["content"].endswith("slip.\n\nAnd it opens again.")


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"mapping": [], "current_node": "e"}, "'mapping' is a list. It must be a JSON object"),
        (chatgpt("z"), "message 'z' is not in 'mapping', or is"),
        (chatgpt(d=node("y", "assistant", "A")), "message 'y' is not in 'mapping', or is"),
        (chatgpt(d={"parent": "a", "message": {}}), "message 'd' has no role under 'author'."),
        (chatgpt(d=node("a", "assistant", content="A")), "the content of message 'd' is a string."),
        ({"mapping": chatgpt()["mapping"]}, "'current_node' is missing, so"),
        ({"title": "Knots"}, "'mapping' is null. It must be a JSON object."),
    ],
)
def test_broken_conversations_are_named(tmp_path, broken, problem):
    first, second = read_rows(tmp_path, [chatgpt(), broken])
    assert not first.problem and second.problem.startswith(problem) and second.problem


def test_check_says_what_was_read_and_what_was_left_out(tmp_path):
    chatml, files = family("ChatML"), {"conversations.json": [chatgpt(), chatgpt("a"), chatgpt("b")]}
    data = prepare_rows(tmp_path / "a", chatml, files)
    [source] = data.report.sources
    assert source.what.startswith("rows (a data export from ChatGPT): chats, because")
    assert (source.rows.rows, source.rows.without_reply, source.examples) == (3, 1, 2)
    assert (
        "Dropped from conversations: citation marks (1), parts that are not text (3), system messages (6), "
        "thoughts (1), tool messages (2)."
    ) in source.notes
    assert learned_text(chatml, data.examples[0]) == "A knot with a loop.\n\nIt does not slip.<|im_end|>"
    data = prepare_rows(tmp_path / "b", chatml, {"conversations.json": [chatgpt(), chatgpt("z")]})
    assert data.report.problems[0].startswith("conversations.json, conversation 2: message 'z' is not in")
    with pytest.raises(DataError, match="no conversation has a reply from the assistant"):
        prepare_rows(tmp_path / "c", chatml, {"conversations.json": [claude_conversation()] * 2})
