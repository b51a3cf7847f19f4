"""The one place where something is measured on a model: losses and hits over examples, added up in groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ...core.errors import first_line
from ...core.host import Host
from ...core.jobs import Advice, EventLog, Job, Request, Stage
from ...data.examples import IGNORE_INDEX, Example, Examples
from ...settings.definitions import TrainingSettings
from ..compute import ModelCapabilities, distributed, failures, make_objective, probe_model, use_packed_attention
from ..lora import adapter, evaluation_context, model_device, preserve_rng

Numbers: TypeAlias = np.ndarray[Any, Any]
# The number of the group in which losses are added up: one for an example, or one for each of its tokens.
Group: TypeAlias = int | Numbers
ExampleSequence: TypeAlias = Sequence[Example] | Examples
ProgressFn: TypeAlias = Callable[[float], None]  # called with the share that is done
PROGRESS_SECONDS = 3.0
SAVED_LORA_TOKENS = 2048  # in a batch for a saved LoRA; one window may be longer, and is then a batch of its own
Result = TypeVar("Result")


class StageProgress:
    """Logs a stage, and its progress every few seconds; of a short stage it logs no progress."""

    def __init__(self, stage: Stage, log: EventLog) -> None:
        self._stage, self._log, self._logged_at = stage, log, time.monotonic()
        log.append(stage)

    def __call__(self, share: float) -> None:
        if time.monotonic() - self._logged_at > PROGRESS_SECONDS:
            self._log.append(replace(self._stage, share=share, at=time.time()))
            self._logged_at = time.monotonic()


@contextmanager
def log_failure(what: str, log: EventLog) -> Iterator[None]:
    """Log any error within this context, and continue: nothing here is worth ending hours of training."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        log.append(Advice(text=f"{what}: {first_line(error)}. The run continues."))


class GroupSums(NamedTuple):
    """Sums of each group: losses, correctly predicted tokens, and tokens."""

    losses: Numbers
    hits: Numbers
    tokens: Numbers

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


class EvalLoop:
    """Runs a model over examples in batches of similar length, of at most so many examples and padded tokens."""

    def __init__(
        self,
        model: Any,
        capabilities: ModelCapabilities,
        is_stopping: Callable[[], bool],
        *,
        max_examples: float = inf,
        max_tokens: float = inf,
        settings: TrainingSettings | None = None,
    ) -> None:
        """With the settings of a run, its objective is measured; otherwise how well next tokens are predicted."""
        self.model, self._is_stopping = model, is_stopping
        self._max_examples, self._max_tokens = max_examples, max_tokens
        self._objective = make_objective(capabilities, settings)
        self._packed = capabilities.packed

    def sums(
        self,
        examples: ExampleSequence,
        groups: Sequence[Group],
        count: int,
        report: ProgressFn = lambda share: None,
    ) -> GroupSums | None:
        """The sums by group over all processes; restores the model's state. None if the run was stopped."""
        totals, stopped = GroupSums(*np.zeros((3, count))), False
        failure: Exception | None = None
        try:
            batches = distributed.split_over_ranks(self._batches([example.tokens for example in examples]))
            with evaluation_context(self.model):
                for number, indices in enumerate(batches, start=1):
                    stopped = self._is_stopping()
                    if stopped:
                        break
                    batch = [(examples[n], groups[n]) for n in indices]
                    for _ in failures.BatchSplitter().run(batch, partial(self._add, totals)):
                        pass  # in parts if memory runs out
                    report(number / len(batches))
        except Exception as error:  # noqa: BLE001 - raised below, once the other processes know of it
            failure = error
        # A process that left here alone would leave the others waiting in sum_over_ranks.
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

    def _batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return the indices of examples of these lengths in batches, the longest first."""
        batches: list[list[int]] = []
        tokens = 0.0
        for index in np.argsort(np.negative(lengths), kind="stable").tolist():
            length = lengths[index]
            # Without packing, each row is padded to the longest of its batch, which is the first.
            needed = length if self._packed or not batches else lengths[batches[-1][0]]
            if not batches or len(batches[-1]) >= self._max_examples or tokens + needed > self._max_tokens:
                batches.append([])
                tokens, needed = 0, length
            batches[-1].append(index)
            tokens += needed
        return batches

    def _add(self, totals: GroupSums, part: Sequence[tuple[Example, Group]]) -> None:
        batch = self._objective.collate([example for example, _ in part]).to(model_device(self.model))
        rows = self._objective(self.model, batch)
        if np.ndim(part[0][1]):  # each token has its own
            loss_groups = np.concatenate([np.asarray(group)[each.labels != IGNORE_INDEX] for each, group in part])
        else:
            loss_groups = np.array([group for _, group in part])[rows.owners.cpu().numpy()]
        # np.add.at and not +=: a group comes up many times in one batch, and += would count it once.
        # Doubles, because a dataset has millions of tokens.
        np.add.at(totals.losses, loss_groups, rows.losses.cpu().double().numpy())
        np.add.at(totals.hits, loss_groups, rows.hits.cpu().numpy())
        np.add.at(totals.tokens, loss_groups, 1)


def lora_phrase(name: str) -> str:
    return f"with the LoRA {name}" if name else "without a LoRA"


def measure_each(
    loras: Sequence[tuple[str, Path | None]],
    settings: TrainingSettings,
    host: Host,
    job: Job,
    what: str,
    measure: Callable[[str, EvalLoop, ProgressFn], Result | None],
) -> list[Result]:
    """Measure the host's model with each of these LoRAs in turn (None: without a LoRA), and restore it."""
    results: list[Result] = []
    is_stopping = partial(job.control.asked, Request.STOP)
    # The model belongs to the host, which may be in a chat: it gets back its LoRAs, modes and random states.
    with preserve_rng(), adapter.without_loras(host) as (base, _), use_packed_attention(base):
        for name, folder in loras:
            if is_stopping():
                break  # the rest is left out
            with adapter.loaded_lora(base, folder, name) as model:
                # Probed anew with each LoRA: it decides which loss and whether packing give the right result.
                capabilities = probe_model(model, settings)
                eval_loop = EvalLoop(model, capabilities, is_stopping, max_tokens=SAVED_LORA_TOKENS)
                progress = StageProgress(Stage(text=f"{what} {lora_phrase(name)}"), job.log)
                result = measure(name, eval_loop, progress)
            if result is None:
                break
            results.append(result)
    return results
