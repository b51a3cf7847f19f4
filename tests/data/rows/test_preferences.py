"""Tables of preferences: which columns they have, what is learned of them, and which rows are dropped."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_pro.core.engine import PreviewQuery
from training_pro.core.errors import DataError
from training_pro.data.examples import Example
from training_pro.data.report import preview_examples
from training_pro.data.rows import preferences
from training_pro.engine.compute import collate
from training_pro.tests.rowing import family, learned_text, prepare_rows

CHATML = family("ChatML")
END = "<|im_end|>"


def user(text):
    return {"role": "user", "content": text}


def reply(text):
    return {"role": "assistant", "content": text}


def turn(role, text):
    return {"from": role, "value": text}


def prepared(root, *rows, objective="dpo", **values):
    return prepare_rows(root, CHATML, {"a.json": list(rows)}, objective=objective, **values)


def sides(example):
    """What is learned of both sides of an example."""
    return learned_text(CHATML, example), example.contrast and learned_text(CHATML, example.contrast)


def text_of(example):
    return CHATML.decode(example.ids.tolist())


PAIRS = {
    "instruction": {"instruction": "q", "input": "i", "chosen": "good", "rejected": "bad"},
    "question": {"system": "s", "question": "q", "chosen": "good", "rejected": "bad"},
    "prompt as a chat": {"prompt": [user("q")], "chosen": [reply("good")], "rejected": [reply("bad")]},
    "whole chats": {"chosen": [user("q"), reply("good")], "rejected": [user("q"), reply("bad")]},
    "prompt twice": {"prompt": "q", "chosen": [user("q"), reply("good")], "rejected": [user("q"), reply("bad")]},
    "objects": {
        "conversations": [turn("human", "q"), turn("gpt", "a"), turn("human", "r")],
        "chosen": turn("gpt", "good"), "rejected": turn("gpt", "bad"),
    },
    "texts after a chat": {"messages": [user("q")], "chosen": "good", "rejected": "bad"},
}  # fmt: skip


@pytest.mark.parametrize("row", PAIRS.values(), ids=PAIRS)
def test_only_the_two_replies_of_a_pair_are_learned(tmp_path, row):
    data = prepared(tmp_path, row)
    (example,) = data.examples
    assert data.report.problems == () and sides(example) == (f"good{END}", f"bad{END}")
    assert text_of(example).replace("good", "bad") == text_of(example.contrast)
    assert data.examples.lengths() == [len(example.ids) + len(example.contrast.ids)] == [example.tokens]
    note = "Pairs, found by 'chosen' and 'rejected'."
    assert any(text.startswith(note) for text in data.report.sources[0].notes)


@pytest.mark.parametrize("row", PAIRS.values(), ids=PAIRS)
def test_next_token_trains_on_the_chosen_reply(tmp_path, row):
    data = prepared(tmp_path, row, objective="next_token")
    (example,) = data.examples
    assert example.contrast is None and sides(example)[0].endswith(f"good{END}")
    assert any("trains only on 'chosen'" in note for note in data.report.sources[0].notes)


@pytest.mark.parametrize(("format_name", "start"), [("auto", "q: "), ("alpaca-format", "Below is an instruction")])
def test_texts_are_joined_or_formatted(tmp_path, format_name, start):
    data = prepared(tmp_path, {"prompt": "q: ", "chosen": "Good", "rejected": "Bad"}, format=format_name)
    (example,) = data.examples
    assert text_of(example).startswith(start) and text_of(example).endswith(f"Good{END}")
    assert text_of(example.contrast) == text_of(example).replace("Good", "Bad")


LABELED = [
    {"prompt": [user("q")], "completion": [reply("good")], "label": True},
    {"prompt": [user("r")], "completion": [reply("bad")], "label": False},
]


TAGGED = [
    {"instruction": "q", "output": "good", "kto_tag": "true"},
    {"instruction": "r", "output": "bad", "kto_tag": "False"},
]
LONGER = [
    {"messages": [user("q"), reply("a"), user("s"), reply(text)], "label": text == "good"}
    for text in ("good", "bad")
]


@pytest.mark.parametrize("rows", [LABELED, TAGGED, LONGER, [PAIRS["question"]]])
def test_labeled_replies_are_compared_with_the_reply_of_another_row(tmp_path, rows):
    first, second = prepared(tmp_path, *rows, objective="kto").examples
    assert (first.desirable, second.desirable) == (True, False)
    assert (sides(first), sides(second)) == ((f"good{END}", f"bad{END}"), (f"bad{END}", f"good{END}"))
    prompt = text_of(first).partition("good")[0]
    assert text_of(first.contrast).startswith(prompt)


def test_a_label_of_texts_is_no_preference(tmp_path):
    data = prepared(tmp_path, *({"text": f"t {n}", "label": n > 0} for n in range(2)), objective="next_token")
    assert len(data.examples) == 2
    rows = [
        {"dialogue": f"t {n}", "chat": "", "label": str(n > 0)} for n in range(2)
    ]  # an answer that the user names
    columns = {"columns": "instruction=dialogue output=label"}
    assert len(prepared(tmp_path / "b", *rows, objective="next_token", **columns).examples) == 2


def test_next_token_drops_undesirable_replies(tmp_path):
    data = prepared(tmp_path, *LABELED, objective="next_token")
    assert [sides(example) for example in data.examples] == [(f"good{END}", None)]
    assert (1, "labeled as undesirable") in data.report.sources[0].rows.exclusion_counts()


def test_pairs_that_are_none_and_pairs_that_are_too_long_are_counted(tmp_path):
    rows = [
        PAIRS["instruction"],
        {"instruction": "q", "input": "i", "chosen": "same", "rejected": "same"},
        {"instruction": "q", "input": "i", "chosen": "short", "rejected": "long " * 60},
    ]
    data = prepared(tmp_path, *rows, cutoff=64, too_long="drop_any")
    counts = dict(map(reversed, data.report.sources[0].rows.exclusion_counts()))
    assert (len(data.examples), counts["whose two replies are equal"], counts["too long (dropped)"]) == (1, 1, 1)
    cut = prepared(tmp_path / "cut", *rows, cutoff=64, too_long="cut_end").examples
    assert [len(example.contrast.ids) for example in cut] == [len(cut[0].contrast.ids), 64]
    chats = [PAIRS["whole chats"], {"chosen": [user("q"), reply("a")], "rejected": [user("r"), reply("b")]}]
    counts = dict(map(reversed, prepared(tmp_path / "b", *chats).report.sources[0].rows.exclusion_counts()))
    assert counts["whose two replies have different prompts"] == 1


@pytest.mark.parametrize(
    ("rows", "objective", "words"),
    [
        ([{"instruction": "q", "output": "a"}], "dpo", "need the columns 'chosen' and 'rejected'"),
        ([{"instruction": "q", "output": "a"}], "kto", "'prompt', 'completion' and 'label' (true or false), or"),
        (LABELED, "dpo", "from which only KTO learns"),
        ([{**PAIRS["instruction"], "rejected": ""}], "dpo", "row 1: 'rejected' is empty"),
        ([*LABELED * 200, {**LABELED[0], "label": 3}], "kto", "has a number (3) under 'label'"),
    ],
)
def test_what_an_objective_can_not_learn_from_is_a_sentence(tmp_path, rows, objective, words):
    try:
        said = " ".join(prepared(tmp_path, *rows, objective=objective).report.problems)
    except DataError as error:
        said = str(error)
    assert words in said


def test_versions_of_replies_in_a_chat_are_preferences(tmp_path):
    lines = [
        {"user_name": "unused", "character_name": "unused"},
        {"name": "Nils", "is_user": True, "mes": "Can you row?"},
        {"name": "Maren", "is_user": False, "mes": "Every day.", "swipes": ["Who knows?", "Every day."]},
    ]
    prepared_data = prepare_rows(tmp_path / "a", CHATML, {"a.json": lines}, objective="dpo")
    (example,) = prepared_data.examples
    assert sides(example) == (f"Every day.{END}", f"Who knows?{END}") and "Can you row?" in text_of(example)
    del lines[2]["swipes"]
    with pytest.raises(DataError, match=r"no conversation has a reply with another version"):
        prepare_rows(tmp_path / "b", CHATML, {"a.json": lines}, objective="dpo")


def test_raw_text_has_no_preferences(tmp_path):
    with pytest.raises(DataError, match=r"story\.txt has no preferences that ORPO can learn from"):
        prepare_rows(tmp_path, CHATML, {"story.txt": "A story."}, objective="orpo")


def test_stored_pairs_are_those_that_were_read(tmp_path):
    rows, values = [{**PAIRS["question"], "question": str(n)} for n in range(4)], {"eval_share": 0.5, "seed": 3}
    first = prepared(tmp_path, *rows, **values)
    (tmp_path / "examples").rmdir()
    shutil.rmtree(tmp_path / "user" / "training" / "datasets")
    again = prepared(tmp_path, *rows, **values)
    assert first.examples.digest() == again.examples.digest() != first.validation.digest()
    assert (len(again.examples), len(again.validation)) == (2, 2)


@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_decisions_are_kept_by_content_and_can_be_taken_back(tmp_path, objective):
    rows = [{**PAIRS["question"], "question": f"q{n}"} for n in range(3)]
    file = tmp_path / "user" / "training" / "pairs.json"

    def read(*first):
        for folder in ("examples", "user/training/datasets"):  # that the read before has made
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
        data = prepared(tmp_path, *first, *rows, objective=objective)
        shown = preview_examples(data.examples, PreviewQuery(9), CHATML.decode, CHATML.stops)
        replies = [each.desirable if objective == "kto" else sides(each)[0] for each in data.examples]
        numbers = [text_of(each).partition("q")[2][:1] for each in data.examples]
        return data, [each.pair for each in shown], list(zip(numbers, replies, strict=True))

    good, bad = (True, False) if objective == "kto" else (f"good{END}", f"bad{END}")
    _, names, before = read()
    preferences.decide(file, names[0], "switch")
    preferences.decide(file, names[1], "drop")
    new = {**PAIRS["question"], "question": "q9"}
    data, _, after = read(new)
    expected = [("9", good), ("0", bad), ("2", good)]
    assert after == expected + [("9", bad), ("0", good), ("2", bad)] * (objective == "kto")
    assert data.decisions == {names[0]: "switch", names[1]: "drop"}
    assert "You switched 1 and dropped 1 of the preferences." in data.report.sources[0].notes
    of_pairs = [note for note in data.report.sources[0].notes if note.startswith("3 pairs. Median tokens")]
    assert len(of_pairs) == (objective == "dpo")
    for name, decision in zip(names, ("switch", "drop"), strict=False):
        preferences.decide(file, name, decision)
    assert read()[2] == before and "good" not in file.read_text()


def test_an_example_is_shown_with_both_replies(tmp_path):
    examples = prepared(tmp_path, PAIRS["instruction"]).examples
    (shown,) = preview_examples(examples, PreviewQuery(count=1), CHATML.decode, CHATML.stops)
    good, bad = (f"\u27e6{text}{END}\u27e7" for text in ("good", "bad"))
    assert good in shown.text() and "With the rejected reply:" in shown.text() and bad in shown.text()


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=6), st.booleans(), st.data())
def test_a_slice_of_a_batch_is_the_batch_of_these_pairs(lengths, in_one_row, data):
    """The chosen of all pairs come first, then the rejected, in the same order."""

    def example(length, start):
        return Example(np.arange(start, start + length, dtype=np.int32), np.arange(length) > 0, None, 0)

    pairs = [
        Example(**{**vars(example(own, 10 * n)), "contrast": example(other, 10 * n + 1000)})
        for n, (own, other) in enumerate(lengths)
    ]
    batch = collate(pairs, in_one_row=in_one_row)
    first = data.draw(st.integers(0, len(pairs) - 1))
    end = data.draw(st.integers(first + 1, len(pairs)))
    part, expected = batch[first:end], collate(pairs[first:end], in_one_row=in_one_row)
    assert (len(batch), batch.tokens) == (len(pairs), sum(map(sum, lengths)))
    tensors, expected_tensors = ((*b.inputs.values(), b.labels, b.owners) for b in (part, expected))
    assert [tensor.tolist() for tensor in tensors] == [tensor.tolist() for tensor in expected_tensors]
    ids, mask = batch.inputs["input_ids"], batch.inputs.get("attention_mask")
    texts = ids[0].tolist() if mask is None else ids[mask.bool()].tolist()
    assert texts == [number for side in range(2) for pair in pairs for number in pair.sides[side].ids]
