"""Repeat a batch in halves when it runs out of memory, and keep that size; the optimizer step stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...core.errors import ModelError
from ...data.examples import Example
from .gpu_memory import free_memory
from .loss_by_dataset import LossByDataset
from .step_errors import is_out_of_memory


class MicroBatch(NamedTuple):
    """Some examples of a batch, with a flag for those that continue the one before."""

    examples: tuple[Example, ...]
    joins: tuple[bool, ...]

    @property
    def texts(self) -> int:
        """Number of texts: examples that continue each other count as one, and are never separated."""
        return sum(not joined for joined in self.joins)

    @property
    def tokens(self) -> int:
        return sum(len(example.ids) for example in self.examples)

    def first(self, texts: int) -> tuple[MicroBatch, MicroBatch]:
        """Split off the first `texts` texts; return them and the rest."""
        starts = [index for index, joined in enumerate(self.joins) if not joined]
        cut = starts[texts]
        return MicroBatch(self.examples[:cut], self.joins[:cut]), MicroBatch(self.examples[cut:], self.joins[cut:])


@dataclass(frozen=True)
class StepFns:
    """Callbacks of a training step: how to prepare and run a micro-batch, and how to report what does not fit."""

    inputs: Callable[[MicroBatch], dict[str, Any]]
    step: Callable[[MicroBatch, dict[str, Any]], torch.Tensor]
    parameters: Sequence[torch.nn.Parameter]
    apart: LossByDataset
    log_split: Callable[[MicroBatch, int], None]
    out_of_memory_error: Callable[[MicroBatch], ModelError]
    can_split: bool = True


@dataclass
class BatchSplitter:
    """Largest number of texts that fit at once; 0 while whole batches fit."""

    most: int = 0

    def done(self, batch: MicroBatch, inputs: dict[str, Any] | None, work: StepFns) -> torch.Tensor:
        """Return the loss of a batch and add its gradients to those of the step."""
        if not self.most or batch.texts <= self.most:
            return self._run_at_once(batch, inputs or work.inputs(batch), work)
        micro_batch, rest = batch.first(self.most)
        return self._run_at_once(micro_batch, work.inputs(micro_batch), work) + self.done(rest, None, work)

    def _run_at_once(self, micro_batch: MicroBatch, inputs: dict[str, Any], work: StepFns) -> torch.Tensor:
        """Run it at once; if memory runs out, restore the gradients from before and run it in halves."""
        backup, dataset_sums = GradientBackup(work.parameters if work.can_split else ()), work.apart.snapshot()
        loss = _run_or_none(micro_batch, inputs, work)
        if loss is not None:
            backup.add()
            return loss
        backup.restore()
        work.apart.reset_to(dataset_sums)
        free_memory()
        if micro_batch.texts < 2 or not work.can_split:
            raise work.out_of_memory_error(micro_batch)
        self.most = (micro_batch.texts + 1) // 2
        work.log_split(micro_batch, self.most)
        return self.done(micro_batch, None, work)


class GradientBackup:
    """Set the accumulated gradients aside while a batch computes its own, which are dropped if it fails."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._saved = [(parameter, parameter.grad) for parameter in parameters if parameter.requires_grad]
        for parameter, _ in self._saved:
            parameter.grad = None

    def add(self) -> None:
        """Add the gradients of the finished batch to the accumulated ones."""
        for parameter, accumulated in self._saved:
            if accumulated is not None:
                parameter.grad = accumulated if parameter.grad is None else accumulated.add_(parameter.grad)

    def restore(self) -> None:
        """Drop the gradients of the failed batch and restore the accumulated ones."""
        for parameter, accumulated in self._saved:
            parameter.grad = accumulated


def _run_or_none(micro_batch: MicroBatch, inputs: dict[str, Any], work: StepFns) -> torch.Tensor | None:
    """Run a step; None if memory ran out. The error and the tensors that it holds are released by then."""
    try:
        return work.step(micro_batch, inputs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
