"""The loss of each data set in a step, where there are several: out of losses that are there anyway."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...data.examples import Example, Origins
from .loss import Rows


class LossesApart:
    """Adds up on the model's own device, so that no batch waits for it."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._sums: torch.Tensor | None = None

    def add(self, rows: Rows, owners: torch.Tensor, examples: Sequence[Example]) -> None:
        """A batch, of which `owners` says whose each position is."""
        if not self._origins.several:
            return
        place = rows.losses.device
        if self._sums is None:
            self._sums = torch.zeros(2, len(self._origins.names), dtype=torch.float64, device=place)
        groups = torch.tensor(self._origins.of(examples), device=place)
        of_rows = groups[rows.of_owners(owners.to(rows.places.device)).to(place)]
        self._sums[0].index_add_(0, of_rows, rows.losses.detach().double())
        self._sums[1].index_add_(0, of_rows, torch.ones_like(of_rows, dtype=torch.float64))

    def so_far(self) -> torch.Tensor | None:
        """What is counted in this step, to come back to when a batch has to be done again."""
        return None if self._sums is None else self._sums.clone()

    def back_to(self, counted: torch.Tensor | None) -> None:
        self._sums = counted

    def taken(self) -> dict[str, float]:
        """The mean loss of each data set that was in the step; from now on a new one is counted."""
        if self._sums is None:
            return {}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self._sums)  # the batches of a step are spread over the processes
        losses, tokens = self._sums.tolist()
        self._sums.zero_()
        return {
            name: loss / count
            for name, loss, count in zip(self._origins.names, losses, tokens, strict=True)
            if count
        }
