"""Evaluation loop: losses and hits of a model over examples, with its state restored afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from ...core.errors import first_line
from ...core.jobs import Advice, EventLog, Stage, StageKind
from ...data.examples import IGNORE_INDEX, Example, Examples
from ...settings.definitions import TrainingSettings
from ..compute import BatchSplitter, ModelCapabilities, Objective, distributed, eval_mode
from ..lora import autocast_model, model_device, preserve_rng

Group = int | np.ndarray[Any, Any]
"""The number of the group in which losses are added up: one for an example, or one for each of its tokens."""
ExampleSequence = Sequence[Example] | Examples
ProgressFn = Callable[[float], None]
"""Called with the share that is done."""
PROGRESS_SECONDS = 3.0
TIMED_BATCHES = 3
"""Number of batches that are timed to estimate a whole pass."""
Result = TypeVar("Result")


class StageProgress:
    """Logs a stage, and its progress every few seconds; of a short stage it logs no progress."""

    def __init__(self, text: str, log: EventLog, kind: StageKind = StageKind.WORKING) -> None:
        self._stage, self._log, self._logged_at = Stage(text=text, kind=kind), log, time.monotonic()
        log.append(self._stage)

    def __call__(self, share: float) -> None:
        if time.monotonic() - self._logged_at > PROGRESS_SECONDS:
            self._log.append(replace(self._stage, share=share, at=time.time()))
            self._logged_at = time.monotonic()


def measure_in_run(words: str, measure: Callable[[], Result], log: EventLog) -> tuple[Result | None, float]:
    """Measure between two steps, and return the result and the seconds; after a failure, the run continues."""
    started, result = time.monotonic(), None
    try:
        result = measure()
    except Exception as error:  # noqa: BLE001 - no error here is worth ending hours of training
        log.append(Advice(text=f"{words} failed: {first_line(error)}. The run continues."))
    return result, time.monotonic() - started


class BatchLimit(NamedTuple):
    """Limits of a batch: examples, and tokens with their padding."""

    examples: float = inf
    tokens: float = inf


def batch_limit(settings: TrainingSettings) -> BatchLimit:
    """The limit of a batch during a run."""
    size = settings.aside.eval_batch_size
    return BatchLimit(examples=settings.steps.batch_size if isinstance(size, str) else size)


class GroupSums(NamedTuple):
    """Sums of each group: losses, correctly predicted tokens, and tokens."""

    losses: np.ndarray[Any, Any]
    hits: np.ndarray[Any, Any]
    tokens: np.ndarray[Any, Any]

    @staticmethod
    def zeros(groups: int) -> GroupSums:
        return GroupSums(*(np.zeros(groups) for _ in GroupSums._fields))

    @property
    def loss(self) -> float:
        """Mean loss over all tokens."""
        return float(self.losses.sum() / max(self.tokens.sum(), 1))

    def figures(self, group: int) -> dict[str, Any]:
        """Return the figures of one group, which must have tokens."""
        tokens = int(self.tokens[group])
        return {
            "tokens": tokens,
            "loss": float(self.losses[group] / tokens),
            "right": float(self.hits[group] / tokens),
        }

    def merge_groups(self, larger_groups: np.ndarray[Any, Any], groups: int) -> GroupSums:
        """Sum into larger groups; `larger_groups` holds the larger group of each group."""
        return GroupSums(*(np.bincount(larger_groups, sums, groups) for sums in self))


@contextmanager
def evaluation_context(model: Any) -> Iterator[None]:
    """Evaluate within this context: no gradients, no dropout; module modes and random states are restored."""
    with torch.no_grad(), preserve_rng(), eval_mode(model), autocast_model(model):
        yield


class EvalLoop:
    """Runs a model over examples in batches of similar length."""

    def __init__(
        self, model: Any, capabilities: ModelCapabilities, limit: BatchLimit, is_stopping: Callable[[], bool]
    ) -> None:
        self.model, self._is_stopping, self._limit = model, is_stopping, limit
        self._objective = Objective.evaluation(capabilities)
        self._packed = capabilities.packed

    def sums(
        self,
        examples: ExampleSequence,
        groups: Sequence[Group],
        count: int,
        report: ProgressFn = lambda share: None,
    ) -> GroupSums | None:
        """Return the sums by group over all processes; None if the run was stopped."""
        totals, stopped = GroupSums.zeros(count), False
        failure: Exception | None = None
        try:
            stopped = not self._add_share(totals, examples, groups, report)
        except Exception as error:  # noqa: BLE001 - raised below, once the other processes know of it
            failure = error
        stopped, failed = distributed.any_rank(stopped, failure is not None)
        if failed:
            try:
                raise failure or RuntimeError("another process reported an error")
            finally:
                failure = None  # else the error and this frame form a cycle that keeps the tensors alive
        if stopped:
            return None
        distributed.sum_over_ranks(totals)
        return totals

    def _add_share(
        self, totals: GroupSums, examples: ExampleSequence, groups: Sequence[Group], report: ProgressFn
    ) -> bool:
        """Add this process's share of the batches; False if the run was stopped."""
        batches = distributed.split_over_ranks(self._batches(examples))
        for number, indices in enumerate(batches, start=1):
            if self._is_stopping():
                return False
            self._add(totals, [examples[n] for n in indices], [groups[n] for n in indices])
            report(number / len(batches))
        return True

    def _batches(self, examples: ExampleSequence) -> list[list[int]]:
        """Return the indices of the examples in batches, the longest first."""
        lengths = [len(example.ids) for example in examples]
        batches: list[list[int]] = []
        tokens = 0.0
        for index in np.argsort(np.negative(lengths), kind="stable").tolist():
            length = lengths[index]
            needed = length if self._packed or not batches else lengths[batches[-1][0]]
            if not batches or len(batches[-1]) >= self._limit.examples or tokens + needed > self._limit.tokens:
                batches.append([])
                tokens, needed = 0, length
            batches[-1].append(index)
            tokens += needed
        return batches

    def estimate_seconds(self, examples: Sequence[Example]) -> float:
        """Estimate the seconds of a pass, by the tokens and the times of a few batches of different lengths."""
        batches = [[examples[n] for n in indices] for indices in self._batches(examples)]
        picked = np.linspace(0, len(batches) - 1, min(TIMED_BATCHES, len(batches))).round().astype(int)
        timed, began = [batches[n] for n in picked], time.perf_counter()
        for batch in timed:
            self._add(GroupSums.zeros(1), batch, [0] * len(batch))
        seconds = time.perf_counter() - began
        return seconds * sum(map(self._batch_tokens, batches)) / sum(map(self._batch_tokens, timed))

    def _batch_tokens(self, batch: Sequence[Example]) -> int:
        lengths = [len(example.ids) for example in batch]
        return sum(lengths) if self._packed else len(lengths) * max(lengths)

    def _add(self, totals: GroupSums, examples: Sequence[Example], groups: Sequence[Group]) -> None:
        """Add a batch, in parts if memory runs out."""
        pairs = list(zip(examples, groups, strict=True))
        for _ in BatchSplitter().run(pairs, partial(self._add_part, totals)):
            pass

    def _add_part(self, totals: GroupSums, part: Sequence[tuple[Example, Group]]) -> None:
        batch = self._objective.collate([example for example, _ in part]).to(model_device(self.model))
        rows = self._objective(self.model, batch)
        token_groups = np.concatenate([_groups_of_labels(example, group) for example, group in part])
        np.add.at(totals.losses, token_groups, rows.losses.double().cpu().numpy())
        np.add.at(totals.hits, token_groups, rows.hits.cpu().numpy())
        np.add.at(totals.tokens, token_groups, 1)


def _groups_of_labels(example: Example, group: Group) -> np.ndarray[Any, Any]:
    """Return the group of each predicted token, in order."""
    learned: np.ndarray[Any, Any] = np.broadcast_to(group, len(example.ids))[example.labels != IGNORE_INDEX]
    return learned
