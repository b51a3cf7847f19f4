"""Trainer callback that answers the sample prompts during a run and saves the answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...core.errors import first_line
from ...core.files import write_json
from ...core.host import Host
from ...core.jobs import Advice, Job, Stage
from ...data.rows import Prompt
from ...records.folder import TRAINING_PROMPT
from ...records.folder import run_files as record
from ..inference import SampleGenerator, sampling_mode
from ..plan import RunPlan, StepLog


class SampleCallback(TrainerCallback):  # type: ignore[misc]
    """Samples before the first step, at the chosen steps, when the user asks for it, and at the end."""

    def __init__(self, run_plan: RunPlan, step_log: StepLog, host: Host, job: Job, first: int) -> None:
        """`first` is the number of steps already done."""
        self._run_plan, self._step_log, self._job = run_plan, step_log, job
        earlier = record.read_samples(run_plan.folder.path) if first else []
        self._samples = [sample for sample in earlier if sample.step <= first]
        self._generator = SampleGenerator(run_plan, host, job, self._samples)
        self._folder = run_plan.folder.path
        self._has_folder = False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Sample for the step before, whose checkpoint is on disk by now."""
        if state.is_world_process_zero and self._is_due(state.global_step):
            self._sample(model, state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the prompt info once the first step has created the folder."""
        if state.is_world_process_zero and not self._has_folder:
            self._has_folder = True
            started = time.monotonic()
            self._log_errors("How to talk to the LoRA could not be written", self._write_prompt_info)
            self._step_log.exclude_time(time.monotonic() - started)

    def sample_at_end(self, model: Any, step: int, folder: Path) -> None:
        """Sample at the end of the run, after the LoRA was saved into this folder."""
        self._folder = folder
        planned = self._every != "never" and not self._is_answered(step)
        asked = self._job.control.take_sample() or planned
        if asked and self._has_folder and not self._job.control.stopping:
            self._sample(model, step, "Keeping the records")

    @property
    def _every(self) -> int | str:
        return self._run_plan.settings.samples.sample_every

    def _is_due(self, step: int) -> bool:
        if self._job.control.take_sample():
            return True
        if self._every == "never" or self._is_answered(step):
            return False
        return step % (self._run_plan.plan.steps_per_epoch if self._every == "epoch" else int(self._every)) == 0

    def _is_answered(self, step: int) -> bool:
        return any(sample.step == step for sample in self._samples)

    def _sample(self, model: Any, step: int, next_stage: str = "Training") -> None:
        started = time.monotonic()
        self._job.log.append(Stage(text=f"Answering the prompts after step {step}"))
        self._log_errors(
            f"The prompts could not be answered after step {step}", partial(self._sample_all, model, step)
        )
        self._job.log.append(Stage(text=next_stage))
        self._step_log.exclude_time(time.monotonic() - started)

    def _sample_all(self, model: Any, step: int) -> None:
        with sampling_mode(model):
            for prompt in self._generator.prompts:
                failure = f"The prompt {prompt.text[:40]!r} could not be answered after step {step}"
                self._log_errors(failure, partial(self._sample_one, model, prompt, step))
        if self._has_folder:
            record.write_samples(self._folder, self._samples)

    def _sample_one(self, model: Any, prompt: Prompt, step: int) -> None:
        if sampled := self._generator.sample(model, prompt, step):
            self._samples.append(sampled)
            self._job.log.append(sampled)

    def _write_prompt_info(self) -> None:
        """Write the prompt info, and the answers from before there was a folder."""
        write_json(self._folder / TRAINING_PROMPT, self._generator.prompt_info())
        if self._samples:
            record.write_samples(self._folder, self._samples)

    def _log_errors(self, failure: str, act: Callable[[], None]) -> None:
        """Act, and log any error; the run continues."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - no sample is worth ending hours of training
            self._job.log.append(Advice(text=f"{failure}: {first_line(error)}. The run goes on."))
