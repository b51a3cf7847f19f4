"""Prompt formats: JSON files of templates by the columns that each one needs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...core.files import read_small_file, safe_paths, usable_entries
from ...core.host import Folders
from ..readers import Row, find_pair
from .row_schema import BadRowError, FixedText, RowSchema

SHIPPED_FORMATS = Path(__file__).resolve().parent.parent.parent / "formats"
COLUMN_PLACEHOLDER = re.compile(r"%([^%\s][^%\n]*?)%")
REPLY_COLUMNS = ("output", "response", "answer", "completion", "generation", "reply", "assistant", "a")
OPENING_MARKS, CLOSING_MARKS = ("<s>",), ("</s>",)
QUESTION_COLUMN, ANSWER_COLUMN = "instruction", "output"


@dataclass(frozen=True)
class FormatTemplate:
    """A text with %column% placeholders.

    `pieces` are texts and column names in turn; `reply` is the number of the last column that holds a reply.
    """

    pieces: tuple[str, ...]
    reply: int | None

    @staticmethod
    def of(text: str, marks: tuple[Sequence[str], Sequence[str]]) -> FormatTemplate:
        """Parse a template; `marks`, BOS and EOS as text, are removed: every text gets them anyway."""
        pieces = COLUMN_PLACEHOLDER.split(_strip_marks(text, *marks))
        columns = pieces[1::2]
        replies = [n for n, column in enumerate(columns) if column.lower() in REPLY_COLUMNS]
        return FormatTemplate(tuple(pieces), replies[-1] if replies and len(set(columns)) > 1 else None)

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(self.pieces[1::2])

    def fill(self, columns: Mapping[str, str]) -> FixedText:
        """Fill in the columns; the reply begins before the spaces that precede it."""
        texts = [columns[piece] if number % 2 else piece for number, piece in enumerate(self.pieces)]
        if self.reply is None:
            return FixedText("".join(texts))
        before_reply = "".join(texts[: 2 * self.reply + 1])
        prompt_end = len("".join(texts[: 2 * self.reply]))
        return FixedText("".join(texts), len(before_reply.rstrip(" ")), prompt_end)


def _strip_marks(text: str, opening: Sequence[str], closing: Sequence[str]) -> str:
    """Remove BOS and EOS texts from the ends of a template."""
    for mark in opening:
        text = text.removeprefix(mark)
    for mark in closing:
        if text.rstrip().endswith(mark):
            text = text.rstrip().removesuffix(mark).rstrip(" ")
    return text


@dataclass(frozen=True)
class FormatSchema:
    """Reads rows with a prompt format; the columns that have text decide on the template."""

    templates: Mapping[frozenset[str], FormatTemplate]
    synonyms: Mapping[str, str]
    system: str
    name: str
    reason: str

    @property
    def has_replies(self) -> bool:
        return any(template.reply is not None for template in self.templates.values())

    def of(self, columns: Mapping[str, Any]) -> FixedText:
        named = {self.synonyms.get(str(key), str(key)): value for key, value in columns.items()}
        filled = {key: value for key, value in named.items() if isinstance(value, str) and value.strip()}
        if self.system:
            filled.setdefault("system", self.system)
        if not any(columns <= filled.keys() for columns in self.templates):
            filled |= {key: str(value) for key, value in named.items() if _is_number(value)}
        return self._choose_template(filled).fill(filled)

    def _choose_template(self, filled: Mapping[str, str]) -> FormatTemplate:
        """Choose the template with exactly these columns, otherwise the one that uses most of them."""
        if frozenset(filled) in self.templates:
            return self.templates[frozenset(filled)]
        candidates = [columns for columns in self.templates if columns <= filled.keys()]
        if not candidates:
            existing = ", ".join(sorted(filled)) or "none"
            required = "; or ".join(", ".join(sorted(columns)) for columns in self.templates)
            raise BadRowError(f"has text in these columns: {existing}. {self.name} needs text in: {required}.")
        return self.templates[max(candidates, key=len)]


def _is_number(value: Any) -> bool:
    """Tables may have numbers in columns that a template uses; NaN and Infinity stand for none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def load_format_schema(
    format_name: str,
    rows: Sequence[Row],
    folders: Folders,
    marks: tuple[Sequence[str], Sequence[str]],
    system: str,
) -> RowSchema:
    """Load the schema of a format; instead of a name a template can be given."""
    sources = load_templates(format_name, folders)
    name = "the template" if COLUMN_PLACEHOLDER.search(format_name) else format_name
    marks = ((*marks[0], *OPENING_MARKS), (*marks[1], *CLOSING_MARKS))
    templates = {t.columns: t for t in (FormatTemplate.of(text, marks) for text in sources.values())}
    schema = FormatSchema(templates, {}, system, name, f"{name}, which you chose under Data format")
    return replace(schema, synonyms=_column_synonyms(templates, rows))


def load_templates(format_name: str, folders: Folders) -> dict[str, str]:
    """Load the templates of a format; instead of a name a template can be given."""
    return {"": format_name} if COLUMN_PLACEHOLDER.search(format_name) else _read_format(format_name, folders)


def _column_synonyms(templates: Mapping[frozenset[str], FormatTemplate], rows: Sequence[Row]) -> dict[str, str]:
    """Map columns to those of the format by their names in lower case, or else by questions and answers."""
    names = dict.fromkeys(str(key) for row in rows for key in row.columns)
    columns = {_fold(name): name for name in names}
    if any(set(map(_fold, required)) <= columns.keys() for required in templates):
        own = {_fold(name): name for required in templates for name in required}
        return {name: own[_fold(name)] for name in names if _fold(name) in own and name not in own.values()}
    pair = find_pair(columns)
    return {columns[pair[0]]: QUESTION_COLUMN, columns[pair[1]]: ANSWER_COLUMN} if pair else {}


def _fold(column: str) -> str:
    return column.strip().lower()


def _read_format(name: str, folders: Folders) -> dict[str, str]:
    """Read the templates of a format by their columns; the user's files take precedence over shipped ones."""
    for folder in (folders.formats, SHIPPED_FORMATS):
        if safe_paths.name_fault(file := f"{name}.json"):
            break
        path = safe_paths.child(folder, file, "Data format", refusal=DataError)
        if path.is_file():
            return _parse_templates(path)
    raise DataError(
        f"Data format: there is no format named {name!r}. "
        f"Available: auto, chat, text, {', '.join(list_formats(folders))}."
    )


def list_formats(folders: Folders) -> list[str]:
    paths = (path for folder in (SHIPPED_FORMATS, folders.formats) for path in usable_entries(folder))
    stems = {path.stem for path in paths if path.suffix == ".json"}
    return sorted(stems, key=str.lower)


def _parse_templates(path: Path) -> dict[str, str]:
    try:
        content = json.loads(read_small_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"Data format: {path.name} can't be read ({error}). It must be JSON.") from error
    if (
        not isinstance(content, dict)
        or not content
        or not all(isinstance(v, str) and COLUMN_PLACEHOLDER.search(v) for v in content.values())
    ):
        raise DataError(
            f"Data format: {path.name} must map column names to templates, such as "
            '{"instruction,output": "%instruction%\\n%output%"}.'
        )
    return content
