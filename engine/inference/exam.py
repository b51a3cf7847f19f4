"""Asking an exam: greedy short answers to its questions, without the text, before, during and after a run."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ...core import dist_env
from ...core.engine import LoraName
from ...core.errors import StoppedError
from ...core.files import write_json
from ...core.host import Host, get_model_card
from ...core.jobs import ExamAsked, Job, JobEnded, Request, SectionScore, Stage, StageKind
from ...data import workshop
from ...data.dataset_index import find_datasets, locate_dataset
from ...data.rows import detect_prompt_style
from ...records.folder import run_files
from ...settings.definitions import TrainingSettings
from ...train_utils import checkpoint_step
from ..lora import adapter, pause_training_mode
from ..plan import RunPlan, StepLog
from ..tokenizer import make_working_tokenizer
from .eval_loop import EvalLoop, ProgressFn, StageProgress, log_failure, lora_phrase, measure_each
from .evidence import MAX_ANSWER_TOKENS, MORE_TOKENS, NOTHING_SAVED
from .generation import lora_prompt_style
from .in_run import MAX_SHARE
from .study import BATCH, Writer

MAX_WAIT = 60.0  # seconds that a user who has pressed Stop waits for the last exam


def ask(exam: workshop.Exam, writer: Writer, job: Job, report: ProgressFn, step: int) -> ExamAsked | None:
    """Let a model answer each question, and log what is right in each section; None if that was ended."""
    started, asked, right = time.monotonic(), Counter[str](), Counter[str]()
    for start in range(0, len(exam.questions), BATCH):
        batch = exam.questions[start : start + BATCH]
        messages = [(question.prompt, "") for question in batch]
        replies = writer.write(messages, MAX_ANSWER_TOKENS + MORE_TOKENS, temperature=0.0, seed=0)
        if job.control.asked(writer.until):
            return None
        for question, (reply, _) in zip(batch, replies, strict=True):
            asked[question.section] += 1
            right[question.section] += workshop.is_right(question.answer, reply)
        report((start + len(batch)) / len(exam.questions))
    sections = tuple(SectionScore(name, right[name], count) for name, count in asked.items())
    event = ExamAsked(step=step, sections=sections, seconds=time.monotonic() - started)
    job.log.append(event)
    return event


class ExamCallback(TrainerCallback):  # type: ignore[misc]
    """Asks the exam of a run before the first step, after epochs where its time allows it, and at the end."""

    def __init__(self, run_plan: RunPlan, step_log: StepLog, host: Host, job: Job) -> None:
        self._run_plan, self._step_log, self._host, self._job = run_plan, step_log, host, job
        datasets = find_datasets(run_plan.settings.aside.exam, host.folders)
        self._exam = workshop.read_exam(dataset.path for dataset in datasets)
        self._ended, self._seconds = time.monotonic(), 0.0  # of the last time that it was asked
        self._is_quick = False  # the last time that all of it was

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Ask for the step before, whose checkpoint is on disk by now."""
        step, every = state.global_step, self._run_plan.plan.steps_per_epoch
        is_affordable = self._seconds <= MAX_SHARE * (time.monotonic() - self._ended)
        if step == 0 or (step % every == 0 and is_affordable):
            self.ask(model, step)

    def ask(self, model: Any, step: int, *, at_end: bool = False) -> None:
        """Ask as the training data do; an error does not end the run.

        At the end, Stop does not end the exam, unless it would let the user wait: Discard does.
        """
        run, host, log = self._run_plan, self._host, self._job.log
        until = Request.DISCARD if at_end and self._is_quick else Request.STOP
        if not self._exam.questions or not dist_env.is_main_process():
            return
        started = time.monotonic()
        with log_failure(f"The exam after step {step} failed", log):
            tokenizer = make_working_tokenizer(run.card.tokenizer, host.chat_template())
            style = detect_prompt_style(run.settings, host.folders, tokenizer, run.data.examples)
            progress = StageProgress(Stage(text="Asking the exam"), log)
            with pause_training_mode(model):
                writer = Writer(model, host, self._job, style)
                writer.until = until
                if not self._job.control.asked(until):
                    ask(self._exam, writer, self._job, progress, step)
        if not at_end:
            log.append(Stage(text="Training", kind=StageKind.TRAINING))
        self._ended, self._seconds = time.monotonic(), time.monotonic() - started
        if not self._job.control.asked(until):
            self._is_quick = self._seconds < MAX_WAIT
        self._step_log.exclude_time(self._seconds)


def ask_exam(name: str, lora: LoraName, host: Host, job: Job) -> JobEnded:
    """Ask a model without the LoRA and with it, and add both to the exams in the LoRA's folder."""
    tokenizer = make_working_tokenizer(get_model_card(host).tokenizer, host.chat_template())
    exam, style, step = workshop.read_exam([locate_dataset(name, host.folders)]), None, 0
    loras: list[tuple[str, Path | None]] = [("", None)]
    if lora:
        folder = adapter.lora_folder(lora, host)
        loras.append((str(lora), folder))
        step = checkpoint_step(folder.name) or run_files.trained_steps(run_files.read_log(folder))
        style = lora_prompt_style(folder, tokenizer)  # on both sides, so that they compare

    def measure(with_lora: str, eval_loop: EvalLoop, progress: ProgressFn) -> ExamAsked | None:
        writer = Writer(eval_loop.model.eval(), host, job, style)
        return ask(exam, writer, job, progress, step if with_lora else 0)

    measured = measure_each(loras, TrainingSettings(), host, job, "Asking the exam", measure)
    if len(measured) < len(loras):
        raise StoppedError(NOTHING_SAVED)
    if lora:
        earlier = run_files.read_exams(folder)
        write_json(folder / run_files.EXAM, [asdict(event) for event in (*earlier, *measured)])
    right = ", ".join(f"{each.right} {lora_phrase(name)}" for (name, _), each in zip(loras, measured, strict=True))
    return JobEnded(outcome="finished", text=f"Right answers to {len(exam.questions)} questions: {right}.")
