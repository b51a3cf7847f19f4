"""Limits of prompt and reply: to the token, the text of the format stays, and what is truncated is counted."""

from __future__ import annotations

import json

import pytest
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.rowing import FAMILIES, family, prepare_rows

WORDS = "one two three four five six seven eight nine ten"
SHORT = {"instruction": "Hi", "output": "No."}
LONG = {"instruction": WORDS, "output": WORDS}
ALPACA = {"format": "alpaca-format"}


def prepared(root, rows, name="ChatML", **values):
    return prepare_rows(root, family(name), {"a.jsonl": rows}, data=["a.jsonl"], **values)


def texts(data):
    return [example.text for example in data.examples]


def figures(data):
    (source,) = data.report.sources
    return source.rows.long_prompts, source.rows.long_replies


def parts(root, name, rows, **values):
    """The tokens of prompt and reply of each row: with train_on replies, what is learned is the reply."""
    masks = [e.loss_mask for e in prepared(root, rows, name, train_on="replies", **values).examples]
    return [(int(mask.argmax()), int(mask.sum())) for mask in masks]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("values", [{}, ALPACA])
def test_each_part_has_at_most_so_many_tokens_and_shorter_rows_stay(tmp_path, name, values):
    prompt, reply = parts(tmp_path / "all", name, [LONG], **values)[0]
    short = parts(tmp_path / "short", name, [SHORT], **values)
    limits = {"source_max_len": prompt - 4, "target_max_len": 5}
    assert parts(tmp_path / "limited", name, [LONG], **limits, **values)[0] == (prompt - 4, 5)
    assert parts(tmp_path / "unlimited", name, [SHORT], **limits, **values) == short
    assert parts(tmp_path / "equal", name, [LONG], source_max_len=prompt, target_max_len=reply, **values) == [
        (prompt, reply)
    ]


def test_the_end_of_the_words_goes_and_the_text_of_the_format_stays(tmp_path):
    ((tokens, _),) = parts(tmp_path / "all", "ChatML", [LONG])
    (text,) = texts(prepared(tmp_path / "cut", [LONG], source_max_len=tokens - 6))
    words = text.partition("user\n")[2].partition("<|im_end|>")[0]
    assert words and WORDS.startswith(words) and words != WORDS
    assert text.endswith(f"<|im_end|>\n<|im_start|>assistant\n{WORDS}<|im_end|>\n")


def test_a_truncated_reply_has_no_end_token(tmp_path):
    data = prepared(tmp_path, [SHORT, LONG], target_max_len=6)
    short, long = texts(data)
    assert short.endswith("No.<|im_end|>\n")
    assert not long.endswith("<|im_end|>\n")
    assert WORDS.startswith(long.partition("assistant\n")[2])
    assert figures(data) == (0, 1)


def test_check_counts_what_is_truncated(tmp_path):
    ((tokens, _),) = parts(tmp_path / "short", "ChatML", [SHORT])
    data = prepared(tmp_path / "all", [SHORT, LONG, LONG], source_max_len=tokens, target_max_len=6)
    assert figures(data) == (2, 2)
    assert "2 with the end of the prompt truncated; 2 with the end of the reply truncated" in data.report.text()


@pytest.mark.parametrize("train_on", ["everything", "replies"])
def test_it_does_not_matter_what_is_trained_on(tmp_path, train_on):
    limits = {"source_max_len": 9, "target_max_len": 6}
    data = prepared(tmp_path, [LONG], train_on=train_on, **limits)
    assert figures(data) == (1, 1)
    ids = data.examples[0].ids.tolist()
    assert ids == prepared(tmp_path / "other", [LONG], **limits).examples[0].ids.tolist()


def test_prompt_and_completion_have_no_text_between(tmp_path):
    rows = [{"prompt": f"{WORDS} ", "completion": WORDS}]
    data = prepared(tmp_path, rows, source_max_len=4, target_max_len=3, add_eos="never")
    (example,) = data.examples
    assert (int((~example.loss_mask).sum()), int(example.loss_mask.sum())) == (4, 3)


def test_the_text_of_train_only_after_stands_between_the_parts(tmp_path):
    rows = [{"text": f"{WORDS} ### {WORDS}"}]
    data = prepared(tmp_path, rows, train_only_after="###", source_max_len=4, target_max_len=3)
    assert figures(data) == (1, 1)
    assert "###" in texts(data)[0]


def test_rows_with_several_replies_or_none_are_noted_and_stay(tmp_path):
    messages = [{"role": role, "content": WORDS} for role in ("user", "assistant") * 2]
    plain = prepared(tmp_path / "plain", [{"messages": messages}])
    data = prepared(tmp_path / "chats", [{"messages": messages}], source_max_len=4, target_max_len=3)
    note = (
        "1 row does not have exactly one reply, so Maximum prompt length and Maximum reply length do not "
        "apply to it."
    )
    assert texts(data) == texts(plain) and note in data.report.sources[0].notes
    data = prepared(
        tmp_path / "split", [{"messages": messages}], source_max_len=9, target_max_len=3, split_exchanges=True
    )
    assert figures(data) == (2, 2) and note not in data.report.sources[0].notes


def test_raw_text_has_no_prompt_and_says_so(tmp_path):
    data = prepare_rows(tmp_path, family("ChatML"), {"a.txt": f"{WORDS}. " * 9}, data=["a.txt"], source_max_len=4)
    notes = [finding.text for finding in data.report.findings if finding.key == "source_max_len"]
    assert notes == ["Maximum prompt length: this has no effect because the dataset has no rows."]


def test_a_run_trains_on_the_truncated_rows(place):
    place.write("rows.jsonl", f"{json.dumps({'prompt': WORDS, 'completion': f' {WORDS}'})}\n" * 4)
    data = {"data": ["rows.jsonl"], "cutoff": "auto"}
    asked = {**data, "source_max_len": 5, "target_max_len": 4}
    report = PeftEngine().check(place.settings(**asked), place.host())
    assert (report.longest, report.trained_tokens) == (9, 16)
    assert place.train(**asked).outcome == "finished"
    assert PeftEngine().check(place.settings(**data), place.host()).longest > 9
