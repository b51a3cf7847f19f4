"""Collate examples into tensors: padded to one row each, or packed into a single row.

    padded   ids  a b c d     labels  -100 b c d           mask  1 1 1 1
                  e f . .             -100 f -100 -100           1 1 0 0

    packed   ids  a b c d e f     labels  -100 b c d -100 f     positions  0 1 2 3 0 1

Any id can pad, since mask and labels exclude it: no token is added, no embedding is resized, and an end token
in the text is learned like any other. Nothing predicts a first token, so its label is -100, as are those of
tokens that are read but not learned.
A packed row has no mask: with one, models would treat the whole row as one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...data.examples import IGNORE_INDEX, Example

TOKENS, OWNERS, EXAMPLES, JOINS = "tokens", "owners", "examples", "joins"
"""Extra keys of a batch that the model does not take: number of tokens, the example of each token, the examples,
and whether each continues the one before."""


def collate(
    examples: Sequence[Example], joins: Sequence[bool] | None = None, *, in_one_row: bool
) -> dict[str, Any]:
    """Collate a batch, padded or packed, with extra keys for the trainer.

    An example whose `joins` is true continues the one before it.
    """
    continues = tuple(joins or [False] * len(examples))
    texts = _texts(examples, continues)
    tensors = _packed(texts) if in_one_row else _padded(texts)
    tokens = sum(len(text.ids) for text in texts)
    return {**tensors, TOKENS: tokens, EXAMPLES: tuple(examples), JOINS: continues}


@dataclass(frozen=True)
class _Text:
    """One text for the model: an example, or several that continue each other."""

    ids: torch.Tensor
    labels: torch.Tensor
    owners: torch.Tensor


def _texts(examples: Sequence[Example], joins: Sequence[bool]) -> list[_Text]:
    texts: list[_Text] = []
    for index, (example, continues) in enumerate(zip(examples, joins, strict=True)):
        ids = torch.tensor(example.ids, dtype=torch.long)
        parts = (ids, label_tensor(example), torch.full_like(ids, index))
        if continues and texts:  # an example repeated to fill a batch may come first, without its predecessor
            previous = texts.pop()
            parts = tuple(
                map(torch.cat, zip((previous.ids, previous.labels, previous.owners), parts, strict=True))
            )
        texts.append(_Text(*parts))
    return texts


def label_tensor(example: Example) -> torch.Tensor:
    """Return the labels of an example; the first token is never one, since nothing precedes it."""
    return torch.as_tensor(example.labels, dtype=torch.long)


def _padded(texts: Sequence[_Text]) -> dict[str, torch.Tensor]:
    longest = max(len(text.ids) for text in texts)
    ids = torch.zeros((len(texts), longest), dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORE_INDEX)
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
