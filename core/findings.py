"""Findings: the sentences of Check, each with its level and the setting it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Level = Literal["problem", "advice", "note"]
"""A problem prevents a run, advice should be weighed before one, and a note asks for nothing."""


@dataclass(frozen=True)
class Finding:
    """A sentence about a run; `key` is the setting it is about, or empty."""

    level: Level
    key: str
    text: str


def problem(key: str, text: str) -> Finding:
    return Finding("problem", key, text)


def advice(key: str, text: str) -> Finding:
    return Finding("advice", key, text)


def note(key: str, text: str) -> Finding:
    return Finding("note", key, text)


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Put problems before advice and advice before notes; each sentence once, otherwise in the given order."""
    unique = {(finding.level, finding.text): finding for finding in findings}
    return tuple(sorted(unique.values(), key=lambda finding: get_args(Level).index(finding.level)))


def texts(findings: Iterable[Finding], level: Level) -> tuple[str, ...]:
    """The sentences of one level."""
    return tuple(finding.text for finding in findings if finding.level == level)


@dataclass(frozen=True)
class Suggestion:
    """The value of a setting that fits the data and the machine, and the reason."""

    key: str
    value: int | float | str
    why: str
    also: Mapping[str, int | float] = field(default_factory=dict)  # values that belong to it
    keep: bool = False
    """Whether the setting has this value already."""

    @property
    def heading(self) -> str:
        return "Fine as it is" if self.keep else "Suggestion"

    @property
    def values(self) -> dict[str, int | float | str]:
        return {self.key: self.value, **self.also}

    @property
    def verb(self) -> str:
        return "turn" if isinstance(self.value, bool) else "use"

    @property
    def words(self) -> str:
        """The value as the page and the console show it: unprintable characters escaped, a line break as \\n."""
        if isinstance(self.value, bool):
            return "on" if self.value else "off"
        if isinstance(self.value, str):
            return "".join(c if c.isprintable() else repr(c)[1:-1] for c in self.value) or "nothing"
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)


def merge_suggestions(*suggestions: Suggestion) -> tuple[Suggestion, ...]:
    """Drop "as it is" for settings that another suggestion changes."""
    changed = {suggestion.key for suggestion in suggestions if not suggestion.keep}
    return tuple(s for s in suggestions if not s.keep or s.key not in changed)
