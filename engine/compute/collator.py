"""Collate examples into tensors: padded to one row each, or packed into a single row.

    padded   ids  a b c d     labels  -100 b c d           mask  1 1 1 1
                  e f . .             -100 f -100 -100           1 1 0 0

    packed   ids  a b c d e f     labels  -100 b c d -100 f     positions  0 1 2 3 0 1

Any id can pad, since mask and labels exclude it: no token is added, no embedding is resized, and an end token
in the text is learned like any other. Nothing predicts a first token, so its label is -100, as are those of
tokens that are read but not learned.
A packed row has no mask: with one, models would treat the whole row as one text.

Examples that are compared with others are followed by all of these, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ...data.examples import IGNORE_INDEX, Example


@dataclass(frozen=True)
class Batch:
    """Examples with their tensors; its items are texts: examples that continue each other are one text.

    It moves to a device and into pinned memory like a tensor, so a data loader takes it as it is.
    """

    examples: tuple[Example, ...]
    joins: tuple[bool, ...]  # whether each example continues the one before it
    inputs: dict[str, torch.Tensor]  # arguments of the model
    labels: torch.Tensor
    owners: torch.Tensor  # for each token, the index of its example, or of what that is compared with
    supervised: torch.Tensor  # the row and column of each label; found here, since a GPU would have to wait for it

    @property
    def tokens(self) -> int:
        return sum(example.tokens for example in self.examples)

    def __len__(self) -> int:
        return self.joins.count(False)

    def __getitem__(self, texts: slice) -> Batch:
        """Return some of the texts as a batch on the same device."""
        first, end, _ = texts.indices(len(self))
        if (first, end) == (0, len(self)):
            return self
        starts = [index for index, continues in enumerate(self.joins) if not continues] + [len(self.joins)]
        part = slice(starts[first], starts[end])
        batch = collate(self.examples[part], self.joins[part], in_one_row="position_ids" in self.inputs)
        return batch.to(self.labels.device)

    def to(self, device: torch.device | str, **options: Any) -> Batch:
        return self._map(lambda tensor: tensor.to(device, **options))

    def pin_memory(self) -> Batch:
        return self._map(torch.Tensor.pin_memory)

    def _map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        inputs = {name: move(tensor) for name, tensor in self.inputs.items()}
        moved = {name: move(getattr(self, name)) for name in ("labels", "owners", "supervised")}
        return replace(self, inputs=inputs, **moved)


def find_supervised(labels: torch.Tensor) -> torch.Tensor:
    """Find the row and column of each label that something before it predicts."""
    return (labels[:, 1:] != IGNORE_INDEX).nonzero() + torch.tensor([0, 1], device=labels.device)


def list_sides(examples: Sequence[Example]) -> list[Example]:
    """The examples, then those that they are compared with."""
    return [*examples, *(example.contrast for example in examples if example.contrast is not None)]


def collate(examples: Sequence[Example], joins: Sequence[bool] = (), *, in_one_row: bool) -> Batch:
    """Collate a batch, padded or packed; an example whose `joins` is true continues the one before it."""
    # An example repeated to fill a batch may come first, without its predecessor.
    continues = (False, *joins[1:]) if joins else (False,) * len(examples)
    texts: list[tuple[torch.Tensor, ...]] = []  # the ids, labels and owners of each text
    for index, (example, is_continued) in enumerate(zip_longest(list_sides(examples), continues)):
        ids = torch.tensor(example.ids, dtype=torch.long)
        text = (ids, torch.as_tensor(example.labels, dtype=torch.long), torch.full_like(ids, index))
        if is_continued:
            text = tuple(torch.cat(parts) for parts in zip(texts.pop(), text, strict=True))
        texts.append(text)
    columns = zip(*texts, strict=True)
    if in_one_row:
        ids, labels, owners = (torch.cat(column)[None] for column in columns)
        # They begin again with each text: from them, a model knows which tokens see each other.
        positions = torch.cat([torch.arange(len(text[0])) for text in texts])[None]
        inputs = {"input_ids": ids, "position_ids": positions}
        return Batch(tuple(examples), continues, inputs, labels, owners, find_supervised(labels))
    all_ids, all_labels, all_owners = columns
    pad = partial(pad_sequence, batch_first=True)
    mask, owners = pad([torch.ones_like(ids) for ids in all_ids]), pad(all_owners)
    owners = torch.where(mask.bool(), owners, owners.amax(1, keepdim=True))  # padding belongs to the last example
    inputs = {"input_ids": pad(all_ids), "attention_mask": mask}
    labels = pad(all_labels, padding_value=IGNORE_INDEX)
    return Batch(tuple(examples), continues, inputs, labels, owners, find_supervised(labels))
