"""Prompt formats that spell a row out: files of templates, each under the columns that it needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...core.files import safe_paths
from ...core.host import Folders
from ..readers import Row, pair_in
from .row_schema import BadRowError, Shape, Written

SHIPPED = Path(__file__).resolve().parent.parent.parent / "formats"
PLACE = re.compile(r"%([^%\s][^%\n]*?)%")
REPLIES = ("output", "response", "answer", "completion", "reply", "assistant", "a")
OPENING_MARKS, CLOSING_MARKS = ("<s>",), ("</s>",)
QUESTION, ANSWER = "instruction", "output"


@dataclass(frozen=True)
class Template:
    """A text with %places%, cut at them: text and column by turns; the reply is the last column that is one."""

    pieces: tuple[str, ...]
    reply: int | None

    @staticmethod
    def of(text: str, marks: tuple[Sequence[str], Sequence[str]]) -> Template:
        """`marks` are what begins and ends a text by itself; spelled out in a template, they come off."""
        pieces = PLACE.split(_bare(text, *marks))
        columns = pieces[1::2]
        replies = [n for n, column in enumerate(columns) if column.lower() in REPLIES]
        return Template(tuple(pieces), replies[-1] if replies and len(set(columns)) > 1 else None)

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(self.pieces[1::2])

    def filled(self, columns: Mapping[str, str]) -> Written:
        """The text with its places filled; a reply begins before the spaces that lead to it."""
        parts = [columns[piece] if number % 2 else piece for number, piece in enumerate(self.pieces)]
        if self.reply is None:
            return Written("".join(parts))
        before = "".join(parts[: 2 * self.reply + 1])
        return Written("".join(parts), len(before.rstrip(" ")))


def _bare(text: str, opening: Sequence[str], closing: Sequence[str]) -> str:
    """A template without the tokens that begin and end every text."""
    for mark in opening:
        text = text.removeprefix(mark)
    for mark in closing:
        if text.rstrip().endswith(mark):
            text = text.rstrip().removesuffix(mark).rstrip(" ")
    return text


@dataclass(frozen=True)
class FormatShape:
    """The rows of a file through a format: the columns that are filled choose the template."""

    templates: Mapping[frozenset[str], Template]
    synonyms: Mapping[str, str]
    system: str
    name: str
    reason: str

    @property
    def has_replies(self) -> bool:
        return any(template.reply is not None for template in self.templates.values())

    def of(self, columns: Mapping[str, Any]) -> Written:
        named = {self.synonyms.get(str(key), str(key)): value for key, value in columns.items()}
        filled = {key: value for key, value in named.items() if isinstance(value, str) and value.strip()}
        if self.system:
            filled.setdefault("system", self.system)
        if not any(columns <= filled.keys() for columns in self.templates):
            filled |= {key: str(value) for key, value in named.items() if _is_number(value)}
        return self._template(filled).filled(filled)

    def _template(self, filled: Mapping[str, str]) -> Template:
        """That of exactly these columns, else the one that takes most of them."""
        if frozenset(filled) in self.templates:
            return self.templates[frozenset(filled)]
        fitting = [columns for columns in self.templates if columns <= filled.keys()]
        if not fitting:
            there = ", ".join(sorted(filled)) or "none"
            wanted = "; or ".join(", ".join(sorted(columns)) for columns in self.templates)
            raise BadRowError(f"has these columns with text: {there}. {self.name} needs: {wanted}.")
        return self.templates[max(fitting, key=len)]


def _is_number(value: Any) -> bool:
    """Tables have numbers in columns that a template may well name."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def format_shape(
    asked: str, rows: Sequence[Row], folders: Folders, marks: tuple[Sequence[str], Sequence[str]], system: str
) -> Shape:
    """The shape of a format by its name, or by a template typed in its place."""
    spelled = texts(asked, folders)
    name = "the template" if PLACE.search(asked) else asked
    marks = ((*marks[0], *OPENING_MARKS), (*marks[1], *CLOSING_MARKS))
    templates = {t.columns: t for t in (Template.of(text, marks) for text in spelled.values())}
    shape = FormatShape(templates, {}, system, name, f"{name}, as it was chosen")
    return replace(shape, synonyms=_synonyms(templates, rows))


def texts(asked: str, folders: Folders) -> dict[str, str]:
    """The templates of a format by its name, or the one that was typed in its place."""
    return {"": asked} if PLACE.search(asked) else _read(asked, folders)


def _synonyms(templates: Mapping[frozenset[str], Template], rows: Sequence[Row]) -> dict[str, str]:
    """Other names for instruction and output, where the rows have a pair of them and the format has not."""
    columns = {str(key).strip().lower(): str(key) for row in rows for key in row.columns}
    if any(wanted <= columns.keys() for wanted in templates):
        return {}
    pair = pair_in(columns)
    return {columns[pair[0]]: QUESTION, columns[pair[1]]: ANSWER} if pair else {}


def _read(name: str, folders: Folders) -> dict[str, str]:
    """The templates of a format, by their columns; the user's own win over those that ship."""
    for folder in (folders.formats, SHIPPED):
        if safe_paths.name_fault(file := f"{name}.json"):
            break
        path = safe_paths.child(folder, file, "Prompt format", refusal=DataError)
        if path.is_file():
            return _templates(path)
    raise DataError(
        f"Prompt format: there is no {name!r}. There are: auto, chat, text, {', '.join(names(folders))}."
    )


def names(folders: Folders) -> list[str]:
    """The formats that ship, and the user's own."""
    found = {path.stem for folder in (SHIPPED, folders.formats) for path in folder.glob("*.json")}
    return sorted(found, key=str.lower)


def _templates(path: Path) -> dict[str, str]:
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"Prompt format: {path.name} cannot be read ({error}). It must be JSON.") from error
    if (
        not isinstance(read, dict)
        or not read
        or not all(isinstance(v, str) and PLACE.search(v) for v in read.values())
    ):
        raise DataError(
            f"Prompt format: {path.name} must hold templates by their columns, such as "
            '{"instruction,output": "%instruction%\\n%output%"}.'
        )
    return read
