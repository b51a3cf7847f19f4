"""Batches for a model, without the extra keys for the trainer."""

from __future__ import annotations

from training_pro.engine.compute.collator import EXAMPLES, JOINS, OWNERS, collate


def padded_batch(examples):
    """One row per example, padded to the longest."""
    return _model_inputs(collate(examples, in_one_row=False))


def packed_batch(examples):
    """One row without padding; positions restart with each example."""
    return _model_inputs(collate(examples, in_one_row=True))


def _model_inputs(batch):
    return {name: value for name, value in batch.items() if name not in (OWNERS, EXAMPLES, JOINS)}
