"""What happens between two steps: records, decisions, requests, evaluations, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from transformers import TrainerCallback

from ...core import dist_env
from ...core.files import is_disk_full, write_error_reason
from ...core.jobs import Advice, CheckpointSaved, EvaluationDone, Job, Note, Request, Stage, StageKind, Step
from ...records.folder import PARAMETERS, loras
from ...records.folder import run_files as record
from ...records.report import graph_entry
from ...train_utils import format_count
from ..compute import MachineMonitor, ModelCapabilities, StepSums, distributed
from ..inference import RunMeasurements
from ..plan import BatchingPhases, RunController, RunPlan, StepLog, StepState, apply_to_scheduler
from ..saving import WRITE_ATTEMPTS, RunState, finalize_checkpoint, is_write_error, safe_save

SAMPLE_EXAMPLES = 10  # in train_dataset_sample.json
NOTHING_TO_MEASURE = (
    "There is nothing to evaluate, because this run has no validation split and no recall passages. For the next "
    "run, set Validation split (eval_share) or Recall passages (recall_passages)."
)


class RunOver(Exception):  # noqa: N818 - no error
    """No step is left to train."""


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Hooks into the loop of transformers; at each step it calls on_step_end, on_log, on_save, in this order."""

    def __init__(
        self,
        run_plan: RunPlan,
        state: RunState,
        start: Path | None,
        model: Any,
        capabilities: ModelCapabilities,
        sums: StepSums,
        monitor: MachineMonitor,
        job: Job,
    ) -> None:
        """The trainer adds each batch to the `sums`; `start` is the checkpoint with this `state`, if any."""
        self._run_plan, self._sums, self._monitor = run_plan, sums, monitor
        self._control, self._log = job.control, job.log
        self._first = state.step + 1
        self._unchangeable = state.unchangeable
        self._reason = ""
        self.step_log = StepLog(state.graph, state.smoothed)
        self.phases = BatchingPhases(run_plan, state.changes)
        self.measurements = RunMeasurements(run_plan, model, capabilities, job, self.step_log, self.phases, state)
        self.controller = RunController(run_plan, state.steering, job)
        self.group_settings: Sequence[Mapping[str, Any]] = ()  # of the optimizer, as the settings ask for them
        self.last_saved = start
        self.save_error = ""
        self.save_now: Callable[[], None]  # of the trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **loop: Any) -> None:
        if state.global_step:
            # The Trainer has loaded the optimizer and the scheduler of the checkpoint, with the values that its
            # run began with. Those of now apply from the next step on.
            for group, values in zip(loop["optimizer"].param_groups, self.group_settings, strict=True):
                # Only what differs: groups that share a tuple are pickled to other bytes.
                group.update({key: value for key, value in values.items() if group[key] != value})
            apply_to_scheduler(self.controller.rates, loop["lr_scheduler"])
        if evaluation := self.measurements.at_start(state.global_step):
            self.controller.observe_initial(evaluation, state.global_step)
        self.step_log.begin_step()

    def draw(self, epoch: int) -> Sequence[int]:
        """The examples of a pass, by what the model knows."""
        started = time.monotonic()
        numbers = self.measurements.draw(epoch)
        self.step_log.exclude_time(time.monotonic() - started)
        return numbers

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # A resumed run may have no step left. The Trainer looks at `should_training_stop` only after a step.
        if self.controller.is_over(state.global_step):
            raise RunOver

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Open the run folder after the first step, when there is something to save."""
        examples, folder = self._run_plan.data.examples, self._run_plan.folder
        if state.global_step != self._first:
            return
        if folder.is_open:  # opened by an earlier segment, with another plan
            self._write_settings()
            return
        folder.open(self.controller.settings)
        sample = [{"value": examples[n].text} for n in range(min(SAMPLE_EXAMPLES, len(examples)))]
        private = self._run_plan.data.report.private
        safe_save.write_record(lambda: folder.write_data_sample(sample, private=private), folder.path, self._log)

    def _write_settings(self) -> None:
        """Write the settings that are in force, so that what reads them later knows of changes in mid-run."""
        folder = self._run_plan.folder
        safe_save.write_record(lambda: folder.write_settings(self.controller.settings), folder.path, self._log)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **loop: Any) -> None:
        """Record the step and decide what follows; transformers saves and stops after this call."""
        if not logs or "loss" not in logs:
            return
        del state.log_history[:-1]  # each checkpoint would repeat all of it, and our graph has it
        step, norm, plan = state.global_step, logs.get("grad_norm"), self._run_plan.plan
        phase = ""
        if len(self.phases.names) > 1:
            phase = self.phases.phase_of_step(step)
            if step > 1 and phase != self.phases.phase_of_step(step - 1):
                self._log.append(Note(text=f"Batch order from step {step} on: {phase}."))
        loss, rates = float(logs["loss"]), self.controller.rates
        tokens, by_source, preferences = self._sums.take()
        smoothed, seconds, extra_time = self.step_log.end_step(loss)
        progress = Step(
            step=step,
            steps=rates.steps,
            epoch=step / plan.steps_per_epoch,
            loss=loss,
            smoothed=smoothed,
            learning_rate=rates.rate(step),
            gradient_norm=None if norm is None else float(norm),
            tokens=tokens,
            seconds=seconds,
            extra_time=extra_time,
            by_source=by_source,
            phase=phase,
            examples=plan.examples_in_step(step),
            preferences=preferences,
        )
        self.step_log.graph.append(progress)
        self._log.append(progress)
        if warning := self.step_log.warn_of_fall(preferences):
            self._log.append(Advice(text=f"Step {step}: {warning}"))
        self._monitor.observe_step(progress)
        if change := self.phases.update(progress.smoothed):
            self._log.append(Note(text=f"Batch order after step {step}: {change}"))
        changes_before, rates_before = len(self.controller.live_changes), self.controller.rates
        pauses = self._control.asked(Request.PAUSE) and not self._control.asked(Request.FREE_MEMORY)
        if any(distributed.any_rank(pauses)):  # if any process was asked to
            text = f"Paused after step {step} until you resume the run; the model stays in memory"
            self._log.append(Stage(text=text, kind=StageKind.PAUSED))
            started = time.monotonic()
            while distributed.wait_while_paused(self._control):
                self.controller.take_live(step)
                self._write_settings()
                self._reason = "user"
                self.save_now()
                self.on_save(args, state, control)
            # A pause must not count as a slow step.
            self.step_log.exclude_time(time.monotonic() - started, was_paused=True)
            self._log.append(Note(text=f"Resuming after step {step}."))
            self._log.append(Stage(text="Training", kind=StageKind.TRAINING))

        evaluation = self._measure(step)
        # The clock and the requests are those of rank 0, so that all processes decide the same.
        requests, clock = distributed.sync_control(self._control, time.monotonic())
        after = StepState(
            step, plan.steps_per_epoch, progress.smoothed, clock, steps=plan.steps, requests=requests
        )
        stop, reason = self.controller.decide(
            after, self.step_log.rates_used, evaluation, partial(self.measurements.evaluate, why="end")
        )
        if len(self.controller.live_changes) > changes_before:
            self._write_settings()
        control.should_training_stop |= stop
        control.should_save, self._reason = reason is not None, reason or ""
        scheduler = loop["lr_scheduler"]
        if self.controller.rates is not rates_before or scheduler.last_epoch != step:
            # In float16, the Trainer leaves out the scheduler's step with a step whose gradients are not finite.
            scheduler.last_epoch = step
            apply_to_scheduler(self.controller.rates, scheduler)
        self.step_log.begin_step()  # work between two steps counts for neither

    def _measure(self, step: int) -> EvaluationDone | None:
        """Evaluate, and measure recall, where it is planned or the user asked for it; not while the run stops."""
        asked, stopping = self._control.take(Request.EVALUATE), self._control.asked(Request.STOP)
        asked, stopping = distributed.any_rank(asked, stopping)  # all processes measure, or none
        if asked and not self.measurements.can_measure:
            self._log.append(Advice(text=NOTHING_TO_MEASURE))
        if stopping:
            return None
        return self.measurements.after(step, last=self.controller.is_last(step), asked=asked)

    def save_checkpoint(self, write: Callable[[], None]) -> None:
        """Let the Trainer write its checkpoint, before it calls on_save; a failure does not end the run."""
        folder = self._run_plan.folder
        for _ in range(WRITE_ATTEMPTS):
            try:
                write()
            except (OSError, RuntimeError, SafetensorError) as error:  # the last two: a full disk
                if not is_write_error(error):
                    raise
                self.save_error, is_full = write_error_reason(error, folder.path), is_disk_full(error, folder.path)
            else:
                self.save_error = ""
                return
            folder.remove_partial_checkpoints()  # only here, since the error keeps the half-written file open
            if is_full:
                loras.free_disk_space(folder.path, folder.start)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Complete the checkpoint and remove older ones; if it failed, continue without it."""
        folder, controller, step = self._run_plan.folder, self.controller, state.global_step
        if not dist_env.is_main_process():  # only rank 0 keeps checkpoints
            folder.remove_partial_checkpoints()
            return
        if not self.save_error:
            run_state = RunState(
                step,
                self.step_log.smoothed,
                cast("list[record.GraphRecord]", map(graph_entry, self.step_log.graph)),
                self._unchangeable,
                list(self.phases.changes),
                controller.memory(),
                self.measurements.recalls,
                self.measurements.drawn,
            )
            try:
                self.last_saved = finalize_checkpoint(folder, self._reason, run_state)
                if not (folder.path / PARAMETERS).is_file():  # the folder was deleted; a resume needs the settings
                    folder.write_settings(controller.settings)
            except OSError as error:
                self.save_error = write_error_reason(error, folder.path)
        if self.save_error:
            # The run continues without this checkpoint, and without the restart that would have begun from it.
            folder.remove_partial_checkpoints()
            had_restart = controller.cancel_checkpoint()
            planned = ", but the pause or the added epochs that you requested are canceled" if had_restart else ""
            explanation = (
                f"could not be saved: {self.save_error}. The run continues{planned}. {self.last_checkpoint()}"
            )
            self._log.append(Advice(text=f"The checkpoint at step {step} {explanation}"))
            if had_restart:
                control.should_training_stop = controller.is_over(step)
        else:
            assert self.last_saved is not None
            self._log.append(CheckpointSaved(step=step, folder=self.last_saved, reason=self._reason))
            with suppress(OSError):  # a file held open by another program is removed after the next checkpoint
                keep = controller.live.saving.keep_checkpoints
                loras.thin_checkpoints(folder.path, keep, controller.best.step, folder.start_step)
        self.step_log.begin_step()

    def last_checkpoint(self) -> str:
        """Return a sentence about it, for one that has to begin again from there."""
        saved = self.last_saved
        return f"The last checkpoint is {saved.name}." if saved else "There is no checkpoint yet."

    def log_split_batch(self, examples: int, size: int) -> None:
        """Log that a batch did not fit into memory and is split."""
        step = self.step_log.graph[-1].step + 1 if self.step_log.graph else 1
        self._log.append(
            Advice(
                text=f"Step {step}: a batch of {examples} examples does not fit in memory. This step and all "
                f"later ones train on {format_count(size, 'example')} at a time, with more gradient "
                "accumulation. The effective batch size stays the same, but steps take longer."
            )
        )
