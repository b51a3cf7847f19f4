"""Conversations of rows: which columns make them, their order, and pairs that stay within one."""

from __future__ import annotations

import csv
import io
import random
import sqlite3
from itertools import permutations

import numpy as np
import pytest
from training_pro.core.host import ModelCard
from training_pro.data.examples.batch_order import find_pairs
from training_pro.data.prepare import prepare
from training_pro.data.readers import Row
from training_pro.data.rows.conversations import ConversationColumns, Conversations, find_conversation_columns
from training_pro.data.rows.row_schema import Chat, Message
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import as_json, chat, family, learned_text, prepare_rows

CHATML = family("ChatML")
OPEN_ASSISTANT = ("message_tree_id", "message_id", "parent_id")
PAIRS = {"batching": "length_then_order", "switch_pairs": True, "batch_size": 2}


def exchange(conversation, turn, **columns):
    return {"conversation_id": conversation, "turn": turn, **question(conversation, turn), **columns}


def question(conversation, turn):
    return {"instruction": f"Question {turn} of {conversation}?", "output": f"Reply {turn} of {conversation}."}


def arranged(rows, columns):
    """The order of rows, and for each whether it follows the one before it."""
    conversations = Conversations(columns)
    for number, row in enumerate(rows, start=1):
        conversations.add(Row(number, row), ["an example"])
    order, follows = conversations.arrange(np.ones(len(rows), bool))
    return order.tolist(), follows.tolist(), conversations.count


def pairs_of(data):
    """The trained texts of each pair."""
    examples = data.examples
    couples, _ = find_pairs(np.arange(len(examples)), examples.successors(), examples.lengths(), 0)
    return [tuple(learned_text(CHATML, examples[number]) for number in couple) for couple in couples]


def reply(conversation, turn):
    return f"Reply {turn} of {conversation}.<|im_end|>"


def test_no_pair_crosses_two_conversations_of_three_turns():
    rng, columns = random.Random(1), ConversationColumns("conversation_id", "turn")
    for _ in range(10_000):
        count = rng.randint(1, 6)
        rows = [{"conversation_id": n, "turn": turn} for n in range(count) for turn in range(3)]
        rng.shuffle(rows)
        order, follows, found = arranged(rows, columns)
        assert sorted(order) == list(range(3 * count))
        assert found == count
        learned = [tuple(rows[number].values()) for number in order]
        assert all([turn for _, turn in learned[n : n + 3]] == [0, 1, 2] for n in range(0, 3 * count, 3))
        assert all(len({name for name, _ in learned[n : n + 3]}) == 1 for n in range(0, 3 * count, 3))
        successors = [n + 1 if n + 1 < len(order) and follows[n + 1] else -1 for n in range(len(order))]
        couples, _ = find_pairs(np.arange(len(order)), successors, [1] * len(order), 0)
        assert len(couples) == count  # turns 0 and 1 of each; turn 2 has no partner
        for couple in couples:
            first, second = (rows[order[number]] for number in couple)
            assert first["conversation_id"] == second["conversation_id"]
            assert (first["turn"], second["turn"]) == (0, 1)


def test_all_orders_of_the_rows_give_each_conversation_from_its_first_to_its_last_turn():
    columns = ConversationColumns("conversation_id", "turn")
    turns = [{"conversation_id": name, "turn": turn} for name in "xy" for turn in (1, 2, 3)]
    for rows in permutations(turns):
        order, follows, _ = arranged(rows, columns)
        names = dict.fromkeys(row["conversation_id"] for row in rows)  # as the file begins them
        wanted = [{"conversation_id": name, "turn": turn} for name in names for turn in (1, 2, 3)]
        assert [rows[number] for number in order] == wanted
        assert follows == [False, True, True] * 2


def test_what_is_left_of_an_epoch_keeps_the_order_within_each_conversation():
    """The sequential phase may begin in the middle of an epoch, after any examples have been drawn."""
    rng, columns = random.Random(3), ConversationColumns("conversation_id", "turn")
    for _ in range(10_000):
        rows = [{"conversation_id": n, "turn": turn} for n in range(rng.randint(1, 6)) for turn in range(3)]
        rng.shuffle(rows)
        order, _, _ = arranged(rows, columns)
        left = sorted(rng.sample(range(len(rows)), rng.randint(0, len(rows))))  # numbers of examples
        places = [tuple(rows[order[number]].values()) for number in left]
        conversations = list(dict.fromkeys(name for name, _ in places))
        wanted = [place for name in conversations for place in sorted(p for p in places if p[0] == name)]
        assert places == wanted


def test_no_pair_crosses_two_trees_of_messages():
    rng, columns = random.Random(2), ConversationColumns("", "", "message_id", "parent_id")
    for _ in range(2000):
        trees = rng.randint(1, 4)
        rows = [{"message_id": f"{tree}", "parent_id": None, "tree": tree} for tree in range(trees)]
        for n in range(rng.randint(0, 12)):
            parent = rng.choice(rows)
            rows.append({"message_id": f"m{n}", "parent_id": parent["message_id"], "tree": parent["tree"]})
        rng.shuffle(rows)
        order, follows, found = arranged(rows, columns)
        assert sorted(order) == list(range(len(rows)))
        assert found == trees
        for n in range(1, len(order)):
            before, row = rows[order[n - 1]], rows[order[n]]
            assert follows[n] == (row["parent_id"] == before["message_id"])


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.db"])
def test_every_reader_gives_the_same_conversations(tmp_path, name):
    rows = [exchange(conversation, turn) for turn in (10, 2, 1) for conversation in ("x", "y")]
    data = prepare_rows(tmp_path, CHATML, {name: written(tmp_path, name, rows)}, **PAIRS)
    assert pairs_of(data) == [(reply("x", 1), reply("x", 2)), (reply("y", 1), reply("y", 2))]
    (source,) = data.report.sources
    assert (
        "2 conversations, found by the columns 'conversation_id', 'turn'. "
        "The pair phase and the measurement of the context gain never combine rows from different conversations."
        in source.notes
    )
    assert not any("not used" in note for note in source.notes)
    assert not any("Pair phase" in sentence for sentence in data.report.advice)


def written(folder, name, rows):
    if name.endswith((".json", ".jsonl")):
        return as_json(name, rows)
    if name.endswith(".csv"):
        stream = io.StringIO()
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()
    if name.endswith(".parquet"):
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        buffer = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
        return buffer.getvalue().to_pybytes()
    path = folder / "made.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE chats (conversation_id, turn, instruction, output)")
    connection.executemany("INSERT INTO chats VALUES (?, ?, ?, ?)", [tuple(row.values()) for row in rows])
    connection.commit()
    connection.close()
    return path.read_bytes()


def test_rows_without_these_columns_stay_as_they_are(tmp_path):
    rows = [question(conversation, turn) for turn in (3, 2, 1) for conversation in ("x", "y")]
    plain = prepare_rows(tmp_path / "a", CHATML, {"a.jsonl": rows})
    with_turn = prepare_rows(tmp_path / "b", CHATML, {"a.jsonl": [{**row, "turn": 1} for row in rows]})
    assert plain.examples.digest() == with_turn.examples.digest()
    assert plain.examples.successors() == with_turn.examples.successors() == [1, 2, 3, 4, 5, -1]
    assert not any("conversation" in note for source in plain.report.sources for note in source.notes)


def test_conversations_in_the_order_of_the_file_are_the_same_examples(tmp_path):
    rows = [exchange(conversation, turn) for conversation in ("x", "y") for turn in (1, 2, 3)]
    data = prepare_rows(tmp_path / "a", CHATML, {"a.jsonl": rows})
    without = [question(row["conversation_id"], row["turn"]) for row in rows]
    assert data.examples.digest() == prepare_rows(tmp_path / "b", CHATML, {"a.jsonl": without}).examples.digest()
    assert data.examples.successors() == [1, 2, -1, 4, 5, -1]


def test_conversations_are_the_same_from_the_cache(tmp_path):
    rows, said = [exchange(conversation, turn) for turn in (3, 2, 1) for conversation in ("x", "y")], []
    folders = make_folders(tmp_path)
    (folders.datasets / "a.jsonl").write_text(as_json("a.jsonl", rows))
    settings = training_settings({"name": "a", "data": ["a.jsonl"]})
    card = ModelCard("toy", {}, CHATML.tokenizer, "auto")
    first, second = (prepare(settings, folders, card, CHATML, lambda text, _: said.append(text)) for _ in "ab")
    assert any("Using the cached version" in text for text in said)
    assert first.examples.successors() == second.examples.successors() == [1, 2, -1, 4, 5, -1]
    assert first.examples.digest() == second.examples.digest()
    assert first.report.sources == second.report.sources


def test_a_row_that_is_dropped_ends_the_pairs_around_it(tmp_path):
    rows = [exchange("x", 1), exchange("y", 1), exchange("x", 2, output=""), exchange("x", 3), exchange("y", 2)]
    rows += [exchange("z", n) for n in range(20)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}, bad_rows="skip")
    assert data.examples.successors()[:4] == [-1, -1, 3, -1]  # x1, x3, y1, y2


def test_a_line_that_cannot_be_read_ends_the_pairs_around_it(tmp_path):
    lines = as_json("a.jsonl", [exchange("x", n) for n in range(20)]).split("\n")
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": "\n".join([*lines[:2], "{", *lines[2:]])}, bad_rows="skip")
    assert data.examples.successors() == [1, -1, *range(3, 20), -1]


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"conversation_id": "a", "turn": 1}, ("conversation_id", "turn")),
        ({"conv_id": 7, "Turn_Index": "1"}, ("conv_id", "Turn_Index")),
        ({"dialogue_id": "a", "turn_id": 3}, ("dialogue_id", "turn_id")),
        ({"conversation": "a", "turn": 1}, ("conversation", "turn")),
        (
            {"message_id": "b", "parent_id": "a", "message_tree_id": "t"},
            ("message_tree_id", "message_id", "parent_id"),
        ),
        ({"id": "b", "parent_message_id": "a"}, ("id", "parent_message_id")),
        ({"conversation": [{"role": "user", "content": "Hi"}], "turn": 1}, ()),
        ({"conversation_id": "a\nb"}, ()),
        ({"id": "b", "turn": 1}, ()),
        ({"parent_id": "b", "turn": 1}, ()),
        ({"conversation_id": None, "turn": 1}, ()),
    ],
)
def test_columns_that_make_conversations(row, names):
    assert find_conversation_columns([Row(1, row)], ()).names == names


def test_a_column_of_texts_is_no_id(tmp_path):
    data = prepare_rows(
        tmp_path, CHATML, {"a.jsonl": [{"conversation": "Hi. Hello."}, {"conversation": "Who? I."}]}
    )
    assert data.examples.successors() == [1, -1]
    assert not any("conversations by" in note for note in data.report.sources[0].notes)


def test_ids_beside_the_only_column_of_texts(tmp_path):
    rows = [{"conversation_id": "x", "turn_id": f"{n}", "story": f"Sentence {n}."} for n in (2, 1)]
    examples = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}).examples
    assert [learned_text(CHATML, example) for example in examples] == [
        f"entence {n}.<|im_end|>"
        for n in (1, 2)  # the first token is never trained on
    ]
    assert examples.successors() == [1, -1]


def test_columns_with_names_of_ones_own(tmp_path):
    rows = [{"Chat": "x", "Nr": n, **question("x", n)} for n in (2, 1)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}, columns="conversation_id=Chat turn=Nr")
    assert pairs_of(data) == [(reply("x", 1), reply("x", 2))]
    assert not any("not used" in note for note in data.report.sources[0].notes)


def test_ids_of_messages_and_their_parents(tmp_path):
    rows = [
        {"message_id": "c", "parent_id": "b", **question("x", 3)},
        {"message_id": "a", "parent_id": None, **question("x", 1)},
        {"message_id": "b2", "parent_id": "a", **question("x", 4)},
        {"message_id": "b", "parent_id": "a", **question("x", 2)},
    ]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows})
    assert [learned_text(CHATML, example) for example in data.examples] == [reply("x", n) for n in (1, 4, 2, 3)]
    assert data.examples.successors() == [1, -1, 3, -1]


def test_parents_in_a_circle_lose_no_row():
    rows = [{"id": "a", "parent_id": "b"}, {"id": "b", "parent_id": "a"}, {"id": "c", "parent_id": "c"}]
    order, follows, _ = arranged(rows, ConversationColumns("", "", "id", "parent_id"))
    assert (order, follows) == ([0, 1, 2], [False, True, False])


def test_rows_of_the_same_turn_are_no_neighbors():
    rows = [{"conversation_id": 1, "turn": turn} for turn in (1, 1, 2)]
    assert arranged(rows, ConversationColumns("conversation_id", "turn"))[1] == [False, False, True]


def test_a_row_without_a_conversation_is_one_of_its_own():
    rows = [{"conversation_id": name} for name in ("a", None, "a", float("nan"))]
    assert arranged(rows, ConversationColumns("conversation_id"))[:2] == (
        [0, 2, 1, 3],
        [False, True, False, False],
    )


def test_exchanges_of_a_chat():
    roles = ("system", "user", "assistant", "tool", "assistant", "user", "user", "assistant", "user")
    whole = Chat(tuple(Message({"role": role, "content": str(n)}) for n, role in enumerate(roles)), ("a tool",))
    parts = whole.exchanges()
    assert ["".join(message.content for message in part.messages) for part in parts] == ["01234", "05678"]
    assert all(part.tools == whole.tools for part in parts)
    alone = Chat((Message({"role": "assistant", "content": "Hi"}),))
    assert alone.exchanges() == [alone]


def test_split_chats_into_exchanges(tmp_path):
    rows = [chat("Who?", "I.", "Why?", "So.", "When?", "Now."), chat("Hi", "Hello.")]
    data = prepare_rows(tmp_path / "a", CHATML, {"a.jsonl": rows}, split_exchanges=True, **PAIRS)
    texts = ["I.", "So.", "Now.", "Hello."]
    assert [learned_text(CHATML, example) for example in data.examples] == [f"{text}<|im_end|>" for text in texts]
    assert [example.place for example in data.examples] == ["line 1"] * 3 + ["line 2"]
    whole = prepare_rows(tmp_path / "b", CHATML, {"a.jsonl": rows})
    assert len(whole.examples) == 2


def test_pairs_of_exchanges_stay_in_their_chat(tmp_path):
    rows = [chat(*(text for turn in range(3) for text in (f"{n}?", f"{n}."))) for n in range(4)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}, split_exchanges=True, **PAIRS)
    assert pairs_of(data) == [(f"{n}.<|im_end|>",) * 2 for n in range(4)]


def test_exchanges_of_one_chat_are_on_one_side_of_the_validation_split(tmp_path):
    rows = [chat(*(text for turn in range(3) for text in (f"{n}?", f"{n}, {turn}."))) for n in range(20)]
    data = prepare_rows(tmp_path, CHATML, {"a.jsonl": rows}, split_exchanges=True, eval_share=0.2)
    sides = [{example.place for example in side} for side in (data.examples, data.validation)]
    assert not sides[0] & sides[1]
    assert (len(data.examples), len(data.validation)) == (48, 12)


def test_a_conversation_is_on_one_side_of_the_validation_split_of_hybrid_batching(tmp_path):
    rows = [exchange(conversation, turn) for turn in (2, 0, 1) for conversation in range(40)]
    folders = make_folders(tmp_path)
    (folders.datasets / "a.jsonl").write_text(as_json("a.jsonl", rows))
    options = {"eval_share": 0.1, "batching": "length_then_order"}
    settings = training_settings({"name": "a", "data": ["a.jsonl"], **options})
    card = ModelCard("toy", {}, CHATML.tokenizer, "auto")
    read, cached = (prepare(settings, folders, card, CHATML, lambda text, _: None) for _ in "ab")
    assert read.validation.digest() == cached.validation.digest()
    numbers = [{int(e.place.split()[1]) - 1 for e in side} for side in (cached.examples, cached.validation)]
    learned, held_out = ({rows[number]["conversation_id"] for number in side} for side in numbers)
    assert not learned & held_out
    assert (len(learned), len(held_out)) == (36, 4)
    follow = sum(number >= 0 for number in cached.validation.successors())
    assert follow == 2 * 4  # what the context gain is measured on


def test_other_orders_and_rows_without_conversations_are_split_by_rows(tmp_path):
    rows = [exchange(conversation, turn) for conversation in range(40) for turn in range(3)]
    plain = [question(row["conversation_id"], row["turn"]) for row in rows]
    hybrid, share = {"batching": "length_then_order"}, {"eval_share": 0.1}
    by_row = prepare_rows(tmp_path / "a", CHATML, {"a.jsonl": rows}, **share).validation.digest()
    assert prepare_rows(tmp_path / "b", CHATML, {"a.jsonl": plain}, **share).validation.digest() == by_row
    assert (
        prepare_rows(tmp_path / "c", CHATML, {"a.jsonl": plain}, **share, **hybrid).validation.digest() == by_row
    )
    alone = prepare_rows(
        tmp_path / "d", CHATML, {"a.jsonl": [exchange("x", n) for n in range(40)]}, **share, **hybrid
    )
    assert len(alone.validation) == 4  # one conversation can only be split by rows


def test_check_names_the_setting_where_chats_make_no_pairs(tmp_path):
    rows = [chat("Who?", "I.", "Why?", "So.", conversation_id=n) for n in range(40)]
    sentences = prepare_rows(tmp_path / "a", CHATML, {"a.jsonl": rows}, epochs=3, **PAIRS).report.advice
    (sentence,) = [sentence for sentence in sentences if sentence.startswith("Pair phase")]
    assert sentence.endswith(
        "Turn off the pair phase, or turn on Split chats into exchanges if your chats have several turns."
    )
    report = prepare_rows(
        tmp_path / "b", CHATML, {"a.jsonl": rows}, split_exchanges=True, epochs=3, **PAIRS
    ).report
    assert not any(sentence.startswith("Pair phase") for sentence in report.advice)
