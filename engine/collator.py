"""Examples to tensors: padded to the longest of the batch, labels and mask from lengths.

    ids     a b c d     labels  -100 b c d        mask  1 1 1 1
            e f . .             -100 f -100 -100        1 1 0 0

Any id may pad, since mask and labels never ask for it: no token is added, nothing is resized, and an
end token in the text is learned like any other. Nothing predicts a first token, so its label is -100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..data.examples import Example

IGNORED = -100
TOKENS = "tokens"


def collate(examples: Sequence[Example]) -> dict[str, Any]:
    """A batch, with the number of its tokens beside the tensors (they are not the model's business)."""
    longest = max(len(e.ids) for e in examples)
    ids = torch.zeros((len(examples), longest), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    mask = torch.zeros_like(ids)
    for row, example in enumerate(examples):
        length = len(example.ids)
        ids[row, :length] = torch.as_tensor(example.ids, dtype=torch.long)
        labels[row, 1:length] = ids[row, 1:length]
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, TOKENS: int(mask.sum())}
