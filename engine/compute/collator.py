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
from dataclasses import dataclass
from typing import Any

import torch

from ...data.examples import IGNORED, Example

TOKENS, OWNERS, EXAMPLES, JOINS = "tokens", "owners", "examples", "joins"
"""Beside the tensors, and not the model's business: how many tokens, whose they are, what they were made of."""


def batched(
    examples: Sequence[Example], joins: Sequence[bool] | None = None, *, in_one_row: bool
) -> dict[str, Any]:
    """A batch either way, with what a trainer wants to know of it; one that joins goes on from the one before."""
    joined = tuple(joins or [False] * len(examples))
    texts = _texts(examples, joined)
    made = _packed(texts) if in_one_row else _padded(texts)
    tokens = sum(len(text.ids) for text in texts)
    return {**made, TOKENS: tokens, EXAMPLES: tuple(examples), JOINS: joined}


@dataclass(frozen=True)
class _Text:
    """What the model reads as one: an example, or two of which the second goes on from the first."""

    ids: torch.Tensor
    labels: torch.Tensor
    owners: torch.Tensor


def _texts(examples: Sequence[Example], joins: Sequence[bool]) -> list[_Text]:
    texts: list[_Text] = []
    for number, (example, joined) in enumerate(zip(examples, joins, strict=True)):
        ids = torch.tensor(example.ids, dtype=torch.long)
        parts = (ids, labels_of(example), torch.full_like(ids, number))
        if joined and texts:  # one that comes again to fill a batch may begin it, without the one before
            before = texts.pop()
            parts = tuple(map(torch.cat, zip((before.ids, before.labels, before.owners), parts, strict=True)))
        texts.append(_Text(*parts))
    return texts


def labels_of(example: Example) -> torch.Tensor:
    """What is to be predicted, at its own place; the first token has nothing before it to predict it from."""
    return torch.as_tensor(example.labels, dtype=torch.long)


def _padded(texts: Sequence[_Text]) -> dict[str, torch.Tensor]:
    longest = max(len(text.ids) for text in texts)
    ids = torch.zeros((len(texts), longest), dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
    owners = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        length = len(text.ids)
        ids[row, :length], labels[row, :length], mask[row, :length] = text.ids, text.labels, 1
        owners[row, :length], owners[row, length:] = text.owners, text.owners[-1]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, OWNERS: owners}


def _packed(texts: Sequence[_Text]) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.cat([text.ids for text in texts])[None],
        "position_ids": torch.cat([torch.arange(len(text.ids)) for text in texts])[None],
        "labels": torch.cat([text.labels for text in texts])[None],
        OWNERS: torch.cat([text.owners for text in texts])[None],
    }
