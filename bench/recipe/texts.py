"""The four texts: what is trained on, what stays unseen, the passages of recall, and the questions."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np

from ...data.examples import Example, Passage, Source
from ...engine.tokenizer import WorkingTokenizer

TextName = Literal["lane", "taylor", "notes", "chats"]
Form = Literal[
    "text", "questions", "text and questions", "text and questions about others", "text and what the model wrote",
    "text and two rounds of what the model wrote", "text and as many tokens of notes", "text and 3 x the notes",
]  # fmt: skip
FOLDER = Path(__file__).resolve().parents[1] / "recipe_data"
AUTHORS: tuple[TextName, ...] = ("lane", "taylor")
TEXTS: tuple[TextName, ...] = (*AUTHORS, "notes", "chats")
SECTION_END = "\n\n\n"
UNSEEN_CHATS = 8
"""One chat in so many is not trained on."""
PROMPT_TOKENS, TARGET_TOKENS = 24, 32
PASSAGE_CHARS = 1000
"""More than the tokens of a passage have."""
SENTENCE = re.compile(r"(?:^|(?<=[.!?])[\"']?\s+)[\"']?[A-Z]\w*(?= )", re.MULTILINE)


INSIDE = re.compile(r"[^.!?\n]{60}[^\s.!?]*(?= [^.!?\n]{20})")
"""Places with 60 characters of the same sentence before them."""


@dataclass(frozen=True)
class Question:
    """A question about a note, in words that the note does not use, and the only answer that counts."""

    text: str
    answer: str


@dataclass(frozen=True)
class RecipeText:
    """The files that are trained on, one that is not, and the plain texts that passages are taken from."""

    name: TextName
    files: Mapping[str, str]
    trained: tuple[str, ...]
    unseen: str
    questions: tuple[Question, ...] = ()

    @property
    def is_rows(self) -> bool:
        return self.name == "chats"


@cache
def digest(name: TextName) -> str:
    """The first characters of the hash of a text, seen and unseen: a changed text is another one."""
    files = [file for file in sorted(FOLDER.glob(f"{name}*")) if file.suffix in (".txt", ".jsonl")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


@cache
def read_text(name: TextName, share: float = 1.0, form: Form = "text") -> RecipeText:
    """A text, or the first share of it; of notes, also as questions and answers."""
    if name == "notes":
        return _notes(form)
    if name == "chats":
        lines = (FOLDER / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        unseen = lines[::UNSEEN_CHATS]
        trained = [line for line in lines if line not in unseen]
        files = {"trained.jsonl": "".join(trained), "unseen.jsonl": "".join(unseen)}
        return RecipeText(name, files, ("trained.jsonl",), "unseen.jsonl")
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    end = len(text) if share == 1 else text.rindex("\n\n", 0, round(share * len(text)))
    files = {"trained.txt": text[:end], "unseen.txt": (FOLDER / f"{name}-unseen.txt").read_text(encoding="utf-8")}
    return RecipeText(name, files, ("trained.txt",), "unseen.txt")


def _notes(form: Form) -> RecipeText:
    """Notes with two questions each: one in their own words to train on, one in other words to ask.

    Every other note is asked about, whatever was trained on, so that all ways are asked the same.
    """
    rows = [json.loads(line) for line in (FOLDER / "notes.jsonl").read_text(encoding="utf-8").splitlines()]
    noted = [row for row in rows if "asked" in row]
    asked = noted[1::2]
    questioned = [row for row in noted if row not in asked] if form.endswith("others") else noted
    chats = [
        {
            "messages": [
                {"role": "user", "content": row["question"]},
                {"role": "assistant", "content": row["answer"]},
            ]
        }
        for row in questioned
    ]
    files = {
        "trained.txt": SECTION_END.join(row["note"] for row in noted),
        "unseen.txt": SECTION_END.join(row["note"] for row in rows if "asked" not in row),
        "questions.jsonl": "".join(json.dumps(chat) + "\n" for chat in chats),
        # What the demo model wrote and what passed: 57 notes, and 45 of a second round where the exam had failed;
        # notes of more kinds and rounds, 1 token for a token of the text, and 2 more.
        **{path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("studied*.jsonl")},
    }
    trained = {
        "text": ("trained.txt",), "questions": ("questions.jsonl",),
        "text and what the model wrote": ("trained.txt", "studied.jsonl"),
        "text and two rounds of what the model wrote": ("trained.txt", "studied.jsonl", "studied-again.jsonl"),
        "text and as many tokens of notes": ("trained.txt", "studied-1.jsonl"),
        "text and 3 x the notes": ("trained.txt", "studied-1.jsonl", "studied-3.jsonl"),
    }.get(form, ("trained.txt", "questions.jsonl"))  # fmt: skip
    questions = tuple(Question(row["asked"], row["answer"]) for row in asked)
    return RecipeText("notes", files, trained, "unseen.txt", questions)


class TextPassages(NamedTuple):
    """Passages of the trained and of the unseen text."""

    trained: list[Passage]
    unseen: list[Passage]


def pick_text_passages(text: RecipeText, tokenizer: WorkingTokenizer, count: int) -> TextPassages:
    """Passages that begin at random sentences, the same ones for every way of training.

    They begin with the second word of a sentence, where no way begins a block: blocks, overlap blocks and windows
    all begin with a sentence, and a prompt that is the beginning of an example would be easier.
    """
    parts = (text.files["trained.txt"], text.files[text.unseen])
    return TextPassages(
        *(_random_passages(part, tokenizer, n) for part, n in zip(parts, (count, count // 2), strict=True))
    )


def pick_inside_passages(text: RecipeText, tokenizer: WorkingTokenizer, count: int) -> list[Passage]:
    """Passages of the trained text that begin in the middle of sentences.

    The passages above begin a word after an example of DEMENTOR, which begins at every sentence; these do not.
    """
    return _random_passages(text.files["trained.txt"], tokenizer, count, INSIDE)


def _random_passages(
    text: str, tokenizer: WorkingTokenizer, count: int, before: re.Pattern[str] = SENTENCE
) -> list[Passage]:
    starts = [match.end() for match in before.finditer(text)]
    random.Random(1).shuffle(starts)
    passages: list[Passage] = []
    for start in starts:
        section = text[start : start + PASSAGE_CHARS].partition(SECTION_END)[0]
        ids = tokenizer.encode([section])[0].ids[: PROMPT_TOKENS + TARGET_TOKENS]
        if len(ids) == PROMPT_TOKENS + TARGET_TOKENS and len(passages) < count:
            labelled = np.arange(len(ids)) >= PROMPT_TOKENS
            passages.append(
                Passage(Example(np.asarray(ids), labelled, cast("Source", None), 0), PROMPT_TOKENS, "")
            )
    return passages


def is_exact(reply: str, answer: str) -> bool:
    """Whether a reply contains the answer, word for word."""
    return f" {_words(answer)} " in f" {_words(reply)} "


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
