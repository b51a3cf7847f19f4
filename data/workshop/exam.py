"""An exam: questions about a text with short answers, asked without the text to see what a model knows of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ...core.errors import DataError
from ..likeness import LANGUAGES_OF
from ..unspaced import WORD
from .records import Dataset

# Two questions are nearly the same if they share this much of their words, with the same answer already less.
LIKE, LIKE_WITH_ANSWER = 0.8, 0.5
MANY = 20


class Question(NamedTuple):
    """A question, its answer, and the section of the text that it is about."""

    prompt: str
    answer: str
    section: str = ""


class Exam:
    """Questions, and whether another question is nearly one of them."""

    def __init__(self) -> None:
        self.questions = list[Question]()
        self._words, self._numbers = list[set[str]](), defaultdict[str, list[int]](list)
        self._names, self._prompts = list[set[str]](), set[str]()

    @cached_property
    def _common(self) -> set[str]:
        """Words that many questions have, such as those of an instruction that all rows share."""
        many = max(MANY, len(self.questions) / 10)
        return {word for word, numbers in self._numbers.items() if len(numbers) > many}

    def add(self, question: Question) -> None:
        vars(self).pop("_common", None)
        words = _telling_words(question.prompt)
        for word in words:
            self._numbers[word].append(len(self.questions))
        self._words.append(words)
        self._names.append(_names(question.prompt))
        self._prompts.add(plain_words(question.prompt))
        self.questions.append(question)

    def has(self, prompt: str, answer: str) -> bool:
        all_words, plain = _telling_words(prompt), plain_words(answer)
        words, named = all_words - self._common, _names(prompt)
        for number, both in Counter(n for word in words for n in self._numbers.get(word, ())).items():
            least = LIKE_WITH_ANSWER if plain == plain_words(self.questions[number].answer) else LIKE
            other = self._words[number] - self._common
            # A name that many questions have tells nothing, but another one in its place does.
            apart, names = all_words ^ self._words[number], named | self._names[number]
            is_other = any(word.isdigit() or word in self._common & names for word in apart)
            if both >= least * len(words | other) and not is_other:
                return True
        return plain_words(prompt) in self._prompts


def read_exam(paths: Iterable[Path]) -> Exam:
    """The questions of files of rows; a DataError names a file without any."""
    exam = Exam()
    for path in paths:
        before = len(exam.questions)
        for record in Dataset(path).records():
            prompt, answer = record.said_by("user"), record.said_by("assistant")
            if plain_words(prompt) and plain_words(answer):
                origin = record.columns.get("origin")
                section = origin.get("section") if isinstance(origin, Mapping) else ""
                exam.add(Question(prompt, answer, str(section or path.name)))
        if len(exam.questions) == before:
            raise DataError(f"{path.name} is no exam: no row has an instruction (the question) and an output.")
    return exam


def is_right(answer: str, reply: str) -> bool:
    """Whether a reply has the answer in it."""
    return f" {plain_words(answer)} " in f" {plain_words(reply)} "  # with spaces: 'ten' is not in 'often'


def plain_words(text: str) -> str:
    """Words alone, in lowercase."""
    return " ".join(WORD.findall(text.lower().replace("_", " ")))


def _names(text: str) -> set[str]:
    """The words with a capital letter, but for the first one."""
    return {word.casefold().rstrip("s") for word in WORD.findall(text)[1:] if word[:1].isupper()}


def _telling_words(text: str) -> set[str]:
    words = set(WORD.findall(text.casefold()))
    return {word.rstrip("s") for word in words if word not in LANGUAGES_OF} or words
