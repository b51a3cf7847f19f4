"""An exam: questions about a text with short answers, asked without the text to see what a model knows of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...core.errors import DataError
from .likeness import LANGUAGES_OF, WORD
from .records import Dataset

# Two questions are nearly the same if they share this much of their words, with the same answer already less.
LIKE, LIKE_WITH_ANSWER = 0.7, 0.5


class Question(NamedTuple):
    """A question, its answer, and the section of the text that it is about."""

    prompt: str
    answer: str
    section: str = ""


class Exam:
    """Questions, and whether another question is nearly one of them."""

    def __init__(self, questions: Iterable[Question] = ()) -> None:
        self.questions = list[Question]()
        self._words, self._numbers = list[set[str]](), defaultdict[str, list[int]](list)
        for question in questions:
            self.add(question)

    def add(self, question: Question) -> None:
        words = _telling_words(question.prompt)
        for word in words:
            self._numbers[word].append(len(self.questions))
        self._words.append(words)
        self.questions.append(question)

    def has(self, prompt: str, answer: str) -> bool:
        words, plain = _telling_words(prompt), plain_words(answer)
        for number, both in Counter(n for word in words for n in self._numbers.get(word, ())).items():
            is_answer = plain == plain_words(self.questions[number].answer)
            either = len(words) + len(self._words[number]) - both
            if both >= (LIKE_WITH_ANSWER if is_answer else LIKE) * either:
                return True
        return False


def read_exam(paths: Iterable[Path]) -> Exam:
    """The questions of files of rows; a DataError names a file without any."""
    found = list[tuple[str, Question]]()
    for path in paths:
        of_file = list(_read_questions(path))
        if not of_file:
            raise DataError(f"{path.name} is no exam: no row has an instruction and an output.")
        found += of_file
    has_several = len({file for file, _ in found}) > 1
    return Exam(q._replace(section=section_name(file, q.section, has_several)) for file, q in found)


def _read_questions(path: Path) -> Iterator[tuple[str, Question]]:
    for record in Dataset(path).records():
        prompt, answer = (
            "\n".join(spot.text.strip() for spot in record.spots if spot.role == role and spot.text.strip())
            for role in ("user", "assistant")
        )
        if plain_words(prompt) and plain_words(answer):
            origin = record.columns.get("origin")
            origin = origin if isinstance(origin, Mapping) else {}
            file, section = (str(origin.get(key) or "") for key in ("file", "section"))
            yield file or path.name, Question(prompt, answer, section)


def section_name(file: str, section: str, has_several: bool) -> str:
    """How results name a section; of several files, each may have a first chapter."""
    return f"{file}: {section}" if has_several and section else section or file


def is_right(answer: str, reply: str) -> bool:
    """Whether a reply has the answer in it."""
    return f" {plain_words(answer)} " in f" {plain_words(reply)} "  # with spaces: 'ten' is not in 'often'


def plain_words(text: str) -> str:
    """Words alone, in lowercase."""
    return " ".join("".join(c if c.isalnum() else " " for c in text).lower().split())


def _telling_words(text: str) -> set[str]:
    words = set(WORD.findall(text.casefold()))
    return {word.rstrip("s") for word in words if word not in LANGUAGES_OF} or words
