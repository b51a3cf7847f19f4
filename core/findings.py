"""Findings: the sentences of Check, each with its level and the setting it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

# A problem prevents a run, advice should be weighed before one, and a note asks for nothing.
Level = Literal["problem", "advice", "note"]


@dataclass(frozen=True)
class Finding:
    """A sentence about a run; `key` is the setting it is about, or empty."""

    level: Level
    key: str
    text: str


problem = partial(Finding, "problem")
advice = partial(Finding, "advice")
note = partial(Finding, "note")


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
    keep: bool = False  # whether the setting has this value already

    @property
    def values(self) -> dict[str, int | float | str]:
        return {self.key: self.value, **self.also}

    @property
    def words(self) -> str:
        """The value as the page and the console show it: unprintable characters escaped, a line break as \\n."""
        if isinstance(self.value, bool):
            return "on" if self.value else "off"
        if isinstance(self.value, str):
            return "".join(c if c.isprintable() else repr(c)[1:-1] for c in self.value) or "nothing"
        return f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
