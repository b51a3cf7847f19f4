"""Parser of the setting Columns: a column mapping, and for databases a table or a SELECT."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

TABLE_KEY = "table"
SELECT = re.compile(r"\s*(?:select|with)\s", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """A column mapping. `names` maps our column names to those in the file; `query` is a SELECT."""

    table: str = ""
    query: str = ""
    names: Mapping[str, str] = field(default_factory=dict)


def parse_columns(text: str) -> Columns:
    """Parse 'table=NAME instruction=Frage output="Die Antwort"' or a SELECT; raise ValueError if it is neither."""
    if SELECT.match(text):
        return Columns(query=text.strip().rstrip(";"))
    try:
        tokens = shlex.split(text)
    except ValueError:
        missing = f"{text!r} is missing a quotation mark."
        raise ValueError(f"{missing} Put names with spaces in quotation marks.") from None
    names = {}
    for token in tokens:
        ours, _, theirs = token.partition("=")
        if not ours or not theirs:
            form = "Use the form instruction=Frage output=Antwort, table=NAME, or a SELECT statement."
            raise ValueError(f"{token!r} can't be parsed. {form}")
        names[ours.strip().lower()] = theirs
    return Columns(names.pop(TABLE_KEY, ""), "", names)


def columns_problem(text: str) -> str:
    """Return what is wrong with the text, or an empty string."""
    try:
        parse_columns(text)
    except ValueError as error:
        return str(error)
    return ""
