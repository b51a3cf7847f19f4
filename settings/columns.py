"""What is written under Columns: which table or SELECT of a database, and which column has which part."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

TABLE = "table"
SELECT = re.compile(r"\s*(?:select|with)\s", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """`names` are our columns by what they are called in the file; `query` is a SELECT."""

    table: str = ""
    query: str = ""
    names: Mapping[str, str] = field(default_factory=dict)


def read(text: str) -> Columns:
    """'table=NAME instruction=Frage output="Die Antwort"', or a SELECT; a ValueError says what is wrong."""
    if SELECT.match(text):
        return Columns(query=text.strip().rstrip(";"))
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError(
            f"{text!r} has a quotation mark too few. Put names with spaces into two of them."
        ) from None
    pairs = [word.partition("=") for word in words]
    wrong = [
        word for word, (ours, sign, theirs) in zip(words, pairs, strict=True) if not (ours and sign and theirs)
    ]
    if wrong:
        raise ValueError(
            f"{wrong[0]!r} is not understood. Write instruction=Frage output=Antwort, table=NAME, or a SELECT."
        )
    named = {ours.strip().lower(): theirs for ours, _, theirs in pairs}
    return Columns(named.pop(TABLE, ""), "", named)


def problem(text: str) -> str:
    """What is wrong with it, or an empty text."""
    try:
        read(text)
    except ValueError as error:
        return str(error)
    return ""
