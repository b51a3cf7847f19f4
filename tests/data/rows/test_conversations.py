"""Conversations of rows: which columns make them, their order, and pairs that stay within one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from training_pro.data import batch_order
from training_pro.tests.rowing import as_json, chat, family, learned_text, prepare_rows

CHATML = family("ChatML")
PAIRS = {"batching": "length_then_order", "switch_pairs": True, "batch_size": 2}
HYBRID = {"eval_share": 0.1, "batching": "length_then_order"}


def question(conversation, turn):
    return {"instruction": f"Question {turn} of {conversation}?", "output": f"Reply {turn} of {conversation}."}


def exchange(conversation, turn, **columns):
    return {"conversation_id": conversation, "turn": turn, **question(conversation, turn), **columns}


def reply(conversation, turn):
    return f"Reply {turn} of {conversation}.<|im_end|>"


def replies(data):
    return [learned_text(CHATML, example) for example in data.examples]


def pairs_of(data):
    """The trained texts of each pair."""
    examples, texts = data.examples, replies(data)
    couples, _ = batch_order.find_pairs(np.arange(len(examples)), examples.successors(), examples.lengths(), 0)
    return [tuple(texts[number] for number in couple) for couple in couples]


@pytest.mark.parametrize("seed", range(10))
def test_in_any_order_of_the_file_a_conversation_is_whole_and_no_pair_crosses_two(tmp_path, seed):
    rng = random.Random(seed)
    rows = [exchange(n, turn) for n in range(rng.randint(1, 6)) for turn in range(3)]
    rng.shuffle(rows)
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows})
    names = dict.fromkeys(row["conversation_id"] for row in rows)  # as the file begins them
    assert replies(data) == [reply(name, turn) for name in names for turn in range(3)]
    assert pairs_of(data) == [(reply(name, 0), reply(name, 1)) for name in names]


def successors(root, rows, **values):
    return prepare_rows(root, CHATML, {"a.jsonl": rows}, **values).examples.successors()


def test_a_row_that_is_dropped_or_cannot_be_read_ends_the_pairs_around_it(tmp_path):
    rows = [exchange("x", 1), exchange("y", 1), exchange("x", 2, output=""), exchange("x", 3), exchange("y", 2)]
    rows += [exchange("z", n) for n in range(20)]
    assert successors(tmp_path / "a", rows, bad_rows="skip")[:4] == [-1, -1, 3, -1]  # x1, x3, y1, y2
    lines = as_json("a.jsonl", [exchange("x", n) for n in range(20)]).split("\n")
    broken = "\n".join([*lines[:2], "{", *lines[2:]])
    assert successors(tmp_path / "b", broken, bad_rows="skip") == [1, -1, *range(3, 20), -1]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"conv_id": 7, "Turn_Index": ("2", "1")}, "'conv_id', 'Turn_Index'"),
        ({"conversation": "a", "turn": (2, 1)}, "'conversation', 'turn'"),
        ({"message_id": ("b", "a"), "parent_id": ("a", None)}, "'message_id', 'parent_id'"),
        ({"conversation_id": "a\nb"}, ""),
        ({"id": ("b", "a"), "turn": (2, 1)}, ""),
        ({"conversation_id": None, "turn": (2, 1)}, ""),
        ({}, ""),
    ],
)
def test_columns_that_make_conversations(tmp_path, columns, names):
    of_row = [{k: v[n] if isinstance(v, tuple) else v for k, v in columns.items()} for n in (0, 1)]
    rows = [{**question("x", turn), **more} for turn, more in zip((2, 1), of_row, strict=True)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows})
    assert any(f"found by the columns {names}." in note for note in data.report.sources[0].notes) == bool(names)
    assert replies(data) == [reply("x", turn) for turn in ((1, 2) if names else (2, 1))]


def test_circles_and_gaps_lose_no_row(tmp_path):
    rows = [{"id": "a", "parent_id": "b"}, {"id": "b", "parent_id": "a"}, {"id": "c", "parent_id": "c"}]
    rows = [{**row, **question("x", n)} for n, row in enumerate(rows)]
    assert successors(tmp_path / "a", rows) == [1, -1, -1]
    assert successors(tmp_path / "b", [exchange("x", turn) for turn in (1, 1, 2)]) == [-1, 2, -1]
    rows = [exchange(name, 0) for name in ("a", None, "a", None)]
    data = prepare_rows(tmp_path / "c", CHATML, {"a.jsonl": rows})
    assert replies(data) == [reply(name, 0) for name in ("a", "a", None, None)]


def test_split_chats_into_exchanges(tmp_path):
    roles = ("system", "user", "assistant", "tool", "assistant", "user", "user", "assistant", "user")
    rows = [
        {"messages": [{"role": role, "content": f"{n}."} for n, role in enumerate(roles)]},
        chat("Who?", "I.", "Why?", "So."),
        chat("Hi", "Hello."),
    ]
    data = prepare_rows(tmp_path / "a", CHATML, {"a.jsonl": rows}, split_exchanges=True, **PAIRS)
    texts = [f"{text}.<|im_end|>" for text in ("2.<|im_end|>|4", "7", "I", "So", "Hello")]
    assert replies(data) == texts and "system\n0." in data.examples[1].text
    assert [example.place for example in data.examples] == ["line 1"] * 2 + ["line 2"] * 2 + ["line 3"]
    assert pairs_of(data) == [tuple(texts[:2]), tuple(texts[2:4])]
    assert len(prepare_rows(tmp_path / "b", CHATML, {"a.jsonl": rows}).examples) == 3


def test_a_greeting_is_in_the_first_exchange(tmp_path):
    messages = [
        {"role": "assistant", "content": "Ahoy.", "train": False},
        *chat("Who?", "I.", "Why?", "So.")["messages"],
    ]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": [{"messages": messages}]}, split_exchanges=True)
    assert replies(data) == ["I.<|im_end|>", "So.<|im_end|>"] and data.report.sources[0].rows.without_reply == 0
    assert ["Ahoy." in example.text for example in data.examples] == [True, False]


def test_exchanges_of_one_chat_are_on_one_side_of_the_validation_split(tmp_path):
    rows = [chat(*(text for turn in range(3) for text in (f"{n}?", f"{n}, {turn}."))) for n in range(20)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}, split_exchanges=True, eval_share=0.2)
    sides = [{example.place for example in side} for side in (data.examples, data.validation)]
    assert not sides[0] & sides[1]
    assert (len(data.examples), len(data.validation)) == (48, 12)
    # Of a single chat, the last replies; a chat of one reply beside it is learned.
    texts = [text for turn in range(10) for text in (f"{turn}?", f"{turn}.")]
    files = {"long.jsonl": [chat(*texts)], "short.jsonl": [chat("Who?", "I.")]}
    data = prepare_rows(tmp_path / "b", CHATML, files, split_exchanges=True, eval_share=0.2)
    assert ["8?" in data.validation[0].text, "9?" in data.validation[1].text] == [True, True]
    assert (len(data.examples), len(data.validation)) == (9, 2) and data.report.problems == ()
    assert "short.jsonl is too short for a validation split, so" in " ".join(data.report.notes)
    again = [text for turn in range(10) for text in ("Continue", f"{turn}.")]  # the same prompt, by number
    data = prepare_rows(tmp_path / "c", CHATML, {"a.jsonl": [chat(*again)]}, split_exchanges=True, eval_share=0.2)
    assert (len(data.examples), len(data.validation)) == (8, 2)


def test_a_conversation_is_on_one_side_of_the_validation_split_of_hybrid_batching(tmp_path):
    rows = [exchange(conversation, turn) for turn in (2, 0, 1) for conversation in range(40)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}, **HYBRID)
    numbers = [{int(e.place.split()[1]) - 1 for e in side} for side in (data.examples, data.validation)]
    learned, held_out = ({rows[number]["conversation_id"] for number in side} for side in numbers)
    assert not learned & held_out and (len(learned), len(held_out)) == (36, 4)
    follow = sum(number >= 0 for number in data.validation.successors())
    assert follow == 2 * 4  # what the context gain is measured on
