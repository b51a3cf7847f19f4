"""Trainer callback that records each step, and carries out decisions, wishes and evaluations between steps."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...core import dist_env
from ...core.files import why_not_written
from ...core.jobs import Advice, CheckpointSaved, Evaluated, EventLog, Note, Progress, RunControl
from ...records.folder import PARAMETERS, Pulse, retention
from ...settings.live_settings import Live
from ..compute import SPILLS, MachineWatch, Piece, Spilling, agree
from ..inference import Testing
from ..plan import Blueprint, Course, Evaluation, Moment, Rates, Steering, give
from ..saving import RunState, record, sealed
from .sampler import Phases


class BetweenSteps(TrainerCallback):  # type: ignore[misc]
    """Hooks into the loop of transformers; at each step it calls on_step_end, on_log, on_save, in this order."""

    def __init__(self, blueprint: Blueprint, state: RunState, control: RunControl[Any], log: EventLog) -> None:
        self._blueprint, self._control, self._log = blueprint, control, log
        self._first = state.step + 1
        self._unchangeable = state.unchangeable
        self._reason = ""
        self.course = Course(blueprint.plan.steps_per_epoch, state.graph, state.smoothed)
        self.phases = Phases(blueprint, state.changes)
        self.testing = Testing(blueprint, self.course.graph, control, log)
        self.steering = Steering(
            Live.of(blueprint.settings),
            blueprint.rates(),
            state.steering,
            control,
            log,
            kept_aside=self.testing.kept_aside,
        )
        self.steering.last_look = self.testing.at_end
        self.last_saved: Path | None = blueprint.folder.start.folder if blueprint.folder.start else None
        self.unsaved = ""
        self._heartbeat = Pulse(blueprint.folder)
        self.spilling: Spilling | None = None
        self._machine: MachineWatch | None = None

    @property
    def evaluations(self) -> list[Evaluated]:
        """Evaluations of the validation split so far."""
        return self.testing.evaluations

    @property
    def rates(self) -> Rates:
        """Current learning rate plan."""
        return self.steering.rates

    def release_model(self) -> None:
        """Drop all references to the model."""
        self.course.tokens, self.course.by_source = lambda: 0, dict
        self.testing.release_model()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._machine = MachineWatch(args.device, self._log)
        if evaluation := self.testing.at_start(state.global_step):
            self.steering.look_before(evaluation, state.global_step)
        self.course.begin_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self._first:
            self._open_folder()
        if self._control.pausing and not self._control.freeing:
            self._pause(state.global_step)

    def _open_folder(self) -> None:
        """Open the run folder after the first step, when there is something to save."""
        run, folder = self._blueprint, self._blueprint.folder
        if folder.is_open:  # opened by an earlier segment, with another plan
            record(lambda: folder.keep_settings(run.settings), folder.path, self._log)
            return
        folder.open(run.settings)
        record(lambda: folder.keep_sample(run.sample()), folder.path, self._log)

    def _pause(self, step: int) -> None:
        """Block the training thread until the run is resumed."""
        self._log.append(Note(text=f"Paused after step {step}; the memory stays in use."))
        started = time.monotonic()
        self._control.wait_while_pausing()
        self.course.leave_out_pause(time.monotonic() - started)  # a pause must not count as a slow step
        self._log.append(Note(text=f"Going on after step {step}."))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        """Record the step and decide what follows; transformers saves and stops after this call."""
        if not logs or "loss" not in logs:
            return
        step, norm = state.global_step, logs.get("grad_norm")
        progress = self.course.add(step, float(logs["loss"]), None if norm is None else float(norm), self.rates)
        if phase := self._phase(step):
            self.course.graph[-1]["phase"] = phase
        self._log.append(replace(progress, phase=phase))
        self._heartbeat.beat(step, self.rates.steps)
        self._watch_machine(progress)
        if change := self.phases.look_at(progress.smoothed):
            self._log.append(Note(text=f"After step {step} the order changes over: {change}"))
        evaluation = self.testing.after(step, last=self.steering.is_last(step))
        self._decide(step, control, lr_scheduler, evaluation)
        self.course.begin_step()  # work between two steps counts for neither

    def _watch_machine(self, progress: Progress) -> None:
        if self.spilling is not None and self.spilling.observe(progress.seconds, progress.tokens):
            self._log.append(Advice(text=SPILLS))
        if self._machine is not None:
            self._machine.observe()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._machine is not None:
            self._machine.observe(at_once=True)

    def _phase(self, step: int) -> str:
        """Return the batching phase of a step, if there are several, and log a planned change."""
        if len(self.phases.names) == 1:
            return ""
        phase = self.phases.of_step(step)
        if step > 1 and phase != self.phases.of_step(step - 1):
            self._log.append(Note(text=f"From step {step} on: {phase}."))
        return phase

    def _decide(
        self, step: int, control: TrainerControl, scheduler: Any, evaluation: Evaluation | None = None
    ) -> None:
        assert self.course.smoothed is not None
        steps_per_epoch = self._blueprint.plan.steps_per_epoch
        step_state = Moment(step, steps_per_epoch, self.course.smoothed, agree(self._control, time.monotonic()))
        decision = self.steering.after(step_state, self.course.rates_used(), evaluation)
        control.should_training_stop |= decision.stop
        control.should_save, self._reason = decision.save is not None, decision.save or ""
        if decision.replanned:
            give(self.rates, scheduler)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not dist_env.is_first():  # only rank 0 keeps checkpoints
            self._blueprint.folder.drop_unfinished()
            return
        self.unsaved = self.unsaved or self._complete_checkpoint(state.global_step)
        if self.unsaved:
            self._continue_without(state.global_step, control)
        self.course.begin_step()

    def _complete_checkpoint(self, step: int) -> str:
        """Complete the checkpoint and remove older ones; returns the reason if that fails."""
        folder, live = self._blueprint.folder, self.steering.live
        try:
            self.last_saved = sealed(folder, self._reason, self._run_state(step))
            if not (folder.path / PARAMETERS).is_file():  # the folder was deleted; a resume needs the settings
                folder.keep_settings(self._blueprint.settings)
        except OSError as error:
            return why_not_written(error, folder.path)
        self._heartbeat.saved()
        self._log.append(CheckpointSaved(step=step, folder=self.last_saved, reason=self._reason))
        with suppress(OSError):  # a file held open by another program is removed after the next checkpoint
            retention.thinned(folder.path, live.saving.keep_checkpoints, self.steering.best.step, folder.began_at)
        return ""

    def could_not_save(self, *, for_want_of_room: bool) -> None:
        """Remove the half-written checkpoint before the next attempt, and older ones if the disk is full."""
        self._blueprint.folder.drop_unfinished()
        if for_want_of_room:
            retention.make_room(self._blueprint.folder.path, self._blueprint.folder.start)

    def _continue_without(self, step: int, control: TrainerControl) -> None:
        """Continue without this checkpoint, and cancel the restart that would have begun from it."""
        self._blueprint.folder.drop_unfinished()
        last = f"The last one is {self.last_saved.name}." if self.last_saved else "There is none yet."
        planned = "" if self.steering.interlude is None else " as it was planned before"
        explanation = f"could not be saved: {self.unsaved}. The run goes on{planned}. {last}"
        self._log.append(Advice(text=f"The checkpoint of step {step} {explanation}"))
        self.steering.without_checkpoint()
        if self.steering.interlude is not None:
            self.steering.interlude = None
            control.should_training_stop = bool(self.steering.stopped_by) or self.steering.is_last(step)

    def told_of_halves(self, piece: Piece, most: int) -> None:
        """Log that a batch did not fit into memory and is split."""
        step = self.course.graph[-1]["current_steps"] + 1 if self.course.graph else 1
        self._log.append(
            Advice(
                text=f"Step {step}: {piece.texts} examples at once do not fit into the memory. They are done "
                f"again {most} at a time, and so from now on: a smaller batch and as much more accumulation, so "
                "that the steps stay what they are and take longer."
            )
        )

    def _run_state(self, step: int) -> RunState:
        return RunState(
            step,
            self.course.smoothed,
            self.course.graph,
            self._unchangeable,
            list(self.phases.changes),
            self.steering.memory(),
        )
