"""Plan of a run: what is fixed before its first step, its learning rates, batching phases and log of steps."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...core.errors import Remedy
from ...core.host import DeviceMemory, ModelCard
from ...core.jobs import Step
from ...data.prepare import TrainingData
from ...data.report import MemoryModel, find_remedies
from ...records.folder import RunFolder
from ...records.report import GraphItem, graph_entries
from ...schedulers import Phase, lr_multipliers
from ...settings.definitions import SETTINGS, TrainingSettings, section_keys
from ...train_utils import StepPlan, smooth_loss

DATA_KEY = "data and slicing"
WIND_DOWN_RATIO = 0.1  # of the steps so far
LR_SHARE_KEY = "share"  # key in an optimizer group: its share of the learning rate
BY_LENGTH, NEIGHBOR_PAIRS, IN_ORDER = "by length", "pairs of neighbors", "sequential"
EpochPosition = tuple[int, int]  # an epoch, and the number of its examples that were already drawn


@dataclass(frozen=True)
class RunPlan:
    """Settings, model, data, learning-rate schedule and folder of a run."""

    settings: TrainingSettings
    card: ModelCard
    data: TrainingData
    folder: RunFolder

    @cached_property
    def phases(self) -> list[Phase]:
        """The schedule, resolved for the number of steps."""
        return self.settings.learning.phases(self.plan)

    @cached_property
    def validation_key(self) -> str:
        """Fingerprint of the validation split, whose losses only compare with each other; empty without one."""
        return self.data.validation.digest() if len(self.data.validation) else ""

    @property
    def plan(self) -> StepPlan:
        return self.data.plan

    def rates(self, factor: float = 1.0) -> LrPlan:
        """Learning rates of the schedule."""
        multipliers = lr_multipliers(self.phases, self.plan.steps)
        return LrPlan(self.settings.learning.learning_rate, tuple(multipliers), factor)

    def remedies(self, machine: DeviceMemory) -> list[Remedy]:
        """Changes to the settings that would take less memory."""
        estimate = MemoryModel.of(self.card, self.data.examples, machine)
        return find_remedies(estimate, self.settings, self.data.resolved.cutoff) if estimate else []

    def unchangeable(self) -> dict[str, Any]:
        """Values that must be the same when a run resumes from its checkpoint."""
        values = self.settings.values()
        fixed = {key: values[key] for key, setting in SETTINGS.items() if setting.fixed}
        fixed["alpha"] = self.settings.lora.effective_alpha
        if self.settings.lora.whole_model:
            lora_keys = section_keys("lora")
            fixed = {key: value for key, value in fixed.items() if key not in lora_keys} | {"method": "full"}
        # With another number of processes, the steps are the same if their product with the accumulation is.
        accumulation = self.data.resolved.accumulation * self.plan.processes
        model = {DATA_KEY: self.data.examples.digest(), "model": self.card.name}
        return {**model, **fixed, "accumulation": accumulation}


@dataclass(frozen=True)
class LrPlan:
    """Learning rates of a run: the shares of its schedule, times a factor that counts from the next step on."""

    learning_rate: float
    shares: tuple[float, ...]
    factor: float = 1.0
    winds_down_after: int | None = None  # the step after which the rate falls to 0 early

    @property
    def steps(self) -> int:
        """Last step of the run."""
        return len(self.shares)

    def share(self, done: int) -> float:
        """Share of the learning rate after `done` steps."""
        # transformers asks once more after the last step.
        return self.shares[min(done, len(self.shares) - 1)] * self.factor

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1."""
        return self.learning_rate * self.share(step - 1)

    def all(self, used: Sequence[float] = ()) -> tuple[float, ...]:
        """Learning rates of all steps: those already used, then the current plan."""
        return (*used, *(self.rate(step) for step in range(len(used) + 1, self.steps + 1)))

    def winding_down(self, done: int) -> LrPlan:
        """Copy that winds down linearly to 0 after `done` steps, over a tenth as many steps."""
        length = max(1, min(max(2, math.ceil(done * WIND_DOWN_RATIO)), self.steps - done))
        share = self.shares[min(done, len(self.shares) - 1)]
        fall = (share * (1 - step / length) for step in range(1, length + 1))
        return replace(self, shares=(*self.shares[:done], *fall), winds_down_after=done)


def apply_to_scheduler(rates: LrPlan, scheduler: Any) -> None:
    """Apply the rates to a torch scheduler and its optimizer from the next step on."""
    # A scheduler sets the rates of the next step at the end of each step, so a change comes too late for that one.
    rate = rates.rate(scheduler.last_epoch + 1)
    for group in (groups := scheduler.optimizer.param_groups):
        share = group[LR_SHARE_KEY]
        group["initial_lr"], group["lr"] = rates.learning_rate * share, rate * share
    scheduler.base_lrs = [group["initial_lr"] for group in groups]
    scheduler._last_lr = [group["lr"] for group in groups]


class BatchingPhases:
    """Batching rule at each position of a run; `length_then_order` switches it once or twice."""

    def __init__(self, run_plan: RunPlan, changes: Sequence[Sequence[int]] = ()) -> None:
        """`changes` are the positions at which the loss has ended a phase so far."""
        self._plan, self._switching = run_plan.plan, run_plan.settings.switching
        self.changes: list[EpochPosition] = [(int(epoch), int(taken)) for epoch, taken in changes]
        self.position: EpochPosition = (0, 0)  # of the next example to be drawn
        self.names: tuple[str, ...] = (run_plan.settings.steps.batching,)  # in order
        if self.names == ("length_then_order",):
            self.names = (BY_LENGTH, *(NEIGHBOR_PAIRS,) * self._switching.switch_pairs, IN_ORDER)

    def at(self, position: EpochPosition) -> str:
        """Return the phase of the batch that begins at this position."""
        (epoch, taken), switching, plan = position, self._switching, self._plan
        if switching.switch_after == "loss":
            done = sum(change <= position for change in self.changes)
        else:
            reached = epoch
            if switching.switch_after != "epochs":
                reached = epoch * plan.steps_per_epoch + taken // plan.examples_per_step
            planned = (switching.switch_at, switching.second_switch_at)[: len(self.names) - 1]
            done = sum(reached >= after for after in planned)
        return self.names[min(done, len(self.names) - 1)]

    def phase_of_step(self, step: int) -> str:
        """Return the phase in which a step (counted from 1) begins."""
        epoch, within = divmod(step - 1, self._plan.steps_per_epoch)
        return self.at((epoch, within * self._plan.examples_per_step))

    def ends_with(self, step: int) -> bool:
        """Whether the step after this one begins in another phase."""
        return len(self.names) > 1 and self.phase_of_step(step + 1) != self.phase_of_step(step)

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
        self.changes.append(self.position)
        reason = f"{self.names[done + 1]}, because the smoothed loss {smoothed:.4f} is at or below {high:g}."
        if smoothed <= low:
            reason += (
                f" The loss fell quickly and is already at or below the lower bound ({low:g}), so the previous "
                "phase was short."
            )
        return reason


class StepLog:
    """Collects loss, tokens and time of each step."""

    def __init__(self, steps_per_epoch: int, graph: Sequence[Mapping[str, Any]], smoothed: float | None) -> None:
        self._steps_per_epoch = steps_per_epoch
        self.graph: list[GraphItem] = [*graph]
        self.smoothed = smoothed
        self._step_start = time.monotonic()
        self._step_end: float | None = None

    def begin_step(self) -> None:
        """Start the clock of a step; the time until now belongs to no step."""
        self._step_start = time.monotonic()

    def exclude_time(self, seconds: float, *, was_paused: bool = False) -> None:
        """Exclude seconds since the last step from the time of the next one; nothing ran in those of a pause."""
        self._step_start += seconds
        if was_paused and self._step_end is not None:
            self._step_end += seconds

    def add(
        self,
        step: int,
        loss: float,
        norm: float | None,
        rates: LrPlan,
        tokens: int,
        by_source: Mapping[str, float],
        *,
        phase: str,
        examples: int,
    ) -> Step:
        """Log a finished step."""
        self.smoothed = smooth_loss(self.smoothed, loss)
        now = time.monotonic()
        extra_seconds = 0.0 if self._step_end is None else max(0.0, self._step_start - self._step_end)
        finished = Step(
            step=step,
            steps=rates.steps,
            epoch=step / self._steps_per_epoch,
            loss=loss,
            smoothed=self.smoothed,
            learning_rate=rates.rate(step),
            gradient_norm=norm,
            tokens=tokens,
            seconds=now - self._step_start,
            extra_time=extra_seconds,
            by_source=by_source,
            phase=phase,
            examples=examples,
        )
        self._step_start = self._step_end = now
        self.graph.append(finished)
        return finished

    def rates_used(self) -> list[float]:
        """Learning rates of all steps so far."""
        return [float(entry["learning_rate"]) for entry in graph_entries(self.graph) if "learning_rate" in entry]
