"""Trainer callback that records each step, and carries out decisions, requests and evaluations between steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...core import dist_env
from ...core.files import is_disk_full, write_error_reason
from ...core.jobs import Advice, CheckpointSaved, Job, Note, Request, Stage, StageKind
from ...records.folder import PARAMETERS, GraphRecord, Heartbeat, loras
from ...train_utils import format_count
from ..compute import MachineMonitor, StepSums, distributed
from ..inference import EvalScheduler, Meters, RecallScheduler
from ..plan import Evaluation, RunController, StepLog, StepState, apply_to_scheduler
from ..saving import WRITE_ATTEMPTS, RunState, finalize_checkpoint, is_write_error, write_record
from .run_segments import RunSegment
from .sampler import BatchingPhases

NOTHING_TO_MEASURE = (
    "There is nothing to evaluate, because this run has no validation split and no recall passages. For the next "
    "run, set Validation split (eval_share) or Recall passages (recall_passages)."
)


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Hooks into the loop of transformers; at each step it calls on_step_end, on_log, on_save, in this order."""

    def __init__(
        self,
        segment: RunSegment,
        meters: Meters,
        sums: StepSums,
        monitor: MachineMonitor,
        job: Job,
    ) -> None:
        """The trainer adds each batch to the `sums`."""
        run_plan, state = segment.run_plan, segment.state
        self._run_plan, self._sums, self._monitor = run_plan, sums, monitor
        self._control, self._log = job.control, job.log
        self._first = state.step + 1
        self._unchangeable = state.unchangeable
        self._reason = ""
        self._heartbeat = Heartbeat(run_plan.folder)
        self.step_log = StepLog(run_plan.plan.steps_per_epoch, state.graph, state.smoothed)
        self.phases = BatchingPhases(run_plan, state.changes)
        self._evaluations = EvalScheduler(
            run_plan, meters.evaluator, self.step_log.graph, job, ends_phase=self.phases.ends_with
        )
        self.recalls = RecallScheduler(run_plan, meters.recall, state.recalls, job)
        self._can_measure = meters != Meters(None, None)
        self.controller = RunController(run_plan, state.steering, job)
        self.last_saved = segment.start
        self.save_error = ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if evaluation := self._evaluations.evaluate_at_start(state.global_step):
            self.controller.observe_initial(evaluation, state.global_step)
        self.recalls.measure_at_start(state.global_step)
        self.step_log.begin_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self._first:
            self._open_folder()

    def _open_folder(self) -> None:
        """Open the run folder after the first step, when there is something to save."""
        run, folder = self._run_plan, self._run_plan.folder
        if folder.is_open:  # opened by an earlier segment, with another plan
            self._write_settings()
            return
        folder.open(self.controller.settings)
        write_record(lambda: folder.write_data_sample(run.sample()), folder.path, self._log)

    def _write_settings(self) -> None:
        """Write the settings that are in force, so that what reads them later knows of changes in mid-run."""
        folder = self._run_plan.folder
        write_record(lambda: folder.write_settings(self.controller.settings), folder.path, self._log)

    def _pause(self, step: int) -> None:
        """Block the training thread until the run is resumed."""
        text = f"Paused after step {step} until you resume the run; the model stays in memory"
        self._log.append(Stage(text=text, kind=StageKind.PAUSED))
        started = time.monotonic()
        distributed.wait_while_paused(self._control)
        self.step_log.exclude_pause(time.monotonic() - started)  # a pause must not count as a slow step
        self._log.append(Note(text=f"Resuming after step {step}."))
        self._log.append(Stage(text="Training", kind=StageKind.TRAINING))

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **more: Any
    ) -> None:
        """Record the step and decide what follows; transformers saves and stops after this call."""
        if not logs or "loss" not in logs:
            return
        del state.log_history[:-1]  # each checkpoint would repeat all of it, and our graph has it
        step, norm = state.global_step, logs.get("grad_norm")
        progress = self.step_log.add(
            step,
            float(logs["loss"]),
            None if norm is None else float(norm),
            self.controller.rates,
            *self._sums.take(),
            phase=self._phase(step),
            examples=self._run_plan.plan.examples_in_step(step),
        )
        self._log.append(progress)
        self._heartbeat.record_step(step, progress.steps)
        self._monitor.observe_step(progress)
        if distributed.pauses(self._control):
            self._pause(step)
        if change := self.phases.update(progress.smoothed):
            self._log.append(Note(text=f"Batch order after step {step}: {change}"))
        evaluation = self._measure(step)
        self._decide(step, progress.smoothed, evaluation, control, more["lr_scheduler"])
        self.step_log.begin_step()  # work between two steps counts for neither

    def _measure(self, step: int) -> Evaluation | None:
        """Evaluate, and measure recall, where it is planned or the user asked for it; not while the run stops."""
        asked, stopping = self._control.take(Request.EVALUATE), self._control.asked(Request.STOP)
        asked, stopping = distributed.any_rank(asked, stopping)  # all processes measure, or none
        if asked and not self._can_measure:
            self._log.append(Advice(text=NOTHING_TO_MEASURE))
        if stopping:
            return None
        last = self.controller.is_last(step)
        if not last:
            self.recalls.measure_after(step, asked=asked)
        return self._evaluations.evaluate_after(step, last=last, asked=asked)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Measure recall for the verdict, once the last checkpoint is on disk."""
        if self.controller.restart is None:
            self.recalls.measure_at_end(state.global_step)
        self._monitor.observe(at_once=True)

    def _phase(self, step: int) -> str:
        """Return the batching phase of a step, if there are several, and log a planned change."""
        if len(self.phases.names) == 1:
            return ""
        phase = self.phases.phase_of_step(step)
        if step > 1 and phase != self.phases.phase_of_step(step - 1):
            self._log.append(Note(text=f"Batch order from step {step} on: {phase}."))
        return phase

    def _decide(
        self, step: int, smoothed: float, evaluation: Evaluation | None, control: TrainerControl, scheduler: Any
    ) -> None:
        plan, (requests, clock) = self._run_plan.plan, distributed.sync_control(self._control, time.monotonic())
        changes_before = len(self.controller.live_changes)
        state = StepState(step, plan.steps_per_epoch, smoothed, clock, steps=plan.steps, requests=requests)
        decision = self.controller.decide(
            state, self.step_log.rates_used, evaluation, self._evaluations.evaluate_at_end
        )
        if len(self.controller.live_changes) > changes_before:
            self._write_settings()
        control.should_training_stop |= decision.stop
        control.should_save, self._reason = decision.save is not None, decision.save or ""
        if decision.replanned:
            apply_to_scheduler(self.controller.rates, scheduler)

    def save_checkpoint(self, write: Callable[[], None]) -> None:
        """Let the Trainer write its checkpoint, before it calls on_save; a failure does not end the run."""
        folder = self._run_plan.folder
        for _ in range(WRITE_ATTEMPTS):
            try:
                write()
            except (
                OSError,
                RuntimeError,
                SafetensorError,
            ) as error:  # the last two: a full disk
                if not is_write_error(error):
                    raise
                self.save_error, is_full = write_error_reason(error, folder.path), is_disk_full(error, folder.path)
            else:
                self.save_error = ""
                return
            folder.remove_partial_checkpoints()  # only here, since the error keeps the half-written file open
            if is_full:
                loras.free_disk_space(folder.path, folder.start)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not dist_env.is_main_process():  # only rank 0 keeps checkpoints
            self._run_plan.folder.remove_partial_checkpoints()
            return
        self.save_error = self.save_error or self._complete_checkpoint(state.global_step)
        if self.save_error:
            self._continue_without(state.global_step, control)
        self.step_log.begin_step()

    def _complete_checkpoint(self, step: int) -> str:
        """Complete the checkpoint and remove older ones; returns the reason if that fails."""
        folder, controller, step_log = self._run_plan.folder, self.controller, self.step_log
        changes, memory = list(self.phases.changes), controller.memory()
        graph = cast("list[GraphRecord]", step_log.graph)
        recalls = self.recalls.measured
        state = RunState(step, step_log.smoothed, graph, self._unchangeable, changes, memory, recalls)
        try:
            self.last_saved = finalize_checkpoint(folder, self._reason, state)
            if not (folder.path / PARAMETERS).is_file():  # the folder was deleted; a resume needs the settings
                folder.write_settings(controller.settings)
        except OSError as error:
            return write_error_reason(error, folder.path)
        self._heartbeat.record_checkpoint()
        self._log.append(CheckpointSaved(step=step, folder=self.last_saved, reason=self._reason))
        with suppress(OSError):  # a file held open by another program is removed after the next checkpoint
            keep = controller.live.saving.keep_checkpoints
            loras.thin_checkpoints(folder.path, keep, controller.best.step, folder.start_step)
        return ""

    def _continue_without(self, step: int, control: TrainerControl) -> None:
        """Continue without this checkpoint, and cancel the restart that would have begun from it."""
        self._run_plan.folder.remove_partial_checkpoints()
        saved = self.last_saved
        last = f"The last checkpoint is {saved.name}." if saved else "There is no checkpoint yet."
        had_restart = self.controller.cancel_checkpoint()
        planned = ", but the pause or the added epochs that you requested are canceled" if had_restart else ""
        explanation = f"could not be saved: {self.save_error}. The run continues{planned}. {last}"
        self._log.append(Advice(text=f"The checkpoint at step {step} {explanation}"))
        if had_restart:
            control.should_training_stop = self.controller.is_over(step)

    def log_split_batch(self, examples: int, size: int) -> None:
        """Log that a batch did not fit into memory and is split."""
        step = self.step_log.graph[-1]["current_steps"] + 1 if self.step_log.graph else 1
        self._log.append(
            Advice(
                text=f"Step {step}: a batch of {examples} examples does not fit in memory. This step and all "
                f"later ones train on {format_count(size, 'example')} at a time, with more gradient "
                "accumulation. The effective batch size stays the same, but steps take longer."
            )
        )
