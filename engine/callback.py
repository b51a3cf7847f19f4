"""What happens between two steps: wishes are read, checkpoints decided on, progress told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..core.control import RunControl
from ..core.events import CheckpointSaved, EventLog, Note, Progress
from ..settings.declared import Saving
from ..train_utils import checkpoint_name, smoothed
from .blueprint import Blueprint
from .checkpoints import RunState, sealed
from .ordering import Phases


class BetweenSteps(TrainerCallback):  # type: ignore[misc]
    """Follows HF's loop. The order there, at each step: on_step_end, on_log, on_save."""

    def __init__(self, blueprint: Blueprint, state: RunState, control: RunControl, log: EventLog) -> None:
        self._blueprint, self._control, self._log = blueprint, control, log
        self._first = state.step + 1
        self._unchangeable = state.unchangeable
        self._reason: str | None = None
        self._clock = time.monotonic()
        self._tokens = 0
        self.smoothed = state.smoothed
        self.graph = list(state.graph)
        self.phases = Phases(blueprint, state.changes)
        self.stopped_by = ""
        self.tokens: Callable[[], int] = lambda: 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._clock = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self._first:
            self._blueprint.open_folder()
        if self._control.pausing:
            self._pause(state.global_step)

    def _pause(self, step: int) -> None:
        """Wait here, in the training thread, until the run may go on."""
        self._log.append(Note(text=f"Paused after step {step}; the memory stays in use."))
        began = time.monotonic()
        self._control.wait_while_pausing()
        self._clock += time.monotonic() - began  # a pause is no slow step
        self._log.append(Note(text=f"Going on after step {step}."))

    def _why_stop(self, step: int) -> str:
        """The rule that ends the run here, in words; empty where none does."""
        rules, epoch = self._blueprint.settings.stopping, self._blueprint.plan.steps_per_epoch
        if rules.stop_at_loss and self.smoothed is not None and self.smoothed <= rules.stop_at_loss:
            return f"the smoothed loss {self.smoothed:.4f} is at or under {rules.stop_at_loss:g}"
        if rules.stop_at_epoch and step >= rules.stop_at_epoch * epoch:
            return f"epoch {rules.stop_at_epoch:g} is done"
        return ""

    def _decide(self, step: int, control: TrainerControl) -> None:
        """Stop here? Save here? HF saves and stops after the log, so the loss of this step is known."""
        if not self._control.stopping and (rule := self._why_stop(step)):
            self.stopped_by = rule
            self._log.append(Note(text=f"Stopping after step {step}: {rule}."))
        control.should_training_stop |= self._control.stopping or bool(self.stopped_by)
        self._reason = self._why_save(step)
        control.should_save = self._reason is not None

    def _why_save(self, step: int) -> str | None:
        """The first reason names the checkpoint; None for no checkpoint at this step."""
        saving: Saving = self._blueprint.settings.saving
        epoch = self._blueprint.plan.steps_per_epoch
        if self._control.throwing_away:
            return None
        if self._control.take_checkpoint():
            return "user"
        if saving.save_each_epoch and step % epoch == 0:
            return f"epoch-{step // epoch}"
        every = saving.save_every and step % saving.save_every == 0
        return "" if every or self._control.stopping or self.stopped_by else None

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        if not logs or "loss" not in logs:
            return
        loss = float(logs["loss"])
        self.smoothed = smoothed(self.smoothed, loss)
        progress = self._progress(state, loss, logs.get("grad_norm"))
        self.graph.append(_graph_entry(progress) | self._phase(state.global_step))
        self._log.append(progress)
        if change := self.phases.look_at(self.smoothed):
            self._log.append(Note(text=f"After step {state.global_step} the order changes over: {change}"))
        self._decide(state.global_step, control)

    def _phase(self, step: int) -> dict[str, str]:
        """Where an order has several phases, which this step was in; a planned change is said when it is there."""
        if len(self.phases.names) == 1:
            return {}
        phase = self.phases.of_step(step)
        if step > 1 and phase != self.phases.of_step(step - 1):
            self._log.append(Note(text=f"From step {step} on: {phase}."))
        return {"phase": phase}

    def _progress(self, state: TrainerState, loss: float, norm: float | None) -> Progress:
        now, tokens = time.monotonic(), self.tokens()
        seconds, fresh = now - self._clock, tokens - self._tokens
        self._clock, self._tokens = now, tokens
        assert self.smoothed is not None
        return Progress(
            step=state.global_step,
            steps=self._blueprint.plan.steps,
            epoch=state.global_step / self._blueprint.plan.steps_per_epoch,
            loss=loss,
            smoothed=self.smoothed,
            learning_rate=self._blueprint.rate(state.global_step),
            gradient_norm=None if norm is None else float(norm),
            tokens=fresh,
            seconds=seconds,
        )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        step, reason = state.global_step, self._reason or ""
        known = RunState(step, self.smoothed, self.graph, self._unchangeable, list(self.phases.changes))
        folder = sealed(self._blueprint.folder, checkpoint_name(step, reason), known)
        self._log.append(CheckpointSaved(step=step, folder=folder, reason=reason))
        self._clock = time.monotonic()


def _graph_entry(progress: Progress) -> dict[str, Any]:
    return {
        "current_steps": progress.step,
        "loss": progress.loss,
        "smoothed_loss": progress.smoothed,
        "learning_rate": progress.learning_rate,
        "epoch": round(progress.epoch, 4),
        "gradient_norm": progress.gradient_norm,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 3),
    }
