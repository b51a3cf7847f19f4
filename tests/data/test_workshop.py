"""Cleaning, splitting and converting: nothing is dropped that should stay, nothing lost without being counted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from training_pro.core.errors import DataError
from training_pro.data.workshop import DEFAULT, Dataset, clean_dataset, convert_dataset, split_dataset
from training_pro.data.workshop.cleaning import check_recipe
from training_pro.settings.parsing import training_settings

REFUSALS = ("i'm sorry, but i can't",)


def rows_file(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(row if isinstance(row, str) else f"{json.dumps(row)}\n" for row in rows))
    return path


def pair(number, reply="Because it rained for {} days."):
    return {"instruction": f"Why number {number}?", "output": reply.format(number)}


def test_each_line_of_a_text_that_is_not_wrapped_is_a_paragraph_and_what_is_said_in_it_is_no_refusal(tmp_path):
    lines = [
        "Chapter 1",
        "",
        "\"I'm sorry, but I can't,\" she said, and closed the old green door.",
        "The end of it.",
    ]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert len(list(Dataset(tmp_path / "a.txt").records())) == 3
    result = clean_dataset(Dataset(tmp_path / "a.txt"), DEFAULT, REFUSALS, tmp_path / "b.txt")
    assert result.kept == 3 and (tmp_path / "b.txt").read_text().strip() == "\n".join(lines)
    wrapped = "The old man went on to the\nhouse. He said that it was\nlate.\n\nThe end."
    (tmp_path / "a.txt").write_text(wrapped)
    assert len(list(Dataset(tmp_path / "a.txt").records())) == 2
    path = rows_file(tmp_path, pair(1, "I’m sorry, but I can’t do number {}."), pair(2))
    assert clean_dataset(Dataset(path), DEFAULT, REFUSALS, None).dropped["refusals"] == 1


def test_a_language_that_is_not_known_is_refused():
    with pytest.raises(DataError, match=r"da can't be told apart\. Known: "):
        check_recipe({"languages": ["en", "da"]}, "a recipe")


def test_rows_without_a_reply_are_left_out_of_chats_and_preferences_are_refused(tmp_path):
    path = rows_file(tmp_path, pair(1), {"instruction": "What?", "output": ""})
    result = convert_dataset(Dataset(path), None, tmp_path / "chats.jsonl")
    assert (result.kept, result.dropped) == (1, {"without a reply": 1})
    path = rows_file(tmp_path, {"prompt": "A?", "good": "b", "bad": "c"})
    named = training_settings({"name": "a", "data": ["a"], "columns": "chosen=good rejected=bad"})
    with pytest.raises(DataError, match="Train on it as it is"):
        convert_dataset(Dataset(path, named), "messages", tmp_path / "pairs.jsonl")
    path = rows_file(tmp_path, {"prompt": "A?", "chosen": "b", "rejected": "c"})
    with pytest.raises(DataError, match="Train on it as it is"):
        convert_dataset(Dataset(path), "messages", tmp_path / "pairs.jsonl")


def test_messages_keep_what_a_run_reads_of_them_besides_their_words(tmp_path):
    call = {"from": "gpt", "value": None, "tool_calls": [{"function": {"name": "find", "arguments": {}}}]}
    talk = [{"from": "human", "value": "Hi"}, call, {"from": "gpt", "value": "No.", "weight": 0}]
    path = rows_file(
        tmp_path,
        {"conversations": [*talk, {"from": "gpt", "value": ""}]},  # a run can't read this one
        {
            "conversations": [*talk, {"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}],
            "tools": [{"name": "find"}],
        },
    )
    assert convert_dataset(Dataset(path), "messages", tmp_path / "chats.jsonl").kept == 1
    row = json.loads((tmp_path / "chats.jsonl").read_text(encoding="utf-8"))
    assert row["tools"] == [{"name": "find"}] and row["messages"][1]["tool_calls"] == call["tool_calls"]
    assert [message.get("train") for message in row["messages"]] == [None, None, False, None, None]


def test_a_cleaned_copy_has_no_column_as_it_was(tmp_path):
    named = training_settings({"name": "a", "data": ["a"], "columns": "instruction=Frage output=Antwort"})
    path = rows_file(tmp_path, {"Frage": "Who?", "Antwort": "It is me. I am John Doe.", "output": "old"})
    recipe = replace(DEFAULT, phrases=("John Doe",), phrases_drop="sentence")
    clean_dataset(Dataset(path, named), recipe, (), tmp_path / "clean.jsonl")
    row = {"output": "It is me.", "instruction": "Who?"}
    assert json.loads((tmp_path / "clean.jsonl").read_text()) == row


def test_files_whose_rows_differ_by_a_column_that_a_row_need_not_have_are_cleaned_together(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    rows_file(folder, pair(1)).rename(folder / "a.jsonl")
    rows_file(folder, {**pair(2), "input": "x"}).rename(folder / "b.jsonl")
    assert clean_dataset(Dataset(folder), DEFAULT, (), tmp_path / "clean.jsonl").kept == 2
    rows_file(folder, {"odd": "y", "more": "z"}).rename(folder / "c.jsonl")
    with pytest.raises(DataError, match="unknown columns"):
        clean_dataset(Dataset(folder), DEFAULT, (), tmp_path / "all.jsonl")


def test_unreadable_rows_are_counted_by_a_split(tmp_path):
    path = rows_file(tmp_path, *(pair(number) for number in range(20)), "{broken\n")
    result = split_dataset(Dataset(path), 0.2, 1, tmp_path / "parts")
    assert (result.rows, result.kept, result.dropped["unreadable"]) == (21, 20, 1)
