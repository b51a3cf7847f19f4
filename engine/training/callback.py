"""What happens between two steps: HF's loop calls, and what was decided on is done."""

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
    """Follows HF's loop. The order there, at each step: on_step_end, on_log, on_save."""

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
        self._pulse = Pulse(blueprint.folder)
        self.spilling: Spilling | None = None
        self._machine: MachineWatch | None = None

    @property
    def evaluations(self) -> list[Evaluated]:
        """What the part kept aside said so far."""
        return self.testing.evaluations

    @property
    def rates(self) -> Rates:
        """The learning rates as they are planned now."""
        return self.steering.rates

    def let_go(self) -> None:
        """Hold on to nothing that holds the model."""
        self.course.tokens, self.course.by_source = lambda: 0, dict
        self.testing.let_go()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._machine = MachineWatch(args.device, self._log)
        if found := self.testing.at_start(state.global_step):
            self.steering.look_before(found, state.global_step)
        self.course.begin_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self._first:
            self._open_folder()
        if self._control.pausing and not self._control.freeing:
            self._pause(state.global_step)

    def _open_folder(self) -> None:
        """From now on there is something to keep."""
        run, folder = self._blueprint, self._blueprint.folder
        if folder.is_open:  # by an earlier part, whose plan was another one
            record(lambda: folder.keep_settings(run.settings), folder.path, self._log)
            return
        folder.open(run.settings)
        record(lambda: folder.keep_sample(run.sample()), folder.path, self._log)

    def _pause(self, step: int) -> None:
        """Wait here, in the training thread, until the run may go on."""
        self._log.append(Note(text=f"Paused after step {step}; the memory stays in use."))
        began = time.monotonic()
        self._control.wait_while_pausing()
        self.course.leave_out_pause(time.monotonic() - began)  # a pause is no slow step
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
        """Tell of the step and decide. HF saves and stops after the log, so the loss of this step is known."""
        if not logs or "loss" not in logs:
            return
        step, norm = state.global_step, logs.get("grad_norm")
        progress = self.course.add(step, float(logs["loss"]), None if norm is None else float(norm), self.rates)
        if phase := self._phase(step):
            self.course.graph[-1]["phase"] = phase
        self._log.append(replace(progress, phase=phase))
        self._pulse.beat(step, self.rates.steps)
        self._watch_the_machine(progress)
        if change := self.phases.look_at(progress.smoothed):
            self._log.append(Note(text=f"After step {step} the order changes over: {change}"))
        found = self.testing.after(step, last=self.steering.is_last(step))
        self._decide(step, control, lr_scheduler, found)
        self.course.begin_step()  # what was done between two steps makes neither of them slow

    def _watch_the_machine(self, progress: Progress) -> None:
        if self.spilling is not None and self.spilling.look(progress.seconds, progress.tokens):
            self._log.append(Advice(text=SPILLS))
        if self._machine is not None:
            self._machine.look()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._machine is not None:
            self._machine.look(at_once=True)

    def _phase(self, step: int) -> str:
        """Where an order has several phases, which this step was in; a planned change is said when it is there."""
        if len(self.phases.names) == 1:
            return ""
        phase = self.phases.of_step(step)
        if step > 1 and phase != self.phases.of_step(step - 1):
            self._log.append(Note(text=f"From step {step} on: {phase}."))
        return phase

    def _decide(self, step: int, control: TrainerControl, scheduler: Any, found: Evaluation | None = None) -> None:
        assert self.course.smoothed is not None
        epoch = self._blueprint.plan.steps_per_epoch
        moment = Moment(step, epoch, self.course.smoothed, agree(self._control, time.monotonic()))
        decided = self.steering.after(moment, self.course.rates_used(), found)
        control.should_training_stop |= decided.stop
        control.should_save, self._reason = decided.save is not None, decided.save or ""
        if decided.replanned:
            give(self.rates, scheduler)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not dist_env.is_first():  # of several that train together only the first keeps checkpoints
            self._blueprint.folder.drop_unfinished()
            return
        self.unsaved = self.unsaved or self._why_unsealed(state.global_step)
        if self.unsaved:
            self._do_without(state.global_step, control)
        self.course.begin_step()

    def _why_unsealed(self, step: int) -> str:
        """Make the checkpoint whole and thin out the older ones; or why that cannot be."""
        folder, live = self._blueprint.folder, self.steering.live
        try:
            self.last_saved = sealed(folder, self._reason, self._state(step))
            if not (folder.path / PARAMETERS).is_file():  # the folder was gone: without them nothing goes on
                folder.keep_settings(self._blueprint.settings)
        except OSError as error:
            return why_not_written(error, folder.path)
        self._pulse.saved()
        self._log.append(CheckpointSaved(step=step, folder=self.last_saved, reason=self._reason))
        with suppress(OSError):  # what another program holds open is slimmed after the next one
            retention.thinned(folder.path, live.saving.keep_checkpoints, self.steering.best.step, folder.began_at)
        return ""

    def could_not_save(self, *, for_want_of_room: bool) -> None:
        """What is half written goes before the next try, and older checkpoints where there was no room."""
        self._blueprint.folder.drop_unfinished()
        if for_want_of_room:
            retention.make_room(self._blueprint.folder.path, self._blueprint.folder.start)

    def _do_without(self, step: int, control: TrainerControl) -> None:
        """The run goes on without this checkpoint; what would have gone on from it does not happen."""
        self._blueprint.folder.drop_unfinished()
        last = f"The last one is {self.last_saved.name}." if self.last_saved else "There is none yet."
        planned = "" if self.steering.interlude is None else " as it was planned before"
        why = f"could not be saved: {self.unsaved}. The run goes on{planned}. {last}"
        self._log.append(Advice(text=f"The checkpoint of step {step} {why}"))
        self.steering.without_checkpoint()
        if self.steering.interlude is not None:
            self.steering.interlude = None
            control.should_training_stop = bool(self.steering.stopped_by) or self.steering.is_last(step)

    def told_of_halves(self, piece: Piece, most: int) -> None:
        """A batch did not fit into memory."""
        step = self.course.graph[-1]["current_steps"] + 1 if self.course.graph else 1
        self._log.append(
            Advice(
                text=f"Step {step}: {piece.texts} examples at once do not fit into the memory. They are done "
                f"again {most} at a time, and so from now on: a smaller batch and as much more accumulation, so "
                "that the steps stay what they are and take longer."
            )
        )

    def _state(self, step: int) -> RunState:
        return RunState(
            step,
            self.course.smoothed,
            self.course.graph,
            self._unchangeable,
            list(self.phases.changes),
            self.steering.memory(),
        )
