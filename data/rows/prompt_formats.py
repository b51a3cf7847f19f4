"""Prompt formats: JSON files of templates by the columns that each one needs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        for mark in (*marks[0], "<s>"):
            text = text.removeprefix(mark)
        for mark in (*marks[1], "</s>"):
            if text.rstrip().endswith(mark):
                text = text.rstrip().removesuffix(mark).rstrip(" ")
        pieces = COLUMN_PLACEHOLDER.split(text)
        columns = pieces[1::2]
        replies = [n for n, column in enumerate(columns) if column.lower() in REPLY_COLUMNS]
        return FormatTemplate(tuple(pieces), replies[-1] if replies and len(set(columns)) > 1 else None)

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(self.pieces[1::2])

    def fill(self, columns: Mapping[str, str]) -> FixedText:
        """Fill in the columns."""
        texts = [columns[piece] if number % 2 else piece for number, piece in enumerate(self.pieces)]
        if self.reply is None:
            return FixedText("".join(texts))
        before_reply = "".join(texts[: 2 * self.reply + 1])
        prompt_end = len("".join(texts[: 2 * self.reply]))
        # Most tokenizers make one token of a space and the word after it, so the reply begins before its spaces.
        return FixedText("".join(texts), len(before_reply.rstrip(" ")), prompt_end)


def load_format_schema(
    format_name: str,
    rows: Sequence[Row],
    folders: Folders,
    marks: tuple[Sequence[str], Sequence[str]],
    system: str,
) -> RowSchema:
    """Load the schema of a format; the columns of a row that have text decide on the template."""
    name, templates = parse_format(format_name, folders, marks)
    synonyms = _find_synonyms(rows, templates)

    def read(row: Mapping[str, Any]) -> FixedText:
        named = {synonyms.get(str(key), str(key)): value for key, value in row.items()}
        filled = {key: value for key, value in named.items() if isinstance(value, str) and value.strip()}
        if system:
            filled.setdefault("system", system)
        if not any(columns <= filled.keys() for columns in templates):
            # Tables may have numbers in columns that a template uses; NaN and Infinity stand for none.
            for key, value in named.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                    filled[key] = str(value)
        # The template with exactly these columns, otherwise the one that uses most of them.
        if frozenset(filled) in templates:
            return templates[frozenset(filled)].fill(filled)
        candidates = [columns for columns in templates if columns <= filled.keys()]
        if not candidates:
            existing = ", ".join(sorted(filled)) or "none"
            required = "; or ".join(", ".join(sorted(columns)) for columns in templates)
            raise BadRowError(f"has text in these columns: {existing}. {name} needs text in: {required}.")
        return templates[max(candidates, key=len)].fill(filled)

    has_replies = any(template.reply is not None for template in templates.values())
    return RowSchema("format", f"{name}, which you chose under Data format", (), read, has_replies)


def _find_synonyms(rows: Sequence[Row], templates: Mapping[frozenset[str], FormatTemplate]) -> dict[str, str]:
    """Map columns to those of the format by their names in lower case, or else as questions and answers."""
    columns = {str(key).strip().lower(): str(key) for row in rows for key in row.columns}
    own = {column.strip().lower(): column for required in templates for column in required}
    if any({column.strip().lower() for column in required} <= columns.keys() for required in templates):
        names = dict.fromkeys(str(key) for row in rows for key in row.columns)
        folded = {name: name.strip().lower() for name in names if name not in own.values()}
        return {name: own[key] for name, key in folded.items() if key in own}
    pair = find_pair(columns)
    return {columns[pair[0]]: QUESTION_COLUMN, columns[pair[1]]: ANSWER_COLUMN} if pair else {}


def parse_format(
    format_name: str, folders: Folders, marks: tuple[Sequence[str], Sequence[str]]
) -> tuple[str, dict[frozenset[str], FormatTemplate]]:
    """The name of a format for users, and its templates by columns; instead of a name a template can be given."""
    name = "the template" if COLUMN_PLACEHOLDER.search(format_name) else format_name
    parsed = [FormatTemplate.of(text, marks) for text in load_templates(format_name, folders).values()]
    return name, {template.columns: template for template in parsed}


def load_templates(format_name: str, folders: Folders) -> dict[str, str]:
    """Load the templates of a format by their columns; instead of a name a template can be given.

    The user's files take precedence over shipped ones.
    """
    if COLUMN_PLACEHOLDER.search(format_name):
        return {"": format_name}
    file = f"{format_name}.json"
    for folder in () if safe_paths.name_fault(file) else (folders.formats, SHIPPED_FORMATS):
        path = safe_paths.child(folder, file, "Data format", refusal=DataError)
        if not path.is_file():
            continue
        try:
            content = json.loads(read_small_file(path))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"Data format: {path.name} can't be read ({error}). It must be JSON.") from error
        templates = content.values() if isinstance(content, dict) else ()
        if not templates or not all(isinstance(v, str) and COLUMN_PLACEHOLDER.search(v) for v in templates):
            raise DataError(
                f"Data format: {path.name} must map column names to templates, such as "
                '{"instruction,output": "%instruction%\\n%output%"}.'
            )
        return dict(content)
    paths = (path for folder in (SHIPPED_FORMATS, folders.formats) for path in usable_entries(folder))
    available = ", ".join(sorted({path.stem for path in paths if path.suffix == ".json"}, key=str.lower))
    raise DataError(
        f"Data format: there is no format named {format_name!r}. Available: auto, chat, text, {available}."
    )
