"""Orders of examples, and passages of the data: where they are, and that only what follows a prompt is labelled."""

from __future__ import annotations

import numpy as np
import pytest
from training_pro.data.examples import batch_order, pick_passages
from training_pro.tests.rowing import chat, family, prepare_rows

LENGTHS = [7, 3, 9, 3, 5, 9, 1, 7, 2, 5, 4]
SENTENCES = " ".join(f"Line {n} tells of the river and of number {n}." for n in range(300))
BOOK = "\n\n\n".join(f"Chapter {n}\n{SENTENCES[n * 900 : n * 900 + 900]}" for n in range(12))
REPLY = "I light it so that the ships far out on the water know where the rocks are in the night."


def batches(epoch, lengths):
    order = batch_order.order_by_length(np.arange(len(lengths)), lengths, 4, 42, epoch).tolist()
    assert sorted(order) == list(range(len(lengths)))
    return [order[n : n + 4] for n in range(0, len(order), 4)]


def test_shuffled_is_another_order_each_epoch_and_the_same_for_the_same_seed():
    orders = [batch_order.shuffle(np.arange(50), 42, epoch).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert batch_order.shuffle(np.arange(50), 42, 1).tolist() == orders[1]
    assert batch_order.shuffle(np.arange(50), 43, 1).tolist() != orders[1]
    assert batch_order.shuffle(np.arange(6), 42, 0).tolist() == [3, 2, 5, 4, 1, 0]


@pytest.mark.parametrize("epoch", range(5))
def test_batches_have_similar_lengths_with_the_longest_first_and_an_incomplete_one_last(epoch):
    lengths = [[LENGTHS[n] for n in batch] for batch in batches(epoch, LENGTHS)]
    assert [len(batch) for batch in lengths] == [4, 4, 3]
    assert max(LENGTHS) in lengths[0] or max(LENGTHS) in lengths[-1]
    for batch in lengths:  # the ranges of the batches do not overlap
        others = [length for other in lengths if other is not batch for length in other]
        assert not any(min(batch) < length < max(batch) for length in others)
    longest = [max(batch) + 1 for batch in batches(epoch, range(40))]
    assert longest[0] == 40 and sorted(longest) == list(range(4, 41, 4))
    assert longest[1:] != sorted(longest[1:], reverse=True)  # whole batches are shuffled


def test_few_examples_and_examples_of_equal_length():
    for count in (0, 1, 3, 4, 5):
        batches(0, LENGTHS[:count])
    first, second = ({tuple(sorted(batch)) for batch in batches(epoch, [5] * 40)} for epoch in range(2))
    assert first != second


def passages_of(root, files, name="ChatML", count=4, **values):
    tokenizer = family(name)
    examples = prepare_rows(root, tokenizer, files, **values).examples
    return tokenizer, examples, pick_passages(examples, count, tokenizer.bos)


def halves(tokenizer, passage):
    ids = passage.example.ids.tolist()
    return tokenizer.decode(ids[: passage.prompt_tokens]), tokenizer.decode(ids[passage.prompt_tokens :])


def test_passages_of_a_book_are_spread_over_it_and_stand_in_it(tmp_path):
    tokenizer, examples, passages = passages_of(tmp_path, {"book.txt": BOOK}, "Llama", count=8, cutoff=128)
    numbers = [passage.example.number for passage in passages]
    assert len(passages) == 8 and numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (0, len(examples) - 1)
    for passage, again in zip(passages, pick_passages(examples, 8, tokenizer.bos), strict=True):
        ids, labels = passage.example.ids, passage.example.labels
        assert np.array_equal(ids, again.example.ids)
        assert (labels[: passage.prompt_tokens] == -100).all() and passage.part.startswith("Chapter ")
        assert (labels[passage.prompt_tokens :] == ids[passage.prompt_tokens :]).all()
        text = tokenizer.decode(ids.tolist()).replace("<s>", "").strip()
        assert " ".join(text.split()) in " ".join(BOOK.split())


def test_the_prompt_of_a_row_is_all_that_comes_before_its_reply_and_later_replies_take_their_turn(tmp_path):
    second = REPLY.replace("ships", "boats")
    row = chat(
        "What is the light for, and who pays for the oil?", REPLY, "And in summer, when it is light?", second
    )
    tokenizer, _, passages = passages_of(tmp_path, {"chat.jsonl": [row] * 2})
    (prompt, target), (_, other) = (halves(tokenizer, passage) for passage in passages)
    assert prompt.endswith("<|im_start|>assistant\n") and "who pays" in prompt
    assert (REPLY + "<|im_end|>").startswith(target) and passages[0].part == "chat.jsonl"
    assert "ships" in target and "ships" not in other


def test_data_without_a_passage_give_none(tmp_path):
    tokenizer, examples, passages = passages_of(tmp_path, {"t.txt": "Too short."})
    assert passages == pick_passages(examples, 0, tokenizer.bos) == []
