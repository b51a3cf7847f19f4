"""Passages of the data: where they are, what their prompt is, and that only what follows it is labelled."""

from __future__ import annotations

import numpy as np
import pytest
from training_pro.data.examples import pick_passages
from training_pro.tests import rowing
from training_pro.tests.rowing import chat, family

SENTENCES = " ".join(f"Line {n} tells of the river and of number {n}." for n in range(300))
BOOK = "\n\n\n".join(f"Chapter {n}\n{SENTENCES[n * 900 : n * 900 + 900]}" for n in range(12))
REPLY = "I light it so that the ships far out on the water know where the rocks are in the night."


def prepared(root, files, name="Llama", **values):
    tokenizer = family(name)
    return tokenizer, rowing.prepare_rows(root, tokenizer, files, data=list(files), **values).examples


def halves(tokenizer, passage):
    ids = passage.example.ids.tolist()
    return tokenizer.decode(ids[: passage.prompt_tokens]), tokenizer.decode(ids[passage.prompt_tokens :])


def test_passages_of_a_book_are_spread_over_it_and_stand_in_it(tmp_path):
    tokenizer, examples = prepared(tmp_path, {"book.txt": BOOK}, cutoff=128)
    passages = pick_passages(examples, 8, tokenizer.bos)
    assert len(passages) == 8
    numbers = [passage.example.number for passage in passages]
    assert numbers == sorted(numbers) and numbers[0] == 0 and numbers[-1] == len(examples) - 1
    for passage in passages:
        labels = passage.example.labels
        assert (labels[: passage.prompt_tokens] == -100).all()
        assert (labels[passage.prompt_tokens :] == passage.example.ids[passage.prompt_tokens :]).all()
        assert passage.part.startswith("Chapter ")
        text = tokenizer.decode(passage.example.ids.tolist()).replace("<s>", "").strip()
        assert " ".join(text.split()) in " ".join(BOOK.split())


def test_the_same_passages_are_picked_every_time(tmp_path):
    tokenizer, examples = prepared(tmp_path, {"book.txt": BOOK}, cutoff=128)
    first, second = (pick_passages(examples, 8, tokenizer.bos) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.example.ids, other.example.ids)


def test_the_prompt_of_a_row_is_all_that_comes_before_its_reply(tmp_path):
    conversation = chat("What is the light for, and who pays for the oil?", REPLY)
    tokenizer, examples = prepared(tmp_path, {"chat.jsonl": [conversation]}, "ChatML")
    (passage,) = pick_passages(examples, 4, tokenizer.bos)
    prompt, target = halves(tokenizer, passage)
    assert prompt.endswith("<|im_start|>assistant\n") and "who pays" in prompt
    assert (REPLY + "<|im_end|>").startswith(target) and passage.part == "chat.jsonl"


def test_later_replies_of_a_conversation_take_their_turn(tmp_path):
    second = REPLY.replace("ships", "boats")
    conversation = chat(
        "What is the light for, and who pays?", REPLY, "And in the summer, when it is light?", second
    )
    tokenizer, examples = prepared(tmp_path, {"chat.jsonl": [conversation] * 2}, "ChatML")
    targets = [halves(tokenizer, passage)[1] for passage in pick_passages(examples, 4, tokenizer.bos)]
    assert ["ships" in target for target in targets] == [True, False]


@pytest.mark.parametrize("text", ["Too short.", ""])
def test_data_without_a_passage_give_none(tmp_path, text):
    tokenizer, examples = prepared(tmp_path, {"t.txt": text or "One."})
    assert pick_passages(examples, 4, tokenizer.bos) == []
    assert pick_passages(examples, 0, tokenizer.bos) == []
