"""Trainer callback that records each step, and carries out decisions, wishes and evaluations between steps."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...core import dist_env
from ...core.files import write_error_reason
from ...core.jobs import Advice, CheckpointSaved, EvaluationDone, EventLog, Note, Progress, RunControl
from ...records.folder import PARAMETERS, Heartbeat, retention
from ...settings.live_settings import LiveSettings
from ..compute import SPILL_ADVICE, MachineMonitor, MicroBatch, SpillDetector, sync_control
from ..inference import EvalScheduler
from ..plan import Evaluation, LrPlan, RunController, RunPlan, StepLog, StepState, apply_to_scheduler
from ..saving import RunState, finalize_checkpoint, write_record
from .sampler import BatchingPhases


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Hooks into the loop of transformers; at each step it calls on_step_end, on_log, on_save, in this order."""

    def __init__(self, blueprint: RunPlan, state: RunState, control: RunControl[Any], log: EventLog) -> None:
        self._blueprint, self._control, self._log = blueprint, control, log
        self._first = state.step + 1
        self._unchangeable = state.unchangeable
        self._reason = ""
        self.course = StepLog(blueprint.plan.steps_per_epoch, state.graph, state.smoothed)
        self.phases = BatchingPhases(blueprint, state.changes)
        self.eval_scheduler = EvalScheduler(blueprint, self.course.graph, control, log)
        self.steering = RunController(
            LiveSettings.of(blueprint.settings),
            blueprint.rates(),
            state.steering,
            control,
            log,
            kept_aside=self.eval_scheduler.kept_aside,
        )
        self.steering.final_evaluation = self.eval_scheduler.evaluate_at_end
        self.last_saved: Path | None = blueprint.folder.start.folder if blueprint.folder.start else None
        self.save_error = ""
        self._heartbeat = Heartbeat(blueprint.folder)
        self.spill_detector: SpillDetector | None = None
        self._machine: MachineMonitor | None = None

    @property
    def evaluations(self) -> list[EvaluationDone]:
        """Evaluations of the validation split so far."""
        return self.eval_scheduler.evaluations

    @property
    def rates(self) -> LrPlan:
        """Current learning rate plan."""
        return self.steering.rates

    def release_model(self) -> None:
        """Drop all references to the model."""
        self.course.tokens, self.course.by_source = lambda: 0, dict
        self.eval_scheduler.release_model()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._machine = MachineMonitor(args.device, self._log)
        if evaluation := self.eval_scheduler.evaluate_at_start(state.global_step):
            self.steering.observe_initial(evaluation, state.global_step)
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
            write_record(lambda: folder.write_settings(run.settings), folder.path, self._log)
            return
        folder.open(run.settings)
        write_record(lambda: folder.write_data_sample(run.sample()), folder.path, self._log)

    def _pause(self, step: int) -> None:
        """Block the training thread until the run is resumed."""
        self._log.append(Note(text=f"Paused after step {step}; the memory stays in use."))
        started = time.monotonic()
        self._control.wait_while_pausing()
        self.course.exclude_pause(time.monotonic() - started)  # a pause must not count as a slow step
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
        self._heartbeat.record_step(step, self.rates.steps)
        self._watch_machine(progress)
        if change := self.phases.update(progress.smoothed):
            self._log.append(Note(text=f"After step {step} the order changes over: {change}"))
        evaluation = self.eval_scheduler.after(step, last=self.steering.is_last(step))
        self._decide(step, control, lr_scheduler, evaluation)
        self.course.begin_step()  # work between two steps counts for neither

    def _watch_machine(self, progress: Progress) -> None:
        if self.spill_detector is not None and self.spill_detector.observe(progress.seconds, progress.tokens):
            self._log.append(Advice(text=SPILL_ADVICE))
        if self._machine is not None:
            self._machine.observe()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._machine is not None:
            self._machine.observe(at_once=True)

    def _phase(self, step: int) -> str:
        """Return the batching phase of a step, if there are several, and log a planned change."""
        if len(self.phases.names) == 1:
            return ""
        phase = self.phases.phase_of_step(step)
        if step > 1 and phase != self.phases.phase_of_step(step - 1):
            self._log.append(Note(text=f"From step {step} on: {phase}."))
        return phase

    def _decide(
        self, step: int, control: TrainerControl, scheduler: Any, evaluation: Evaluation | None = None
    ) -> None:
        assert self.course.smoothed is not None
        steps_per_epoch = self._blueprint.plan.steps_per_epoch
        step_state = StepState(
            step, steps_per_epoch, self.course.smoothed, sync_control(self._control, time.monotonic())
        )
        decision = self.steering.after(step_state, self.course.rates_used(), evaluation)
        control.should_training_stop |= decision.stop
        control.should_save, self._reason = decision.save is not None, decision.save or ""
        if decision.replanned:
            apply_to_scheduler(self.rates, scheduler)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not dist_env.is_main_process():  # only rank 0 keeps checkpoints
            self._blueprint.folder.remove_partial_checkpoints()
            return
        self.save_error = self.save_error or self._complete_checkpoint(state.global_step)
        if self.save_error:
            self._continue_without(state.global_step, control)
        self.course.begin_step()

    def _complete_checkpoint(self, step: int) -> str:
        """Complete the checkpoint and remove older ones; returns the reason if that fails."""
        folder, live = self._blueprint.folder, self.steering.live
        try:
            self.last_saved = finalize_checkpoint(folder, self._reason, self._run_state(step))
            if not (folder.path / PARAMETERS).is_file():  # the folder was deleted; a resume needs the settings
                folder.write_settings(self._blueprint.settings)
        except OSError as error:
            return write_error_reason(error, folder.path)
        self._heartbeat.saved()
        self._log.append(CheckpointSaved(step=step, folder=self.last_saved, reason=self._reason))
        with suppress(OSError):  # a file held open by another program is removed after the next checkpoint
            retention.thin_checkpoints(
                folder.path, live.saving.keep_checkpoints, self.steering.best.step, folder.start_step
            )
        return ""

    def clean_up_failed_save(self, *, for_want_of_room: bool) -> None:
        """Remove the half-written checkpoint before the next attempt, and older ones if the disk is full."""
        self._blueprint.folder.remove_partial_checkpoints()
        if for_want_of_room:
            retention.free_disk_space(self._blueprint.folder.path, self._blueprint.folder.start)

    def _continue_without(self, step: int, control: TrainerControl) -> None:
        """Continue without this checkpoint, and cancel the restart that would have begun from it."""
        self._blueprint.folder.remove_partial_checkpoints()
        last = f"The last one is {self.last_saved.name}." if self.last_saved else "There is none yet."
        planned = "" if self.steering.restart is None else " as it was planned before"
        explanation = f"could not be saved: {self.save_error}. The run goes on{planned}. {last}"
        self._log.append(Advice(text=f"The checkpoint of step {step} {explanation}"))
        self.steering.on_checkpoint_failed()
        if self.steering.restart is not None:
            self.steering.restart = None
            control.should_training_stop = bool(self.steering.stopped_by) or self.steering.is_last(step)

    def log_split_batch(self, piece: MicroBatch, most: int) -> None:
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
