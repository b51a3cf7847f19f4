"""Rows from a file to the report: custom formats, truncation, and rows that cannot be read."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import DataError
from training_pro.data.rows import detect_prompt_style
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import (
    FAMILIES,
    LLAMA_3,
    LLAMA_3_TOKENS,
    chat,
    family,
    learned_text,
    prepare_rows,
    with_template,
)

CHATML = family("ChatML")
MINE = '{"title,body": "# %title%\\n\\n%body%"}'


def pair(answer="No.", question="Hi"):
    return {"instruction": question, "output": answer}


def words(count):
    return " ".join(["word"] * count)


def test_the_report_of_rows(tmp_path):
    data = prepare_rows(tmp_path, CHATML, {"rows.jsonl": [chat("Hi", "No."), chat("Hi", "No, never.")]})
    (source,) = data.report.sources
    assert source.what == "rows: chats, because the rows have the column 'messages'"
    assert source.notes == ("Chats are formatted with the model's own chat template.",)
    assert (source.rows.rows, source.examples, data.report.examples) == (2, 2, 2)
    lengths = [len(example.ids) for example in data.examples]
    assert (source.tokens, source.lengths.longest, source.lengths.second) == (sum(lengths), lengths[1], lengths[0])
    learned = sum(int((example.labels != -100).sum()) for example in data.examples)
    assert (source.trained_tokens, data.report.trained_tokens) == (learned, learned)
    assert data.report.verdict == "ready" and "rows: chats" in data.report.text()


def test_the_automatic_cutoff(tmp_path):
    def cutoff(folder, files, **more):
        data = prepare_rows(tmp_path / folder, CHATML, files, too_long="cut_end", **more)
        assert data.resolved.cutoff == data.report.cutoff
        return data.report.cutoff, data.report.longest

    story = {"story.txt": "A story. " * 50}
    assert cutoff("a", {"rows.json": [pair()]})[0] == 32
    auto, longest = cutoff("b", {"rows.json": [pair(words(40))]})
    assert auto == -(-longest // 32) * 32
    assert cutoff("c", {"rows.json": [pair(words(3000))]})[0] == 2048
    assert cutoff("d", {"rows.json": [pair()], **story})[0] == cutoff("e", story)[0] == 256
    assert cutoff("f", {"rows.json": [pair()], **story}, config={"max_position_embeddings": 128})[0] == 128


@pytest.mark.parametrize(
    ("way", "count", "begins", "ends"),
    [("drop", 39, "<|im_start|>", True), ("cut_end", 40, "<|im_start|>", False), ("cut_start", 40, "word", True)],
)
def test_rows_too_long_are_left_out_or_cut(tmp_path, way, count, begins, ends):
    rows = [pair(f"{n} {words(n)}") for n in (*range(1, 20), *range(1, 21), 200)]
    data = prepare_rows(tmp_path, CHATML, {"rows.json": rows}, cutoff=128, too_long=way)
    last = data.examples[count - 1]
    assert (len(data.examples), data.report.problems, len(last.ids) == 128) == (count, (), way != "drop")
    assert last.text.lstrip().startswith(begins) and last.text.endswith("<|im_end|>\n") == ends
    assert ("1 too long (dropped)" in data.report.text()) == (way == "drop")


def test_rows_too_long_are_split_into_pieces_that_begin_with_bos_where_the_row_does(tmp_path, place):
    files, split = {"rows.json": [chat("Hi", "No.", "Go on.", words(300), "Bye", "Now.")]}, {"too_long": "split"}
    (whole,) = prepare_rows(tmp_path / "whole", CHATML, files, cutoff=2048).examples
    pieces = list(prepare_rows(tmp_path / "split", CHATML, files, cutoff=128, **split).examples)
    for part in ("ids", "loss_mask"):
        joined = [value for piece in pieces for value in getattr(piece, part).tolist()]
        assert joined == getattr(whole, part).tolist()
    assert learned_text(CHATML, pieces[0]) == "No.<|im_end|>" and "Hi" not in pieces[1].text
    adds_bos = with_template(place.host().card().tokenizer, LLAMA_3, LLAMA_3_TOKENS)
    examples = prepare_rows(tmp_path / "bos", adds_bos, files, cutoff=64, **split).examples
    assert {int(example.ids[0]) for example in examples} == {adds_bos.bos}
    assert max(len(example.ids) for example in examples) == 64


@pytest.mark.parametrize("name", FAMILIES)
def test_a_long_chat_is_split_into_pieces_that_are_as_their_exchanges_alone(tmp_path, name):
    """The first one with the greeting, and all with the system message, which Mistral has in the question."""
    tokenizer, contents = family(name), [f"{n} {words(20)}" for n in range(8)]
    system, greeting = {"role": "system", "content": "Be."}, {"role": "assistant", "content": "A.", "train": False}
    whole, first = ({"messages": [system, greeting, *chat(*c)["messages"]]} for c in (contents, contents[:4]))
    files = {"a.json": [whole], "b.json": [first], "c.json": [chat(*contents[4:], system="Be.")]}
    _, *alone = prepare_rows(tmp_path / "alone", tokenizer, files, cutoff="auto").examples
    values = {"data": ["a.json"], "cutoff": max(len(example.ids) for example in alone) + 9, "too_long": "split"}
    data = prepare_rows(tmp_path / "split", tokenizer, files, **values)
    for piece, example in zip(data.examples, alone, strict=True):
        assert piece.ids.tolist()[: len(example.ids)] == example.ids.tolist()
        assert learned_text(tokenizer, piece) == learned_text(tokenizer, example)
    assert (data.report.stops.stopping, data.report.stops.of) == (2, 2)


def test_too_many_too_long_stop_a_run(tmp_path):
    rows = [pair(words(n)) for n in (1, 2, 3, 200)]
    (problem,) = prepare_rows(tmp_path / "a", CHATML, {"rows.json": rows}, cutoff=64).report.problems
    assert problem.startswith(
        "rows.json: 1 of 4 rows (25%) is longer than the cutoff of 64 tokens. The longest row"
    )
    chats = [chat("Hi", "No."), chat("Hi", "No.", "Why?", words(200))]
    (problem,) = prepare_rows(tmp_path / "chats", CHATML, {"a.json": chats}, cutoff=64).report.problems
    assert "Raise the cutoff, turn on 'Split chats into exchanges', or choose" in problem
    data = prepare_rows(tmp_path / "b", CHATML, {"rows.json": rows}, cutoff=64, too_long="drop_any")
    assert (data.report.problems, len(data.examples)) == ((), 3)
    rows = [pair(), pair("No.", words(200))]
    data = prepare_rows(tmp_path / "c", CHATML, {"rows.json": rows}, cutoff=64, too_long="cut_end")
    assert (len(data.examples), data.report.sources[0].rows.nothing_learned) == (1, 1)


BAD, DEEP = {"instruction": "a"}, {"instruction": "a", "deep": json.loads("[" * 600 + "]" * 600)}


def test_broken_rows_stop_a_run_and_the_first_ones_are_listed(tmp_path):
    lines = "\n".join([json.dumps(pair()), "{", json.dumps(BAD)])
    report = prepare_rows(tmp_path / "a", CHATML, {"rows.jsonl": lines}).report
    assert report.verdict == "not ready" and report.problems[1:] == (
        "rows.jsonl, line 3: the row has no 'output'; its columns are: instruction.",
    )
    problems = prepare_rows(tmp_path / "b", CHATML, {"rows.json": [pair(), *[BAD] * 25]}).report.problems
    assert len(problems) == 11 and problems[-1] == "rows.json: 15 more rows can't be read."
    lines = '{"text": "' + "x" * 6_000_000 + '"}\n{"text": "good"}'
    (problem, *_) = prepare_rows(tmp_path / "c", CHATML, {"rows.jsonl": lines}).report.problems
    assert "line 1: the row has 6,000,000 characters" in problem
    tool = {"messages": [{"role": "tool", "content": "x"}, {"role": "assistant", "content": "y"}]}
    rows = [chat("Hi", "No."), tool]
    (problem,) = prepare_rows(tmp_path / "d", family("Mistral"), {"rows.json": rows}).report.problems
    assert problem.startswith(
        "rows.json, row 2: the row is rejected by the model's own chat template: Only user and"
    )


def test_broken_rows_may_be_skipped_up_to_a_tenth(tmp_path):
    rows = [*[pair()] * 18, BAD, DEEP]
    data = prepare_rows(tmp_path / "a", CHATML, {"rows.json": rows}, bad_rows="skip")
    assert (data.report.problems, len(data.examples)) == ((), 18)
    assert "2 rows can't be read and were skipped." in data.report.sources[0].notes
    data = prepare_rows(tmp_path / "b", CHATML, {"rows.json": rows[1:]}, bad_rows="skip")
    assert "2 of 19 rows can't be read, which is more than a tenth." in data.report.problems[-1]
    *_, last = prepare_rows(tmp_path / "c", CHATML, {"rows.json": rows}).report.problems
    assert last == "Invalid rows: 2 of 20 rows can't be read. Fix them, or choose to skip them."


BLANK = {"instruction": "a", "input": " ", "output": "b"}


@pytest.mark.parametrize(
    ("format", "row", "text"),
    [
        ("mine", {"title": "One", "body": "Text.", "id": 4}, "# One\n\nText."),
        ("vicuna-format", {" OUTPUT": "b", "Instruction ": "a"}, "USER: a\nASSISTANT: b"),
        ("%QUESTION% is %answer%", {"Question": "a", " Answer": "b"}, "a is b"),
        ('{"instruction,input,output": "%input%", "instruction,output": "%output%"}', BLANK, "b"),
    ],
)
def test_formats_of_columns(tmp_path, format, row, text):
    files = {"r.json": [row], "../formats/mine.json": MINE if format == "mine" else format}
    name = "mine" if format.startswith("{") else format
    data = prepare_rows(tmp_path, CHATML, files, data=["r.json"], format=name)
    assert data.examples[0].text == f"{text}<|im_end|>"


def test_a_chosen_format_is_that_of_all_rows_and_takes_numbers(tmp_path):
    row = {"instruction": "Fever?", "input": 38.4, "output": "fever"}
    data = prepare_rows(tmp_path / "a", CHATML, {"a.json": [row, row]}, format="alpaca-format")
    assert "38.4" in data.examples[0].text
    settings = training_settings({"name": "a", "data": ["a.json"], "format": "alpaca-format"})
    assert detect_prompt_style(settings, make_folders(tmp_path / "b"), CHATML, data.examples).kind == "format"


@pytest.mark.parametrize(("format", "used"), [("alpaca-format", ""), ("ChatML-format", "Be."), ("auto", "")])
def test_a_system_message_that_has_no_place_is_noted_and_no_part_of_the_prompt(tmp_path, format, used):
    row, values = {"prompt": "Hi", "completion": "No."}, {"format": format, "system": "Be."}
    data = prepare_rows(tmp_path / "a", CHATML, {"a.json": [row]}, **values)
    settings = training_settings({"name": "a", "data": ["a.json"], **values})
    assert detect_prompt_style(settings, make_folders(tmp_path / "b"), CHATML, data.examples).system == used
    assert any("system message is not used" in each for each in data.report.sources[0].notes) == (not used)


@pytest.mark.parametrize("mine", ["[", "[]", "{}", '{"a": 5}', '{"a": "no place"}', None])
def test_a_broken_or_missing_format_is_refused(tmp_path, mine):
    files = {"r.json": [pair()]} | ({"../formats/mine.json": mine} if mine else {})
    message = r"mine[.]json" if mine else r"there is no format named 'mine'[.] Available: auto, chat, text, alpaca"
    with pytest.raises(DataError, match=f"Data format: {message}"):
        prepare_rows(tmp_path, CHATML, files, data=["r.json"], format="mine")


def test_windows_line_ends_inside_rows_are_normalized(tmp_path):
    """Programs on Windows write them into cells and JSON: the learned tokens are the same on all systems."""
    for number, row in enumerate((pair("One.\nTwo.\n", "Say\nit"), chat("Hi\nthere", "No.\nNever."))):
        unix = prepare_rows(tmp_path / f"{number}a", CHATML, {"rows.json": [row]})
        windows_row = json.loads(json.dumps(row).replace("\\n", "\\r\\n"))
        windows = prepare_rows(tmp_path / f"{number}b", CHATML, {"rows.json": [windows_row]})
        assert windows.examples.digest() == unix.examples.digest()
    csv = b'"question","answer"\r\n"Say\r\nit","One.\r\nTwo."\r\n'
    (example,) = prepare_rows(tmp_path / "c", CHATML, {"rows.csv": csv}).examples
    assert "Say\nit" in example.text and "One.\nTwo." in example.text and "\r" not in example.text
