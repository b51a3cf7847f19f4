"""Batches as models get them: without what a trainer wants to know beside."""

from __future__ import annotations

from training_pro.engine.compute.collator import EXAMPLES, JOINS, OWNERS, batched


def padded(examples):
    """One row an example, each as long as the longest."""
    return _for_a_model(batched(examples, in_one_row=False))


def packed(examples):
    """One row without padding; the positions begin anew with each example."""
    return _for_a_model(batched(examples, in_one_row=True))


def _for_a_model(batch):
    return {name: value for name, value in batch.items() if name not in (OWNERS, EXAMPLES, JOINS)}
