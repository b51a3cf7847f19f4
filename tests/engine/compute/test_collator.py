"""Collated batches as exact tensors: padding, mask, labels, and the number of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from torch.utils.data._utils.pin_memory import pin_memory
from training_pro.data.examples import Example
from training_pro.engine.compute import collate
from training_pro.tests.engine.batches import padded_batch


def batch(*rows):
    return padded_batch([Example(np.array(ids, np.int32), None, None, 0) for ids in rows])


def test_tokens_that_are_not_learned_have_no_label():
    ids, trained = np.array([5, 6, 7], np.int32), np.array([True, False, True])
    assert padded_batch([Example(ids, trained, None, 0)])["labels"].tolist() == [[-100, -100, 7]]


def test_rows_of_unequal_length():
    collated = batch([5, 6, 7, 8], [9, 5])
    expected = {
        "input_ids": torch.tensor([[5, 6, 7, 8], [9, 5, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
        "labels": torch.tensor([[-100, 6, 7, 8], [-100, 5, -100, -100]]),
    }
    assert collated.keys() == expected.keys()
    for name, tensor in expected.items():
        assert collated[name].dtype == torch.int64
        assert torch.equal(collated[name], tensor), name


def test_an_id_that_also_pads_is_learned_in_the_text():
    collated = batch([0, 0, 3], [0])
    assert collated["labels"].tolist() == [[-100, 0, 3], [-100, -100, -100]]
    assert collated["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_collated_tensors_are_copies():
    ids = np.array([1, 2, 3], np.int32)
    collated = padded_batch([Example(ids, None, None, 0)])
    collated["input_ids"] += 1
    assert ids.tolist() == [1, 2, 3]
    assert collated["labels"].tolist() == [[-100, 2, 3]]


@pytest.mark.parametrize("in_one_row", [False, True])
def test_a_data_loader_pins_and_moves_a_batch_like_a_tensor(monkeypatch, in_one_row):
    """As the Trainer's collator returns it: one entry of a dict."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: pinned.append(tensor.shape) or tensor)
    examples = [Example(np.array(ids, np.int32), None, None, 0) for ids in ([1, 2, 3], [4, 5])]
    batch = collate(examples, in_one_row=in_one_row)
    loaded = pin_memory({"batch": batch, "labels": batch.labels})
    assert pinned == [batch.labels.shape] * 5
    moved = send_to_device(loaded, torch.device("meta"), non_blocking=True)
    tensors = [moved["labels"], moved["batch"].labels, moved["batch"].owners, *moved["batch"].inputs.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved["batch"].examples == batch.examples
    assert moved["batch"][:1].labels.device.type == "meta"


def make_batch(rows, joins=(), *, in_one_row=False):
    return collate([Example(np.array(ids, np.int32), None, None, 0) for ids in rows], joins, in_one_row=in_one_row)


def test_a_batch_counts_its_texts_and_its_tokens():
    batch = make_batch([[1, 2, 3], [4, 5], [6]], (False, True, False))
    assert (len(batch), batch.tokens) == (2, 6)
    assert batch.joins == (False, True, False)
    assert len(make_batch([[1], [2]])) == 2


@pytest.mark.parametrize("in_one_row", [False, True])
def test_texts_of_a_batch_are_the_batch_of_these_texts(in_one_row):
    rows, joins = [[1, 2, 3], [4, 5], [6], [7, 8]], (False, True, False, False)
    batch = make_batch(rows, joins, in_one_row=in_one_row)
    assert batch[0:3] is batch
    for texts, part, part_joins in [
        (slice(0, 1), rows[:2], joins[:2]),
        (slice(1, 3), rows[2:], (False, False)),
        (slice(2, 3), rows[3:], (False,)),
    ]:
        expected = make_batch(part, part_joins, in_one_row=in_one_row)
        selected = batch[texts]
        assert len(selected) == len(expected)
        assert selected.inputs.keys() == expected.inputs.keys()
        assert all(torch.equal(selected.inputs[name], expected.inputs[name]) for name in expected.inputs)
        assert torch.equal(selected.labels, expected.labels)
        assert torch.equal(selected.owners, expected.owners)


def test_an_example_repeated_to_fill_a_batch_continues_nothing():
    assert make_batch([[1, 2], [3]], (True, True)).joins == (False, True)
    assert len(make_batch([[1, 2], [3]], (True, False))) == 2


def test_padding_belongs_to_the_last_example_of_its_row():
    batch = make_batch([[1, 2], [3], [4, 5, 6, 7], [8]], (False, True, False, False))
    assert batch.owners.tolist() == [[0, 0, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]


def test_packed_positions_begin_anew_with_each_text():
    batch = make_batch([[1, 2], [3], [4, 5]], (False, True, False), in_one_row=True)
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert batch.owners.tolist() == [[0, 0, 1, 2, 2]]
