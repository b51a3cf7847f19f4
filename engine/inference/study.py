"""What a model writes: notes on a dataset, and pairs against its author, to train on; and answers to exams.

An exam is answered greedily and in short, without the text, before, during and after a run.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby, islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from ...core import dist_env
from ...core.engine import AnswerRequest, LoraName, StudyRequest
from ...core.errors import DataError, StoppedError
from ...core.files import descendant, write_json, write_text
from ...core.host import Host, get_model_card
from ...core.jobs import ExamAsked, Job, JobEnded, NotesTaken, Request, SectionScore, Stage, StageKind
from ...data import workshop
from ...data.dataset_index import find_datasets, locate_dataset
from ...data.examples import GOLDEN_RATIO, MIN_TOKENS, TextSource
from ...data.rows import PromptStyle, chat_prompt_style, detect_prompt_style, load_refusal_phrases
from ...data.workshop import study as notes
from ...records.folder import run_files
from ...settings.definitions import TrainingSettings
from ...settings.parsing import row_settings, training_settings
from ...train_utils import checkpoint_step, duration, format_count
from ..compute import failures
from ..lora import adapter, pause_training_mode, preserve_rng
from ..plan import RunPlan, StepLog
from ..tokenizer import make_working_tokenizer
from .eval_loop import EvalLoop, ProgressFn, StageProgress, log_failure, lora_phrase, measure_each
from .evidence import MAX_ANSWER_TOKENS, MORE_TOKENS, NOTHING_SAVED
from .generation import generate_ids, lora_prompt_style
from .in_run import MAX_SHARE
from .perplexity import prepare_for_host

BATCH, MAX_ROUNDS = 16, 20
# The first round is the most faithful one; the notes of later ones must differ from it.
FIRST_TEMPERATURE, TEMPERATURE = 0.2, 0.8
PAIRS_SUFFIX = ".pairs.jsonl"
MAX_WAIT = 60.0  # seconds that a user who has pressed Stop waits for the last exam


def study(asked: StudyRequest, host: Host, job: Job) -> JobEnded:
    """Take notes until the rounds, the minutes or the tokens are used up; what the file has is not done again."""
    get_model_card(host)  # loads a model that was unloaded
    started = time.monotonic()
    parts = notes.read_parts(workshop.Dataset(Path(asked.data), row_settings(asked.rows)))
    exam, is_exam = workshop.read_exam(asked.exams), bool(asked.per_section)
    book = notes.NoteBook(asked.out, parts, load_refusal_phrases(host.folders), None if is_exam else exam)
    result, done, noun = workshop.Cleaned(), 0, "question" if is_exam else "note"
    progress = StageProgress(Stage(text="Writing an exam" if is_exam else "Taking notes"), job.log)
    # Batches are of one group each: of one kind, or of the questions of an exam that are still missing.
    groups: Iterable[Iterable[notes.Task]] = notes.plan_exam(parts, asked.per_section, book)
    total = asked.per_section * len({(part.file, part.section) for part in parts})
    if not is_exam:
        tasks = _plan_notes(asked, parts, book, host)
        groups, total = (group for _, group in groupby(tasks, key=lambda task: task.place[:2])), len(tasks)
    with preserve_rng(), adapter.without_loras(host) as (base, _):
        writer = Writer(base.eval(), host, job)

        def used() -> float:
            """The share of the budget that is used up, or of the tasks."""
            minutes = (time.monotonic() - started) / 60
            reached = book.counts.total() if is_exam else done
            limits = ((minutes, asked.minutes), (writer.tokens, asked.tokens), (reached, total))
            return max(value / limit for value, limit in limits if limit)

        for group in map(iter, groups):
            while used() < 1 and (batch := list(islice(group, BATCH))):
                kind, turn = notes.KINDS[batch[0].kind], batch[0].round
                messages = [(notes.message_of(task), kind.begin.format(about=task.about)) for task in batch]
                temperature, seed = TEMPERATURE if turn else FIRST_TEMPERATURE, asked.seed + sum(batch[0].place)
                replies = writer.write(messages, kind.tokens, temperature, seed)
                if job.control.asked(Request.STOP):
                    break  # the batch was cut short, and is done again
                kept = list[tuple[notes.Task, notes.Note]]()
                for task, (reply, ended) in zip(batch, replies, strict=True):
                    kept += book.take(task, reply, result, ended=ended)
                book.add(kept)
                done += len(batch)
                progress(min(used(), 1.0))
            if used() >= 1 or job.control.asked(Request.STOP):
                break
    figures = {key: getattr(result, key) for key in ("rows", "kept", "dropped", "examples")}
    job.log.append(NotesTaken(**figures, tokens=writer.tokens))
    spent = duration(time.monotonic() - started)
    text = f"{format_count(result.kept, noun)} kept and {result.dropped.total():,} dropped in {spent}."
    if is_exam:
        text += f" The exam has {book.counts.total():,} of {format_count(total, 'question')}."
    elif done < total and not asked.failed:
        text += f" To go on at note {done:,} of {total:,}, take notes into the same file again."
    return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text=text)


def _plan_notes(
    asked: StudyRequest, parts: Sequence[notes.Part], book: notes.NoteBook, host: Host
) -> list[notes.Task]:
    """The tasks that the book does not have yet; of sections that failed, those of further rounds."""
    rounds = asked.rounds or MAX_ROUNDS
    if not asked.failed:
        planned = notes.plan_tasks(parts, asked.kinds, range(rounds))
        return [task for task in planned if task.place > book.last]
    folder = adapter.lora_folder(asked.failed, host)
    step = checkpoint_step(folder.name) or run_files.trained_steps(run_files.read_log(folder))
    # A run asks after its last step, and may keep the weights of another.
    if not (exams := [exam for exam in run_files.read_exams(folder) if not step or exam.step == step]):
        raise DataError(f"{folder.name} has no {run_files.EXAM}. First ask the exam: data exam EXAM --lora NAME")
    weak = {score.name for score in exams[-1].sections if score.right < asked.target * score.asked}
    sections, first = {part.section for part in parts}, book.last[0] + 1
    # Someone who writes an exam may name a section by its first words.
    found = [{name} & sections or {each for each in sections if each.startswith(name)} for name in weak]
    failed = set[str]().union(*found)
    planned = notes.plan_tasks(parts, asked.kinds, range(first, first + rounds))
    tasks = [task for task in planned if task.parts[0].section in failed]
    if not tasks:
        what = f"no section of {Path(asked.data).name} with less than {asked.target:.0%} right"
        raise DataError(f"The last exam of {folder.name} names {what}. There is nothing to study again.")
    return tasks


def write_pairs(data: str, out: str, tokens: int, host: Host, job: Job) -> JobEnded:
    """Continue passages of a text with the model, about so many tokens, and add them to the table of pairs."""
    card = get_model_card(host)
    tokenizer = make_working_tokenizer(card.tokenizer)
    table = descendant(
        host.folders.datasets, out.removesuffix(PAIRS_SUFFIX) + PAIRS_SUFFIX, "Pairs", refusal=DataError
    )
    # By line feeds alone: a text may have other line ends.
    written_before = table.read_text(encoding="utf-8").split("\n") if table.is_file() else []
    lines = [f"{line}\n" for line in written_before if line.strip()]
    done, spent = {json.loads(line)["prompt"] for line in lines}, 0
    # Blocks begin where sentences do; the first half of each is the prompt.
    examples = prepare_for_host(training_settings({"name": "pairs", "data": [data]}), host, card, job).examples
    if not all(isinstance(source, TextSource) for source in examples.sources):
        raise DataError(f"{data} has rows. Choose raw text of one author.")
    # In this order, the passages are spread evenly over the text wherever it ends.
    order = np.argsort(np.arange(len(examples)) * GOLDEN_RATIO % 1).argsort().tolist()
    with preserve_rng(), adapter.without_loras(host) as (model, _):
        for number in order:
            ids = examples[number].ids.tolist()
            # Not to the end of the block, where a sentence ends: the other half would end within one.
            before, author = ids[: len(ids) // 2], ids[len(ids) // 2 : len(ids) * 7 // 8]
            prompt = tokenizer.tokenizer.decode(before, skip_special_tokens=True)
            if prompt in done:
                continue
            if spent >= tokens:
                break
            job.log.append(Stage(text=f"Writing against the author of {data}", share=spent / tokens))
            asked = AnswerRequest("", max_tokens=len(author), seed=number)
            (written,) = generate_ids(model.eval(), [before], asked, tokenizer.tokenizer, job)
            if job.control.asked(Request.STOP):
                break
            spent += len(written)
            # Both replies get the same number of tokens, or the pair would also teach how long a reply is.
            sides = [list(takewhile(lambda token: token not in tokenizer.stops, s)) for s in (author, written)]
            length = min(map(len, sides))
            texts = [tokenizer.tokenizer.decode(before + s[:length], skip_special_tokens=True) for s in sides]
            # Where the prompt ends within a character, the text after it can't be told apart.
            if length >= MIN_TOKENS and all(text.startswith(prompt) for text in texts):
                chosen, rejected = (text[len(prompt) :] for text in texts)
                row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
                lines.append(json.dumps(row, ensure_ascii=False) + "\n")
                write_text(table, "".join(lines))
    text = f"{table.name} has {format_count(len(lines), 'pair')}. To add more, write it again."
    text += " The replies end within sentences, so set Add EOS token to Never when you train on them."
    return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text=text)


class Writer:
    """Lets a model reply to messages in batches, of a size that fits into memory."""

    def __init__(self, model: Any, host: Host, job: Job, style: PromptStyle | None = None) -> None:
        """Without a `style`, messages are written as the model's own chats."""
        self._model, self._job, self.tokens, self.until = model, job, 0, Request.STOP
        self._tokenizer = make_working_tokenizer(host.card().tokenizer, host.chat_template())
        self._context, self._splitter = host.card().context, failures.BatchSplitter()
        self._style = PromptStyle(bos=self._tokenizer.bos, after="\n\n")
        if style is not None and style.kind != "text":
            self._style = style
        elif self._tokenizer.chat_template.own:  # else the model was not made for chats
            self._style = chat_prompt_style(self._tokenizer, self._tokenizer.bos) or self._style

    def write(
        self, messages: Sequence[tuple[str, str]], tokens: int, temperature: float, seed: int
    ) -> list[tuple[str, bool]]:
        """Replies to messages, each with its beginning, and whether they ended; empty where one is too long."""
        tokenizer, encode = self._tokenizer.tokenizer, self._tokenizer.encode
        prompts = [
            [
                *self._style.prompt(message, self._tokenizer).ids,
                *(encode([begin])[0].ids.tolist() if begin else ()),
            ]
            for message, begin in messages
        ]
        request = AnswerRequest("", max_tokens=tokens, temperature=temperature, seed=seed)
        replies = [("", False)] * len(messages)

        def write_part(numbers: Sequence[int]) -> None:
            own = [prompts[n] for n in numbers]
            written = generate_ids(self._model, own, request, tokenizer, self._job, until=self.until)
            for number, ids in zip(numbers, written, strict=True):
                end = next((at for at, token in enumerate(ids) if token in self._tokenizer.stops), len(ids))
                text, blank = str(tokenizer.decode(ids[:end])), ""
                if self._style.kind == "text":  # a model that continues a text goes on with another passage
                    text, blank, _ = text.partition("\n\n")
                replies[number] = (f"{messages[number][1]}{text}", end < len(ids) or bool(blank))
                self.tokens += end

        fitting = [n for n, ids in enumerate(prompts) if not 0 < self._context < len(ids) + tokens]
        for _ in self._splitter.run(fitting, write_part):
            pass
        return replies


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
        log = job.log.since(0)
        known = [each for event in log for each in (*getattr(event, "earlier", ()), event)]
        asked = [event.seconds for event in known if isinstance(event, ExamAsked)]
        self._is_quick = bool(asked) and asked[-1] < MAX_WAIT  # the last time that all of it was asked

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
                if not self._job.control.asked(until):
                    self._is_quick = time.monotonic() - started < MAX_WAIT
        if not at_end:
            log.append(Stage(text="Training", kind=StageKind.TRAINING))
        self._ended, self._seconds = time.monotonic(), time.monotonic() - started
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
