"""What Check says, and what a run then does: the numbers of a data set, with verdict, problems and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["ready", "ready with advice", "not ready"]


@dataclass(frozen=True)
class SourceReport:
    """One data set: what it is, how it was cut, what was left out and why."""

    name: str
    what: str
    files: int
    parts: int
    sentences: int
    blocks: int
    overlaps: int
    tokens: int
    characters: int
    left_out: int
    characters_lost: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DatasetReport:
    """Everything that Check shows; the run that follows has the same numbers, since it is the same code."""

    examples: int
    tokens: int
    trained_tokens: int
    longest: int
    cutoff: int
    steps_per_epoch: int
    steps: int
    sources: tuple[SourceReport, ...] = ()
    problems: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        if self.problems:
            return "not ready"
        return "ready with advice" if self.advice else "ready"

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}

    def text(self) -> str:
        """The report as lines of text."""
        lines = [f"Verdict: {self.verdict}"]
        lines += [f"Problem: {p}" for p in self.problems] + [f"Advice: {a}" for a in self.advice]
        lines += [line for source in self.sources for line in _told(source)]
        if self.examples:
            lines.append(
                f"{self.examples} examples, {self.tokens} tokens ({self.trained_tokens} learned from), longest "
                f"{self.longest} of {self.cutoff}; {self.steps_per_epoch} steps an epoch, {self.steps} in all"
            )
        return "\n".join(lines)


def _told(source: SourceReport) -> list[str]:
    overlap = f" and {source.overlaps} overlap blocks" if source.overlaps else ""
    left_out = f", {source.left_out} too small" if source.left_out else ""
    return [
        f"{source.name}: {source.what}, {source.files} {'file' if source.files == 1 else 'files'}, "
        f"{source.parts} {'part' if source.parts == 1 else 'parts'}, {source.sentences} sentences -> "
        f"{source.blocks} blocks{overlap}{left_out}; characters lost: {source.characters_lost}",
        *(f"  {note}" for note in source.notes),
    ]
