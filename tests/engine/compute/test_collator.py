"""Collated batches as exact tensors: padding, mask, labels, texts that continue each other, and moving."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from torch.utils.data._utils.pin_memory import pin_memory
from training_pro.data.examples import Example
from training_pro.engine.compute import collate


def examples(*rows):
    return [Example(np.array(ids, np.int32), None, None, 0) for ids in rows]


def as_lists(batch):
    tensors = {**batch.inputs, "labels": batch.labels, "owners": batch.owners}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.int64}
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def test_padded_rows_in_which_an_id_that_also_pads_is_learned():
    batch = collate(examples([5, 6, 7, 8], [0, 0, 3], [0]), in_one_row=False)
    assert as_lists(batch) == {
        "input_ids": [[5, 6, 7, 8], [0, 0, 3, 0], [0, 0, 0, 0]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]],
        "labels": [[-100, 6, 7, 8], [-100, 0, 3, -100], [-100] * 4],
        "owners": [[0] * 4, [1] * 4, [2] * 4],
    }
    assert batch.supervised.tolist() == [[0, 1], [0, 2], [0, 3], [1, 1], [1, 2]]
    assert (len(batch), batch.tokens, batch.joins) == (3, 8, (False,) * 3)


def test_a_packed_row_in_which_an_example_continues_another():
    batch = collate(examples([5, 6, 7], [9], [5, 8]), (False, True, False), in_one_row=True)
    assert as_lists(batch) == {
        "input_ids": [[5, 6, 7, 9, 5, 8]],
        "position_ids": [[0, 1, 2, 3, 0, 1]],
        "labels": [[-100, 6, 7, -100, -100, 8]],
        "owners": [[0, 0, 0, 1, 2, 2]],
    }
    assert (len(batch), batch.tokens, batch.joins) == (2, 6, (False, True, False))


def test_padding_belongs_to_the_last_example_of_its_row():
    batch = collate(examples([1, 2], [3], [4, 5, 6, 7], [8]), (False, True, False, False), in_one_row=False)
    assert batch.owners.tolist() == [[0, 0, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]


def test_tokens_that_are_not_learned_have_no_label_and_the_ids_stay_as_they_were():
    ids, learned = np.array([5, 6, 7], np.int32), np.array([True, False, True])
    batch = collate([Example(ids, learned, None, 0)], in_one_row=False)
    batch.inputs["input_ids"] += 1
    assert batch.labels.tolist() == [[-100, -100, 7]]
    assert ids.tolist() == [5, 6, 7]


@pytest.mark.parametrize("in_one_row", [False, True])
def test_texts_of_a_batch_are_the_batch_of_these_texts(in_one_row):
    rows, joins = [[1, 2, 3], [4, 5], [6], [7, 8]], (False, True, False, False)
    batch = collate(examples(*rows), joins, in_one_row=in_one_row)
    assert batch[0:3] is batch
    for texts, part in [(slice(0, 1), slice(0, 2)), (slice(1, 3), slice(2, 4)), (slice(2, 3), slice(3, 4))]:
        expected = collate(examples(*rows[part]), joins[part], in_one_row=in_one_row)
        assert as_lists(batch[texts]) == as_lists(expected)
        assert (len(batch[texts]), batch[texts].joins) == (len(expected), expected.joins)


def test_an_example_repeated_to_fill_a_batch_continues_nothing():
    batch = collate(examples([1, 2], [3]), (True, True), in_one_row=True)
    assert (batch.joins, len(batch)) == ((False, True), 1)


@pytest.mark.parametrize("in_one_row", [False, True])
def test_a_data_loader_pins_and_moves_a_batch_like_a_tensor(monkeypatch, in_one_row):
    """As the Trainer's collator returns it: one entry of a dict."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: pinned.append(tensor.shape) or tensor)
    batch = collate(examples([1, 2, 3], [4, 5]), in_one_row=in_one_row)
    loaded = pin_memory({"batch": batch, "labels": batch.labels})
    assert batch.supervised.shape in pinned and len(pinned) == 6
    moved = send_to_device(loaded, torch.device("meta"), non_blocking=True)["batch"]
    assert {tensor.device.type for tensor in (moved.labels, moved.owners, *moved.inputs.values())} == {"meta"}
    assert moved.examples == batch.examples
    assert moved[:1].labels.device.type == "meta"
