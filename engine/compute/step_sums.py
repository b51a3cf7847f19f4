"""Sums over the batches of a step: its tokens, and its loss by dataset, from the losses that training computes."""

from __future__ import annotations

import torch

from ...data.examples import ExampleDatasets
from .collator import Batch
from .loss import TokenLosses


class StepSums:
    """The losses are summed on the model's device, so that no batch has to synchronize."""

    def __init__(self, datasets: ExampleDatasets) -> None:
        self._datasets = datasets
        self._tokens = 0
        self._losses: torch.Tensor | None = None

    def add(self, batch: Batch, rows: TokenLosses) -> None:
        self._tokens += batch.tokens
        if not self._datasets.has_several:
            return
        device = rows.losses.device
        if self._losses is None:
            self._losses = torch.zeros(2, len(self._datasets.names), dtype=torch.float64, device=device)
        dataset_of_example = torch.tensor(self._datasets.of(batch.examples), device=device)
        owners = rows.owners_at_labels(batch.owners.to(rows.positions.device)).to(device)
        losses = torch.stack([rows.losses.detach().double(), torch.ones_like(rows.losses, dtype=torch.float64)])
        self._losses.index_add_(1, dataset_of_example[owners], losses)

    def snapshot(self) -> tuple[int, torch.Tensor | None]:
        """Return a copy of the sums, to restore if a batch has to be repeated."""
        return self._tokens, None if self._losses is None else self._losses.clone()

    def restore(self, sums: tuple[int, torch.Tensor | None]) -> None:
        self._tokens, self._losses = sums

    def take(self) -> tuple[int, dict[str, float]]:
        """Return the tokens of the step and the mean loss of each dataset, and start the next step."""
        tokens, self._tokens = self._tokens, 0
        if self._losses is None:
            return tokens, {}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self._losses)  # the batches of a step are distributed over the processes
        losses, counts = self._losses.tolist()
        self._losses.zero_()
        names = self._datasets.names
        return tokens, {n: loss / count for n, loss, count in zip(names, losses, counts, strict=True) if count}
