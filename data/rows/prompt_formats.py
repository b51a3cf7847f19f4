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
from .row_schema import BadRowError, FixedText

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
            # Tables may have numbers in columns that a template uses; NaN and Infinity stand for none.
            for key, value in named.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                    filled[key] = str(value)
        # The template with exactly these columns, otherwise the one that uses most of them.
        if frozenset(filled) in self.templates:
            return self.templates[frozenset(filled)].fill(filled)
        candidates = [columns for columns in self.templates if columns <= filled.keys()]
        if not candidates:
            existing = ", ".join(sorted(filled)) or "none"
            required = "; or ".join(", ".join(sorted(columns)) for columns in self.templates)
            raise BadRowError(f"has text in these columns: {existing}. {self.name} needs text in: {required}.")
        return self.templates[max(candidates, key=len)].fill(filled)


def load_format_schema(
    format_name: str,
    rows: Sequence[Row],
    folders: Folders,
    marks: tuple[Sequence[str], Sequence[str]],
    system: str,
) -> FormatSchema:
    """Load the schema of a format; instead of a name a template can be given."""
    sources = load_templates(format_name, folders)
    name = "the template" if COLUMN_PLACEHOLDER.search(format_name) else format_name
    templates = {t.columns: t for t in (FormatTemplate.of(text, marks) for text in sources.values())}
    # The columns of the rows are those of the format by their names in lower case, or else question and answer.
    names = dict.fromkeys(str(key) for row in rows for key in row.columns)
    columns = {column.strip().lower(): column for column in names}
    own = {column.strip().lower(): column for required in templates for column in required}
    synonyms: dict[str, str] = {}
    if any({column.strip().lower() for column in required} <= columns.keys() for required in templates):
        for column in names:
            folded = column.strip().lower()
            if folded in own and column not in own.values():
                synonyms[column] = own[folded]
    elif pair := find_pair(columns):
        synonyms = {columns[pair[0]]: QUESTION_COLUMN, columns[pair[1]]: ANSWER_COLUMN}
    return FormatSchema(templates, synonyms, system, name, f"{name}, which you chose under Data format")


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
