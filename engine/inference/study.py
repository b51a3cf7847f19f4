"""Let the model take notes on a dataset, in batches, into a file that a run can train on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from ...core.engine import AnswerRequest, StudyRequest
from ...core.host import Host, get_model_card
from ...core.jobs import Job, JobEnded, NotesTaken, Request, Stage
from ...data import workshop
from ...data.rows import PromptStyle, chat_prompt_style, load_refusal_phrases
from ...data.workshop import study as notes
from ...train_utils import duration, format_count
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
    started, parts = time.monotonic(), notes.read_parts(workshop.Dataset(Path(asked.data)))
    book, refusals = notes.NoteBook(asked.out, parts), load_refusal_phrases(host.folders)
    planned = notes.plan_tasks(parts, asked.kinds, range(asked.rounds or MAX_ROUNDS))
    tasks = [task for task in planned if task.place > book.last]
    result, progress, done = workshop.Cleaned(), StageProgress(Stage(text="Taking notes"), job.log), 0
    with preserve_rng(), adapter.without_loras(host) as (base, _):
        writer = Writer(base, host, job)

        def used() -> float:
            """The share of the budget that is used up, or of the tasks."""
            minutes = (time.monotonic() - started) / 60
            limits = ((minutes, asked.minutes), (writer.tokens, asked.tokens), (done, len(tasks)))
            return max(value / limit for value, limit in limits if limit)

        for (turn, _), group in groupby(tasks, key=lambda task: task.place[:2]):
            while used() < 1 and (batch := list(islice(group, BATCH))):
                kind = notes.KINDS[batch[0].kind]
                messages = [(notes.message_of(task), kind.begin.format(about=task.about)) for task in batch]
                temperature, seed = TEMPERATURE if turn else FIRST_TEMPERATURE, asked.seed + sum(batch[0].place)
                replies = writer.write(messages, kind.tokens, temperature, seed)
                if job.control.asked(Request.STOP):
                    break  # the batch was cut short, and is done again
                kept = list[tuple[notes.Task, notes.Note]]()
                for task, (reply, ended) in zip(batch, replies, strict=True):
                    for note in notes.read_notes(task, reply, ended=ended):
                        result.rows += 1
                        fault = notes.fault_of(task, note, refusals)
                        if fault := fault or ("" if book.is_new(note) else "the same as an earlier one"):
                            result.dropped[fault] += 1
                            result.show(fault, f"{task.kind}, {task.parts[0].section}", note.written)
                        else:
                            kept.append((task, note))
                book.add(kept)
                result.kept, done = result.kept + len(kept), done + len(batch)
                progress(min(used(), 1.0))
            if job.control.asked(Request.STOP):
                break
    figures = {key: getattr(result, key) for key in ("rows", "kept", "dropped", "examples")}
    job.log.append(NotesTaken(**figures, tokens=writer.tokens))
    spent = duration(time.monotonic() - started)
    text = f"{format_count(result.kept, 'note')} kept and {result.dropped.total():,} dropped in {spent}."
    if done < len(tasks):
        text += f" The same command resumes at note {done:,} of {len(tasks):,}."
    return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text=text)


class Writer:
    """Lets a model reply to messages in batches, of a size that fits into memory."""

    def __init__(self, model: Any, host: Host, job: Job) -> None:
        self._model, self._job, self.tokens = model.eval(), job, 0
        self._tokenizer = make_working_tokenizer(host.card().tokenizer, host.chat_template())
        self._context, self._splitter = host.card().context, failures.BatchSplitter()
        self._style = PromptStyle(bos=self._tokenizer.bos, after="\n\n")
        if self._tokenizer.chat_template.own:  # else the model was not made for chats
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
            written = generate_ids(self._model, [prompts[n] for n in numbers], request, tokenizer, self._job)
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
