"""Mean loss of each dataset in a step, from the token losses that training computes anyway."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...data.examples import Example, ExampleDatasets
from .loss import TokenLosses


class LossByDataset:
    """Sums on the model's device, so that no batch has to synchronize."""

    def __init__(self, origins: ExampleDatasets) -> None:
        self._origins = origins
        self._sums: torch.Tensor | None = None

    def add(self, rows: TokenLosses, owners: torch.Tensor, examples: Sequence[Example]) -> None:
        """Add a batch; `owners` gives the example of each position."""
        if not self._origins.has_several:
            return
        device = rows.losses.device
        if self._sums is None:
            self._sums = torch.zeros(2, len(self._origins.names), dtype=torch.float64, device=device)
        groups = torch.tensor(self._origins.of(examples), device=device)
        dataset_of_row = groups[rows.owners_at_labels(owners.to(rows.positions.device)).to(device)]
        self._sums[0].index_add_(0, dataset_of_row, rows.losses.detach().double())
        self._sums[1].index_add_(0, dataset_of_row, torch.ones_like(dataset_of_row, dtype=torch.float64))

    def snapshot(self) -> torch.Tensor | None:
        """Return a copy of the sums of this step, to restore if a batch has to be repeated."""
        return None if self._sums is None else self._sums.clone()

    def reset_to(self, sums: torch.Tensor | None) -> None:
        self._sums = sums

    def taken(self) -> dict[str, float]:
        """Return the mean loss of each dataset in the step, and start the next one."""
        if self._sums is None:
            return {}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self._sums)  # the batches of a step are distributed over the processes
        losses, counts = self._sums.tolist()
        self._sums.zero_()
        return {
            name: loss / count
            for name, loss, count in zip(self._origins.names, losses, counts, strict=True)
            if count
        }
