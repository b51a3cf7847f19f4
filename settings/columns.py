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
        raise ValueError(
            f"{text!r} is missing a quotation mark. Put names with spaces in quotation marks."
        ) from None
    assignments = [token.partition("=") for token in tokens]
    malformed = [
        token
        for token, (ours, sign, theirs) in zip(tokens, assignments, strict=True)
        if not (ours and sign and theirs)
    ]
    if malformed:
        raise ValueError(
            f"{malformed[0]!r} can't be parsed. Use the form instruction=Frage output=Antwort, table=NAME, or a "
            "SELECT statement."
        )
    names = {ours.strip().lower(): theirs for ours, _, theirs in assignments}
    return Columns(names.pop(TABLE_KEY, ""), "", names)


def columns_problem(text: str) -> str:
    """Return what is wrong with the text, or an empty string."""
    try:
        parse_columns(text)
    except ValueError as error:
        return str(error)
    return ""
