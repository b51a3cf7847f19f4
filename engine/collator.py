"""Examples to tensors: one below the other, padded, or all in one row, packed; labels from lengths.

    padded   ids  a b c d     labels  -100 b c d           mask  1 1 1 1
                  e f . .             -100 f -100 -100           1 1 0 0

    packed   ids  a b c d e f     labels  -100 b c d -100 f     positions  0 1 2 3 0 1

Any id may pad, since mask and labels never ask for it: no token is added, nothing is resized, and an
end token in the text is learned like any other. Nothing predicts a first token, so its label is -100;
that of what is read and not learned is too.
A packed row has no mask: with one, models take all of it for one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..data.examples import IGNORED, Example

TOKENS, OWNERS, EXAMPLES = "tokens", "owners", "examples"
"""Beside the tensors, and not the model's business: how many tokens, whose they are, what they were made of."""


def batched(examples: Sequence[Example], *, in_one_row: bool) -> dict[str, Any]:
    """A batch either way, with what a trainer wants to know of it."""
    lengths = torch.tensor([len(e.ids) for e in examples])
    numbers = torch.arange(len(examples))
    made = packed(examples) if in_one_row else collate(examples)
    owners = torch.repeat_interleave(numbers, lengths)[None] if in_one_row else numbers[:, None]
    return made | {OWNERS: owners.expand_as(made["labels"]), EXAMPLES: tuple(examples)}


def collate(examples: Sequence[Example]) -> dict[str, Any]:
    """A batch of one row an example, each as long as the longest."""
    longest = max(len(e.ids) for e in examples)
    ids = torch.zeros((len(examples), longest), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    mask = torch.zeros_like(ids)
    for row, example in enumerate(examples):
        length = len(example.ids)
        ids[row, :length] = torch.as_tensor(example.ids, dtype=torch.long)
        labels[row, :length] = labels_of(example)
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, TOKENS: int(mask.sum())}


def packed(examples: Sequence[Example]) -> dict[str, Any]:
    """A batch of one row without padding; the positions begin anew with each example."""
    return {
        "input_ids": torch.cat([torch.as_tensor(e.ids, dtype=torch.long) for e in examples])[None],
        "position_ids": torch.cat([torch.arange(len(e.ids)) for e in examples])[None],
        "labels": torch.cat([labels_of(e) for e in examples])[None],
        TOKENS: sum(len(e.ids) for e in examples),
    }


def labels_of(example: Example) -> torch.Tensor:
    """What is to be predicted, at its own place; the first token has nothing before it to predict it from."""
    return torch.as_tensor(example.labels, dtype=torch.long)
