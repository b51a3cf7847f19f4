"""Conversations of rows: which columns make them, their order, and pairs that stay within one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from training_pro.data.examples import batch_order
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


@pytest.mark.parametrize("seed", range(10))
def test_a_message_follows_its_parent_only(tmp_path, seed):
    rng = random.Random(seed)
    rows = [{"message_id": f"{tree}", "parent_id": None, **question(tree, 0)} for tree in range(3)]
    for n in range(rng.randint(1, 12)):
        rows.append({"message_id": f"m{n}", "parent_id": rng.choice(rows)["message_id"], **question("m", n)})
    rng.shuffle(rows)
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows})
    by_reply = {f"{row['output']}<|im_end|>": row for row in rows}
    arranged = [by_reply.pop(text) for text in replies(data)]
    assert not by_reply
    for number, following in enumerate(data.examples.successors()):
        is_parent = number + 1 < len(rows) and arranged[number + 1]["parent_id"] == arranged[number]["message_id"]
        assert following == (number + 1 if is_parent else -1)


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_every_reader_gives_the_same_conversations(tmp_path, name):
    rows = [exchange(conversation, turn) for turn in (10, 2, 1) for conversation in ("x", "y")]
    table = "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)])
    data = prepare_rows(tmp_path, CHATML, {name: table if name == "a.csv" else rows}, **PAIRS)
    assert pairs_of(data) == [(reply("x", 1), reply("x", 2)), (reply("y", 1), reply("y", 2))]
    notes = data.report.sources[0].notes
    assert any(
        note.startswith("2 conversations, found by the columns 'conversation_id', 'turn'") for note in notes
    )
    assert not any("not used" in note for note in notes)
    assert not any("Pair phase" in sentence for sentence in data.report.advice)


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
        ({"dialogue_id": "a", "turn_id": (2, 1)}, "'dialogue_id', 'turn_id'"),
        ({"conversation": "a", "turn": (2, 1)}, "'conversation', 'turn'"),
        ({"message_id": ("b", "a"), "parent_id": ("a", None)}, "'message_id', 'parent_id'"),
        ({"id": ("b", "a"), "parent_message_id": ("a", "")}, "'id', 'parent_message_id'"),
        ({"conversation_id": "a\nb"}, ""),
        ({"id": ("b", "a"), "turn": (2, 1)}, ""),
        ({"parent_id": "b", "turn": (2, 1)}, ""),
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


def test_ids_beside_the_only_column_of_texts_and_columns_with_names_of_ones_own(tmp_path):
    rows = [{"conversation_id": "x", "turn_id": f"{n}", "story": f"Sentence {n}."} for n in (2, 1)]
    data = prepare_rows(tmp_path / "a", CHATML, {"a.jsonl": rows})
    assert replies(data) == ["entence 1.<|im_end|>", "entence 2.<|im_end|>"]  # the first token is never trained on
    data = prepare_rows(tmp_path / "b", CHATML, {"a.jsonl": [{"conversation": "Hi. Hello."}] * 2})
    assert not any("conversations" in note for note in data.report.sources[0].notes)
    rows = [{"Chat": "x", "Nr": n, **question("x", n)} for n in (2, 1)]
    data = prepare_rows(tmp_path / "c", CHATML, {"a.jsonl": rows}, columns="conversation_id=Chat turn=Nr")
    assert pairs_of(data) == [(reply("x", 1), reply("x", 2))]
    assert not any("not used" in note for note in data.report.sources[0].notes)


def test_circles_and_gaps_lose_no_row(tmp_path):
    rows = [{"id": "a", "parent_id": "b"}, {"id": "b", "parent_id": "a"}, {"id": "c", "parent_id": "c"}]
    rows = [{**row, **question("x", n)} for n, row in enumerate(rows)]
    assert successors(tmp_path / "a", rows) == [1, -1, -1]
    assert successors(tmp_path / "b", [exchange("x", turn) for turn in (1, 1, 2)]) == [-1, 2, -1]
    data = prepare_rows(
        tmp_path / "c", CHATML, {"a.jsonl": [exchange(name, 0) for name in ("a", None, "a", None)]}
    )
    assert replies(data) == [reply(name, 0) for name in ("a", "a", None, None)]


def test_split_chats_into_exchanges(tmp_path):
    roles = ("system", "user", "assistant", "tool", "assistant", "user", "user", "assistant", "user")
    rows = [
        {"messages": [{"role": role, "content": f"{n}."} for n, role in enumerate(roles)]},
        chat("Who?", "I.", "Why?", "So."),
        chat("Hi", "Hello."),
    ]
    data = prepare_rows(tmp_path / "a", CHATML, {"a.jsonl": rows}, split_exchanges=True, **PAIRS)
    texts = [
        "2.<|im_end|>|4.<|im_end|>",
        "7.<|im_end|>",
        *(f"{text}<|im_end|>" for text in ("I.", "So.", "Hello.")),
    ]
    assert replies(data) == texts and "system\n0." in data.examples[1].text
    assert [example.place for example in data.examples] == ["line 1"] * 2 + ["line 2"] * 2 + ["line 3"]
    assert pairs_of(data) == [tuple(texts[:2]), tuple(texts[2:4])]
    assert len(prepare_rows(tmp_path / "b", CHATML, {"a.jsonl": rows}).examples) == 3


def test_exchanges_of_one_chat_are_on_one_side_of_the_validation_split(tmp_path):
    rows = [chat(*(text for turn in range(3) for text in (f"{n}?", f"{n}, {turn}."))) for n in range(20)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}, split_exchanges=True, eval_share=0.2)
    sides = [{example.place for example in side} for side in (data.examples, data.validation)]
    assert not sides[0] & sides[1]
    assert (len(data.examples), len(data.validation)) == (48, 12)


def test_a_conversation_is_on_one_side_of_the_validation_split_of_hybrid_batching(tmp_path):
    rows = [exchange(conversation, turn) for turn in (2, 0, 1) for conversation in range(40)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}, **HYBRID)
    numbers = [{int(e.place.split()[1]) - 1 for e in side} for side in (data.examples, data.validation)]
    learned, held_out = ({rows[number]["conversation_id"] for number in side} for side in numbers)
    assert not learned & held_out and (len(learned), len(held_out)) == (36, 4)
    follow = sum(number >= 0 for number in data.validation.successors())
    assert follow == 2 * 4  # what the context gain is measured on


def test_other_orders_and_rows_without_conversations_are_split_by_rows(tmp_path):
    def held_out(folder, rows, **values):
        return prepare_rows(tmp_path / folder, CHATML, {"a.jsonl": rows}, **values).validation

    rows = [exchange(conversation, turn) for conversation in range(40) for turn in range(3)]
    plain, share = [question(row["conversation_id"], row["turn"]) for row in rows], {"eval_share": 0.1}
    by_row = held_out("a", rows, **share).digest()
    assert held_out("b", plain, **share).digest() == held_out("c", plain, **HYBRID).digest() == by_row
    assert len(held_out("d", [exchange("x", n) for n in range(40)], **HYBRID)) == 4


def test_check_names_the_setting_where_chats_make_no_pairs(tmp_path):
    rows = [chat("Who?", "I.", "Why?", "So.", conversation_id=n) for n in range(40)]
    for split, told in ((False, 1), (True, 0)):
        values = {"split_exchanges": split, "epochs": 3, **PAIRS}
        advice = prepare_rows(tmp_path / f"{split}", CHATML, {"a.jsonl": rows}, **values).report.advice
        sentences = [sentence for sentence in advice if sentence.startswith("Pair phase")]
        assert len(sentences) == told
        assert all("or turn on Split chats into exchanges if your" in sentence for sentence in sentences)
