"""Trainer callback that answers the sample prompts during a run and saves the answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...core.errors import first_line
from ...core.files import write_json
from ...core.host import Host
from ...core.jobs import Advice, Job, Request, Stage, StageKind
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
            with self._logged_errors("The LoRA's prompt format could not be saved"):
                write_json(self._folder / TRAINING_PROMPT, self._generator.prompt_info())
                if self._samples:  # from before there was a folder
                    record.write_samples(self._folder, self._samples)
            self._step_log.exclude_time(time.monotonic() - started)

    def sample_at_end(self, model: Any, step: int, folder: Path) -> None:
        """Sample at the end of the run, after the LoRA was saved into this folder."""
        self._folder = folder
        wanted = self._job.control.take(Request.SAMPLE) or self._planned_interval(step)
        if wanted and self._has_folder and not self._job.control.asked(Request.STOP):
            self._sample(model, step, "Saving the records")

    def _is_due(self, step: int) -> bool:
        if self._job.control.take(Request.SAMPLE):
            return True
        interval = self._planned_interval(step)
        return interval > 0 and step % interval == 0

    def _planned_interval(self, step: int) -> int:
        """Return the steps from one sample to the next; 0 if none are planned or this step has its own already."""
        every = self._run_plan.settings.samples.sample_every
        if every == "never" or any(sample.step == step for sample in self._samples):
            return 0
        return self._run_plan.plan.steps_per_epoch if every == "epoch" else int(every)

    def _sample(self, model: Any, step: int, next_stage: str = "") -> None:
        started = time.monotonic()
        with self._logged_errors(f"Samples could not be generated {_when(step)}"):
            with sampling_mode(model):
                prompts = self._generator.prompts
                for number, prompt in enumerate(prompts, start=1):
                    of = f" for prompt {number} of {len(prompts)}" if len(prompts) > 1 else ""
                    self._job.log.append(Stage(text=f"Generating a sample{of} {_when(step)}"))
                    failure = f"The sample for {prompt.text[:40]!r} failed {_when(step)}"
                    with self._logged_errors(failure):
                        if sampled := self._generator.sample(model, prompt, step):
                            self._samples.append(sampled)
                            self._job.log.append(sampled)
            if self._has_folder:
                record.write_samples(self._folder, self._samples)
        training = Stage(text="Training", kind=StageKind.TRAINING)
        self._job.log.append(Stage(text=next_stage) if next_stage else training)
        self._step_log.exclude_time(time.monotonic() - started)

    @contextmanager
    def _logged_errors(self, failure: str) -> Iterator[None]:
        """Log any error within this context; the run continues."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no sample is worth ending hours of training
            self._job.log.append(Advice(text=f"{failure}: {first_line(error)}. The run continues."))


def _when(step: int) -> str:
    return f"after step {step}" if step else "before the first step"
