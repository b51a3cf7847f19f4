"""What a model writes: replies to messages, free continuations of the training data, and answers from memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...core.engine import AnswerRequest
from ...core.errors import StoppedError
from ...core.jobs import Job, Request
from ...data.examples import IGNORE_INDEX, Example, Examples, pick_passages
from ...data.rows import chat_prompt_style
from ..tokenizer import WorkingTokenizer
from .generation import generate_ids
from .habits import MAX_REPLY_TOKENS, MESSAGES, Reply

FREE_PROMPTS, FREE_TOKENS, FREE_TEMPERATURE = 8, 160, 0.7
MAX_QUESTIONS, MAX_ANSWER_TOKENS, MORE_TOKENS = 32, 24, 8


@dataclass(frozen=True)
class Writer:
    """A model that writes, always the same for the same prompt, until the job is stopped."""

    model: Any
    tokenizer: WorkingTokenizer
    job: Job

    def write(self, ids: Sequence[int], tokens: int, temperature: float = 0.0) -> Reply:
        """Continue the ids by at most so many tokens."""
        asked = AnswerRequest("", max_tokens=tokens, temperature=temperature)
        output = generate_ids(self.model, torch.tensor([list(ids)]), asked, self.tokenizer.tokenizer, self.job)
        if self.job.control.asked(Request.STOP):
            raise StoppedError("Nothing was saved.")
        written = output[0][len(ids) :].tolist()
        text = str(self.tokenizer.tokenizer.decode(written, skip_special_tokens=True))
        return Reply(text, ended=bool(written) and written[-1] in self.tokenizer.stops)


def reply_to_messages(writer: Writer) -> dict[str, Reply]:
    """Reply to the messages of `habits`; empty if the model has no chat template of its own."""
    tokenizer = writer.tokenizer
    style = chat_prompt_style(tokenizer, tokenizer.bos) if tokenizer.chat_template.own else None
    if style is None:
        return {}
    return {message: writer.write(style.prompt(message, tokenizer).ids, MAX_REPLY_TOKENS) for message in MESSAGES}


def write_freely(writer: Writer, examples: Examples) -> list[str]:
    """Continue prompts from places all over the training data."""
    passages = pick_passages(examples, FREE_PROMPTS, writer.tokenizer.bos)
    prompts = [p.example.ids[: p.prompt_tokens].tolist() for p in passages]
    return [writer.write(prompt, FREE_TOKENS, FREE_TEMPERATURE).text for prompt in prompts]


@dataclass(frozen=True)
class Question:
    """The tokens before a short reply of the training data, and the reply."""

    ids: tuple[int, ...]
    answer: str
    tokens: int


def pick_questions(examples: Examples, decode: Callable[[Sequence[int]], str]) -> list[Question]:
    """Questions of the training data that have one short reply, spread evenly over the data."""
    found = (_question(examples[number], decode) for number in range(len(examples)))
    questions = [question for question in found if question is not None]
    places = np.linspace(0, max(len(questions) - 1, 0), min(MAX_QUESTIONS, len(questions))).round().astype(int)
    return [questions[place] for place in places.tolist()]


def _question(example: Example, decode: Callable[[Sequence[int]], str]) -> Question | None:
    learned = np.flatnonzero(example.labels != IGNORE_INDEX)
    if example.loss_mask is None or not len(learned) or len(learned) > MAX_ANSWER_TOKENS or learned[0] < 2:
        return None
    if learned[-1] - learned[0] + 1 != len(learned):  # several replies
        return None
    answer = _plain(decode(example.ids[learned].tolist()))
    return Question(tuple(example.ids[: learned[0]].tolist()), answer, len(learned)) if answer else None


def count_right(writer: Writer, questions: Sequence[Question]) -> int:
    """How many of the questions are answered with the words of the data."""
    replies = (writer.write(question.ids, question.tokens + MORE_TOKENS).text for question in questions)
    pairs = zip(questions, replies, strict=True)
    return sum(f" {question.answer} " in f" {_plain(reply)} " for question, reply in pairs)


def _plain(text: str) -> str:
    """Words alone, in lowercase."""
    return " ".join("".join(c if c.isalnum() else " " for c in text).lower().split())
