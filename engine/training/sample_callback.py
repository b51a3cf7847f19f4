"""When the model is asked in the middle of a run, and where its answers are kept."""

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
from ...records.folder import TALKING
from ...records.folder import samples as record
from ..inference import Asking, between_steps
from ..plan import Blueprint
from .callback import BetweenSteps


class Samples(TrainerCallback):  # type: ignore[misc]
    """Asks before the first step, at the chosen steps, when somebody wishes it, and at the end."""

    def __init__(self, run: Blueprint, between: BetweenSteps, host: Host, job: Job, first: int) -> None:
        """`first` is how many steps are done already."""
        self._run, self._between, self._job = run, between, job
        there = record.read_samples(run.folder.path) if first else []
        self._said = [one for one in there if one.step <= first]
        self._asking = Asking(run, host, job, self._said)
        self._folder = run.folder.path
        self._folder_is_there = False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """After the step before it, whose checkpoint is on disk by now."""
        if state.is_world_process_zero and self._is_due(state.global_step):
            self._ask(model, state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """With the first step the folder is there."""
        if state.is_world_process_zero and not self._folder_is_there:
            self._folder_is_there = True
            began = time.monotonic()
            self._safely("How to talk to the LoRA could not be written", self._leave_first_words)
            self._between.course.leave_out(time.monotonic() - began)

    def at_the_end(self, model: Any, step: int, folder: Path) -> None:
        """What it says now that the LoRA is on disk, in this folder."""
        self._folder = folder
        planned = self._every != "never" and not self._answered(step)
        wanted = self._job.control.take_sample() or planned
        if wanted and self._folder_is_there and not self._job.control.stopping:
            self._ask(model, step, "Keeping the records")

    @property
    def _every(self) -> int | str:
        return self._run.settings.samples.sample_every

    def _is_due(self, step: int) -> bool:
        if self._job.control.take_sample():
            return True
        if self._every == "never" or self._answered(step):
            return False
        return step % (self._run.plan.steps_per_epoch if self._every == "epoch" else int(self._every)) == 0

    def _answered(self, step: int) -> bool:
        return any(one.step == step for one in self._said)

    def _ask(self, model: Any, step: int, next_stage: str = "Training") -> None:
        began = time.monotonic()
        self._job.log.append(Stage(text=f"Answering the prompts after step {step}"))
        self._safely(f"The prompts could not be answered after step {step}", partial(self._ask_all, model, step))
        self._job.log.append(Stage(text=next_stage))
        self._between.course.leave_out(time.monotonic() - began)

    def _ask_all(self, model: Any, step: int) -> None:
        with between_steps(model):
            for prompt in self._asking.prompts:
                words = f"The prompt {prompt.text[:40]!r} could not be answered after step {step}"
                self._safely(words, partial(self._ask_one, model, prompt, step))
        if self._folder_is_there:
            record.keep(self._folder, self._said)

    def _ask_one(self, model: Any, prompt: Prompt, step: int) -> None:
        if sampled := self._asking.ask(model, prompt, step):
            self._said.append(sampled)
            self._job.log.append(sampled)

    def _leave_first_words(self) -> None:
        """How to talk to the LoRA, and what was answered before there was a folder."""
        write_json(self._folder / TALKING, self._asking.how_to_talk())
        if self._said:
            record.keep(self._folder, self._said)

    def _safely(self, words: str, act: Callable[[], None]) -> None:
        """Whatever goes wrong is said, and the run goes on."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - hours of training do not end for an answer
            self._job.log.append(Advice(text=f"{words}: {first_line(error)}. The run goes on."))
