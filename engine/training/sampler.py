"""Sampler that orders the examples of each epoch for the Trainer's data loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import Sampler

from ...data.examples import BatchItem, batch_order
from ...settings.definitions import SwitchSettings
from ..plan import RunPlan

if TYPE_CHECKING:
    from ...data.examples import IndexArray

BY_LENGTH, NEIGHBOR_PAIRS, IN_ORDER = "by length", "pairs of neighbors", "sequential"
EpochPosition = tuple[int, int]
"""Epoch, and the number of its examples already drawn."""


class BatchingPhases:
    """Batching rule at each position of a run; `length_then_order` switches it once or twice."""

    def __init__(self, run_plan: RunPlan, changes: Sequence[Sequence[int]] = ()) -> None:
        self._run_plan = run_plan
        self._switching: SwitchSettings = run_plan.settings.switching
        self.changes: list[EpochPosition] = [(int(epoch), int(taken)) for epoch, taken in changes]
        self._position: EpochPosition = (0, 0)
        self.names: tuple[str, ...] = (run_plan.settings.steps.batching,)
        """Phases of this run, in order."""
        if self.names == ("length_then_order",):
            pairs = (NEIGHBOR_PAIRS,) * self._switching.switch_pairs
            self.names = (BY_LENGTH, *pairs, IN_ORDER)

    def move_to(self, position: EpochPosition) -> None:
        """Note the position of the next example to be drawn."""
        self._position = position

    def at(self, position: EpochPosition) -> str:
        """Return the phase of the batch that begins at this position."""
        switching = self._switching
        if switching.switch_after == "loss":
            done = sum(change <= position for change in self.changes)
        else:
            planned = (switching.switch_at, switching.second_switch_at)[: len(self.names) - 1]
            done = sum(self._is_past(after, position) for after in planned)
        return self.names[min(done, len(self.names) - 1)]

    def phase_of_step(self, step: int) -> str:
        """Return the phase in which a step (counted from 1) begins."""
        epoch, within = divmod(step - 1, self._run_plan.plan.steps_per_epoch)
        return self.at((epoch, within * self._run_plan.plan.examples_per_step))

    def ends_with(self, step: int) -> bool:
        """Whether the step after this one begins in another phase."""
        return len(self.names) > 1 and self.phase_of_step(step + 1) != self.phase_of_step(step)

    def _is_past(self, after: int, position: EpochPosition) -> bool:
        (epoch, taken), plan = position, self._run_plan.plan
        if self._switching.switch_after == "epochs":
            return epoch >= after
        return epoch * plan.steps_per_epoch + taken // plan.examples_per_step >= after

    def update(self, smoothed: float) -> str:
        """Switch to the next phase if the loss is low enough, from the next unfetched batch on; returns why."""
        done, switching = len(self.changes), self._switching
        if switching.switch_after != "loss" or done >= len(self.names) - 1:
            return ""
        low, high = (
            (switching.switch_loss_low, switching.switch_loss_high),
            (switching.second_switch_loss_low, switching.second_switch_loss_high),
        )[done]
        if smoothed > high:
            return ""
        self.changes.append(self._position)
        early = (
            f" The loss fell quickly and is already at or below the lower bound ({low:g}), so the previous phase "
            "was short."
            if smoothed <= low
            else ""
        )
        return f"{self.names[done + 1]}, because the smoothed loss {smoothed:.4f} is at or below {high:g}.{early}"


class EpochSampler(Sampler[BatchItem]):  # type: ignore[misc]
    """Draws all examples once per epoch, which is known from the finished steps: a resume needs no state."""

    def __init__(self, run_plan: RunPlan, phases: BatchingPhases, steps_done: Callable[[], int]) -> None:
        self._examples, self._batch = run_plan.data.examples, run_plan.plan.batch_size
        self._run_plan, self._phases, self._steps_done = run_plan, phases, steps_done

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[BatchItem]:
        """Yield the examples of an epoch; when the phase changes, the rest follows in the new order."""
        epoch, taken = self._steps_done() // self._run_plan.plan.steps_per_epoch, 0
        phase, places = "", iter([BatchItem(0)])
        rest = dict.fromkeys(range(len(self)))
        while rest:
            if (current := self._phases.at((epoch, taken))) != phase:
                phase, places = current, iter(self.order(current, np.fromiter(rest, np.int64), epoch))
            for _ in range(min(self._batch, len(rest))):
                place = next(places)
                del rest[place.number]
                taken += 1
                self._phases.move_to((epoch, taken))
                yield place

    def order(self, phase: str, numbers: IndexArray, epoch: int) -> list[BatchItem]:
        """Order these examples by the rule of a phase."""
        examples, seed = self._examples, self._run_plan.settings.what.order_seed
        if phase == "shuffled":
            numbers = batch_order.shuffle(numbers, seed, epoch)
        elif phase in ("by_length", BY_LENGTH):
            numbers = batch_order.order_by_length(numbers, examples.lengths(), self._batch, seed, epoch)
        elif phase == NEIGHBOR_PAIRS:
            successors, lengths, longest = examples.successors(), examples.lengths(), self._run_plan.card.context
            return batch_order.order_in_pairs(numbers, successors, lengths, longest, self._batch, seed, epoch)
        return [BatchItem(int(number)) for number in numbers]
