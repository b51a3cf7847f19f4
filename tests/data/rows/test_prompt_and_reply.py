"""Limits of prompt and reply, to the token; and sample prompts made from the data."""

from __future__ import annotations

import json

import pytest
from training_pro.data.rows import PromptStyle, make_prompts
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.rowing import FAMILIES, family, prepare_rows

WORDS = "one two three four five six seven eight nine ten"
SHORT = {"instruction": "Hi", "output": "No."}
LONG = {"instruction": WORDS, "output": WORDS}


def prepared(root, rows, name="ChatML", **values):
    return prepare_rows(root, family(name), {"a.jsonl": rows}, data=["a.jsonl"], **values)


def figures(data):
    (source,) = data.report.sources
    return source.rows.long_prompts, source.rows.long_replies


def parts(root, rows, name="ChatML", **values):
    """The tokens of prompt and reply of each row: with train_on replies, what is learned is the reply."""
    masks = [e.loss_mask for e in prepared(root, rows, name, train_on="replies", **values).examples]
    return [(int(mask.argmax()), int(mask.sum())) for mask in masks]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("values", [{}, {"format": "alpaca-format"}])
def test_each_part_has_at_most_so_many_tokens_and_shorter_rows_stay(tmp_path, name, values):
    (short, (prompt, reply)) = parts(tmp_path / "all", [SHORT, LONG], name, **values)
    limits = {"source_max_len": prompt - 4, "target_max_len": 5}
    assert parts(tmp_path / "cut", [SHORT, LONG], name, **limits, **values) == [short, (prompt - 4, 5)]
    limits = {"source_max_len": prompt, "target_max_len": reply}
    assert parts(tmp_path / "equal", [LONG], name, **limits, **values) == [(prompt, reply)]


def test_the_end_of_the_words_goes_and_the_text_of_the_format_stays(tmp_path):
    ((tokens, _),) = parts(tmp_path / "all", [LONG])
    (example,) = prepared(tmp_path / "cut", [LONG], source_max_len=tokens - 6).examples
    words = example.text.partition("user\n")[2].partition("<|im_end|>")[0]
    assert words and WORDS.startswith(words) and words != WORDS
    assert example.text.endswith(f"<|im_end|>\n<|im_start|>assistant\n{WORDS}<|im_end|>\n")


def test_what_is_truncated_has_no_end_token_and_is_counted(tmp_path):
    ((tokens, _),) = parts(tmp_path / "short", [SHORT])
    data = prepared(tmp_path / "all", [SHORT, LONG, LONG], source_max_len=tokens, target_max_len=6)
    assert figures(data) == (2, 2)
    assert "2 with the end of the prompt truncated; 2 with the end of the reply truncated" in data.report.text()
    short, long, _ = (example.text for example in data.examples)
    assert short.endswith("No.<|im_end|>\n") and WORDS.startswith(long.partition("assistant\n")[2])


@pytest.mark.parametrize("train_on", ["everything", "replies"])
def test_it_does_not_matter_what_is_trained_on(tmp_path, train_on):
    limits = {"source_max_len": 9, "target_max_len": 6}
    data = prepared(tmp_path, [LONG], train_on=train_on, **limits)
    assert figures(data) == (1, 1)
    ids = data.examples[0].ids.tolist()
    assert ids == prepared(tmp_path / "other", [LONG], **limits).examples[0].ids.tolist()


def test_the_parts_of_completions_and_of_texts_with_a_marker(tmp_path):
    limits = {"source_max_len": 4, "target_max_len": 3}
    rows = [{"prompt": f"{WORDS} ", "completion": WORDS}]
    (example,) = prepared(tmp_path / "a", rows, **limits, add_eos="never").examples
    assert (int((~example.loss_mask).sum()), int(example.loss_mask.sum())) == (4, 3)
    data = prepared(tmp_path / "b", [{"text": f"{WORDS} ### {WORDS}"}], train_only_after="###", **limits)
    assert figures(data) == (1, 1) and "###" in data.examples[0].text


def test_chats_of_several_replies_and_raw_text_are_noted_and_stay(tmp_path):
    rows = [{"messages": [{"role": role, "content": WORDS} for role in ("user", "assistant") * 2]}]
    data = prepared(tmp_path / "chats", rows, source_max_len=4, target_max_len=3)
    assert data.examples[0].text == prepared(tmp_path / "plain", rows).examples[0].text
    note = "1 row does not have exactly one reply"
    assert any(each.startswith(note) for each in data.report.sources[0].notes)
    data = prepared(tmp_path / "split", rows, source_max_len=9, target_max_len=3, split_exchanges=True)
    assert figures(data) == (2, 2) and not any(each.startswith(note) for each in data.report.sources[0].notes)
    data = prepare_rows(tmp_path / "text", family("ChatML"), {"a.txt": f"{WORDS}. " * 9}, source_max_len=4)
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


ENGLISH = "A sagacious savage, it pained him that Queequeg's idol uncharacteristically disappeared."
CHINESE = "他在黑暗中慢慢地走着，心里想着那些永远不会再回来的日子，还有那个人。"


def test_sample_prompts_end_where_a_word_or_a_character_ends(tmp_path):
    """How much of an example is taken depends on its length, so each text gives another place."""
    tokenizer = family("ChatML")
    texts = [text for n in range(15) for text in (ENGLISH[: 30 + 4 * n], CHINESE[: 4 + n])]
    for number, text in enumerate(texts):
        examples = prepare_rows(tmp_path / str(number), tokenizer, {"a.txt": text}, cutoff=256).examples
        (prompt, *_) = (prompt.text for prompt in make_prompts("auto", PromptStyle(), tokenizer, examples))
        assert text.startswith(prompt)  # half a character would be no part of it
        assert number % 2 or not (prompt[-1].isalnum() and text[len(prompt)].isalnum()), prompt
