"""One pass of a model over examples, without learning from them, after which everything is as before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch

from ...data.examples import IGNORED, Example, Examples
from ..compute import EXAMPLES, JOINS, OWNERS, TOKENS, Loss, Ways, batched, distributed, is_out_of_memory, quiet
from ..lora import device, in_its_type, same_chance

Group = int | np.ndarray[Any, Any]
"""Of all tokens of an example, or of each of them."""
Some = Sequence[Example] | Examples
Told = Callable[[float], None]
"""Hears how much is done."""
TRIED = 3
"""So many batches tell how long all of them take."""


class AtOnce(NamedTuple):
    """The most that goes through the model at once: examples, and tokens, padding among them."""

    examples: float = inf
    tokens: float = inf


class Sums(NamedTuple):
    """Of each group of examples: losses added up, tokens that were predicted right, and tokens."""

    losses: np.ndarray[Any, Any]
    hits: np.ndarray[Any, Any]
    tokens: np.ndarray[Any, Any]

    @staticmethod
    def none(groups: int) -> Sums:
        return Sums(*(np.zeros(groups) for _ in Sums._fields))

    @property
    def loss(self) -> float:
        """The mean over all tokens."""
        return float(self.losses.sum() / max(self.tokens.sum(), 1))

    def known(self, group: int) -> dict[str, Any]:
        """What there is to say of a group that has tokens."""
        tokens = int(self.tokens[group])
        return {
            "tokens": tokens,
            "loss": float(self.losses[group] / tokens),
            "right": float(self.hits[group] / tokens),
        }

    def grouped(self, numbers: np.ndarray[Any, Any], groups: int) -> Sums:
        """Added up once more: of each group the number of the larger one that it is in."""
        return Sums(*(np.bincount(numbers, sums, groups) for sums in self))


@contextmanager
def measuring(model: Any) -> Iterator[None]:
    """Inside, nothing is learned and nothing left to chance; modes and random states are as before afterwards."""
    with torch.no_grad(), same_chance(), quiet(model), in_its_type(model):
        yield


class Pass:
    """What a model says of examples, batch by batch, those of like length together."""

    def __init__(self, model: Any, ways: Ways, most: AtOnce, stopping: Callable[[], bool]) -> None:
        self.model, self._stopping, self._most = model, stopping, most
        way: Any = ways.loss
        self._loss: Loss = replace(way, smoothing=0.0)  # what is measured is not what is made easier to learn
        self._packed = ways.packed

    def sums(
        self, examples: Some, groups: Sequence[Group], count: int, told: Told = lambda share: None
    ) -> Sums | None:
        """Added up by group, over all processes; None where the run is to stop meanwhile."""
        found, stopped = Sums.none(count), False
        wrong: Exception | None = None
        try:
            stopped = not self._add_share(found, examples, groups, told)
        except Exception as error:  # noqa: BLE001 - raised below: the other processes wait to hear of it
            wrong = error
        stopped, failed = distributed.heard(stopped, wrong is not None)
        if failed:
            try:
                raise wrong or RuntimeError("it could not be done in another process")
            finally:
                wrong = None  # else it and this function hold each other, and all that did not fit
        if stopped:
            return None
        distributed.add_up(found)
        return found

    def _add_share(self, found: Sums, examples: Some, groups: Sequence[Group], told: Told) -> bool:
        """Of several processes each does every other batch; False where the run is to stop meanwhile."""
        ours = distributed.share(self._batches(examples))
        for done, numbers in enumerate(ours, start=1):
            if self._stopping():
                return False
            self._add(found, [examples[n] for n in numbers], [groups[n] for n in numbers])
            told(done / len(ours))
        return True

    def _batches(self, examples: Some) -> list[list[int]]:
        """The numbers of the examples, the longest first: in each batch as many as go through at once."""
        lengths = [len(example.ids) for example in examples]
        batches: list[list[int]] = []
        tokens = 0.0
        for number in np.argsort(np.negative(lengths), kind="stable").tolist():
            own = lengths[number]
            taken = own if self._packed or not batches else lengths[batches[-1][0]]
            if not batches or len(batches[-1]) >= self._most.examples or tokens + taken > self._most.tokens:
                batches.append([])
                tokens, taken = 0, own
            batches[-1].append(number)
            tokens += taken
        return batches

    def expected_seconds(self, examples: Sequence[Example]) -> float:
        """How long all of them take, by a few batches spread over the lengths, and the tokens of each."""
        batches = [[examples[n] for n in numbers] for numbers in self._batches(examples)]
        tried = np.linspace(0, len(batches) - 1, min(TRIED, len(batches))).round().astype(int)
        some, began = [batches[n] for n in tried], time.perf_counter()
        for batch in some:
            self._add(Sums.none(1), batch, [0] * len(batch))
        seconds = time.perf_counter() - began
        return seconds * sum(map(self._size, batches)) / sum(map(self._size, some))

    def _size(self, batch: Sequence[Example]) -> int:
        lengths = [len(example.ids) for example in batch]
        return sum(lengths) if self._packed else len(lengths) * max(lengths)

    def _add(self, found: Sums, examples: Sequence[Example], groups: Sequence[Group]) -> None:
        """A batch at once, or in halves where that is too much for the memory."""
        try:
            self._add_at_once(found, examples, groups)
            return
        except (RuntimeError, MemoryError) as error:
            if len(examples) < 2 or not is_out_of_memory(error):
                raise
        half = len(examples) // 2  # outside of the except: the error holds what is in memory
        self._add(found, examples[:half], groups[:half])
        self._add(found, examples[half:], groups[half:])

    def _add_at_once(self, found: Sums, examples: Sequence[Example], groups: Sequence[Group]) -> None:
        batch = batched(examples, in_one_row=self._packed)
        labels = batch.pop("labels")
        for name in (OWNERS, TOKENS, EXAMPLES, JOINS):
            del batch[name]
        place = device(self.model)
        rows = self._loss(self.model, {k: v.to(place) for k, v in batch.items()}, labels.to(place))
        of_rows = np.concatenate([_of_learned(e, group) for e, group in zip(examples, groups, strict=True)])
        np.add.at(found.losses, of_rows, rows.losses.double().cpu().numpy())
        np.add.at(found.hits, of_rows, rows.hits.cpu().numpy())
        np.add.at(found.tokens, of_rows, 1)


def _of_learned(example: Example, group: Group) -> np.ndarray[Any, Any]:
    """The group of each token that is predicted, in their order in the batch."""
    learned: np.ndarray[Any, Any] = np.broadcast_to(group, len(example.ids))[example.labels != IGNORED]
    return learned
