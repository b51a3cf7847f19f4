"""Batches for a model: its arguments, with the labels."""

from __future__ import annotations

from training_pro.engine.compute import collate


def padded_batch(examples):
    """One row per example, padded to the longest."""
    return _model_inputs(collate(examples, in_one_row=False))


def packed_batch(examples):
    """One row without padding; positions restart with each example."""
    return _model_inputs(collate(examples, in_one_row=True))


def _model_inputs(batch):
    return {**batch.inputs, "labels": batch.labels}
