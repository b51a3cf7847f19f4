"""The data of the recipes: a part to train on and a part as control, cut from the project's files or any text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .arms import DataName

FOLDER = Path(__file__).resolve().parents[1] / "recipe_data"
SECTION_CHARS = 700
"""A section ends with the paragraph that reaches this length."""
CONTROL_EVERY = 4
MIN_SECTIONS = 4
HARD_CUT = "\n\n\n"
CHATS_PER_CHARS = 250
"""Characters of text that count as much as one chat."""
QUESTIONS_TRAINED_EVERY = 3
"""With `notes+questions`, one question in so many is trained on; all arms are asked the others."""


@dataclass(frozen=True)
class Question:
    """A question about the notes, and the only answer that counts."""

    text: str
    answer: str


@dataclass(frozen=True)
class RecipeData:
    """The files of a run by their names: those trained on, and a control that is not; and what is asked."""

    name: str
    files: Mapping[str, str]
    train: tuple[str, ...]
    control: str
    questions: tuple[Question, ...] = ()
    source: object = None
    """What the data are made of, if other data are made of it too and compared with these."""

    @property
    def measured(self) -> str:
        """The file from which the passages of recall are taken."""
        return self.train[0]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.source or self.files, sort_keys=True).encode()).hexdigest()[:8]


def read_data(name: DataName, chars: int, text: Path | None = None) -> RecipeData:
    """Read data with about so many characters to train on; `text` replaces the story."""
    if name == "chats":
        return _chats(chars)
    if name == "story":
        file = text or FOLDER / "story.txt"
        return _split_text(file.stem, file.read_text(encoding="utf-8"), chars, str(file))
    return _notes(name)


def _split_text(name: str, text: str, chars: int, origin: str) -> RecipeData:
    sections = cut_sections(text)
    if len(sections) < MIN_SECTIONS:
        raise SystemExit(
            f"{origin} has {len(sections)} sections of {SECTION_CHARS} characters. At least {MIN_SECTIONS} are "
            "needed, with an empty line between paragraphs. Choose a longer text."
        )
    sections = sections[: max(MIN_SECTIONS, _count_until(sections, chars * CONTROL_EVERY // (CONTROL_EVERY - 1)))]
    control = sections[CONTROL_EVERY - 1 :: CONTROL_EVERY]
    # The sections between two controls stay together: a section alone may fit into one block, without overlap.
    runs = [sections[n : n + CONTROL_EVERY - 1] for n in range(0, len(sections), CONTROL_EVERY)]
    train = ["\n\n".join(run) for run in runs]
    files = {"train.txt": HARD_CUT.join(train), "control.txt": HARD_CUT.join(control)}
    return RecipeData(name, files, ("train.txt",), "control.txt")


def cut_sections(text: str) -> list[str]:
    """Cut a text at empty lines into sections of at least `SECTION_CHARS` characters."""
    sections, current = [], ""
    for paragraph in re.split(r"\n\s*\n", text):
        current = f"{current}\n\n{paragraph.strip()}".strip()
        if len(current) >= SECTION_CHARS:
            sections.append(current)
            current = ""
    return sections


def _count_until(sections: Sequence[str], chars: int) -> int:
    """The number of sections that together reach a length."""
    total = 0
    for number, section in enumerate(sections, start=1):
        total += len(section)
        if total >= chars:
            return number
    return len(sections)


def _notes(name: DataName) -> RecipeData:
    rows = source = _read_rows(FOLDER / "notes.jsonl")
    control = [row["note"] for row in rows if "question" not in row]
    rows = [row for row in rows if "question" in row]
    trained = rows[::QUESTIONS_TRAINED_EVERY]
    asked = tuple(Question(row["question"], row["answer"]) for row in rows if row not in trained)
    files = {
        "train.txt": HARD_CUT.join(row["note"] for row in rows),
        "control.txt": HARD_CUT.join(control),
    }
    if name == "notes":
        return RecipeData(name, files, ("train.txt",), "control.txt", asked, source)
    files["questions.jsonl"] = _as_lines([_chat_row(row["question"], row["answer"]) for row in trained])
    return RecipeData(name, files, ("train.txt", "questions.jsonl"), "control.txt", asked, source)


def _chat_row(question: str, answer: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def _chats(chars: int) -> RecipeData:
    rows = _read_rows(FOLDER / "chats.jsonl")
    rows = rows[: max(2 * CONTROL_EVERY, chars // CHATS_PER_CHARS)]
    control = rows[CONTROL_EVERY - 1 :: CONTROL_EVERY]
    train = [row for number, row in enumerate(rows) if number % CONTROL_EVERY != CONTROL_EVERY - 1]
    files = {"train.jsonl": _as_lines(train), "control.jsonl": _as_lines(control)}
    return RecipeData("chats", files, ("train.jsonl",), "control.jsonl")


def _read_rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _as_lines(rows: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def is_exact(reply: str, answer: str) -> bool:
    """Whether a reply contains the answer, word for word."""
    return f" {_words(answer)} " in f" {_words(reply)} "


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
