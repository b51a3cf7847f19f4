"""Let the model take notes on a dataset, in batches, into a file that a run can train on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from ...core.engine import AnswerRequest, StudyRequest
from ...core.errors import DataError
from ...core.host import Host, get_model_card
from ...core.jobs import Job, JobEnded, NotesTaken, Request, Stage
from ...data import workshop
from ...data.rows import PromptStyle, chat_prompt_style, load_refusal_phrases
from ...data.workshop import study as notes
from ...records.folder import run_files
from ...settings.parsing import row_settings
from ...train_utils import checkpoint_step, duration, format_count
from ..compute import failures
from ..lora import adapter, preserve_rng
from ..tokenizer import make_working_tokenizer
from .eval_loop import StageProgress
from .generation import generate_ids

BATCH, MAX_ROUNDS = 16, 20
# The first round is the most faithful one; the notes of later ones must differ from it.
FIRST_TEMPERATURE, TEMPERATURE = 0.2, 0.8


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
