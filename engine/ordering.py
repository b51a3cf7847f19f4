"""The order of a run's examples, epoch by epoch, as the Trainer's loader asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from torch.utils.data import Sampler

from ..data import batching
from ..data.examples import Examples
from .blueprint import Blueprint


class EachEpoch(Sampler[int]):  # type: ignore[misc]
    """All examples once an epoch. Which epoch it is, the steps done say: so a run that goes on needs no more."""

    def __init__(self, examples: Examples, blueprint: Blueprint, steps_done: Callable[[], int]) -> None:
        self._examples, self._blueprint, self._steps_done = examples, blueprint, steps_done

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[int]:
        epoch = self._steps_done() // self._blueprint.plan.steps_per_epoch
        return iter(self.order(epoch).tolist())

    def order(self, epoch: int) -> batching.Numbers:
        numbers, seed = np.arange(len(self)), self._blueprint.settings.what.seed
        kind = self._blueprint.settings.steps.batching
        if kind == "shuffled":
            return batching.shuffled(numbers, seed, epoch)
        if kind == "by_length":
            return batching.by_length(numbers, self._lengths, self._batch, seed, epoch)
        return numbers

    @cached_property
    def _lengths(self) -> list[int]:
        return self._examples.lengths()

    @property
    def _batch(self) -> int:
        return self._blueprint.plan.batch_size
