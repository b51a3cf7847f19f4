"""What Check says, and what a run then does: the numbers of a data set, with verdict, problems and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from .slice_map import SliceMap

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
    text_tokens: int
    characters: int
    left_out: int
    characters_lost: int
    seen_least: int
    seen_mean: float
    seen_most: int
    notes: tuple[str, ...] = ()
    maps: tuple[tuple[str, SliceMap], ...] = ()

    @property
    def growth(self) -> float:
        """By what factor a pass trains more tokens than the text has."""
        return self.tokens / self.text_tokens if self.text_tokens else 0.0


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
    notes: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        if self.problems:
            return "not ready"
        return "ready with advice" if self.advice else "ready"

    def as_json(self) -> dict[str, Any]:
        """Everything but the maps, which are for drawing."""
        bare = replace(self, sources=tuple(replace(s, maps=()) for s in self.sources))
        known = {"verdict": self.verdict, **asdict(bare)}
        for source in known["sources"]:
            del source["maps"]
        return known

    def text(self) -> str:
        """The report as lines of text."""
        lines = [f"Verdict: {self.verdict}"]
        lines += [f"Problem: {p}" for p in self.problems] + [f"Advice: {a}" for a in self.advice]
        lines += [f"Note: {n}" for n in self.notes]
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
        f"  each sentence is seen {source.seen_least} to {source.seen_most} times a pass, {source.seen_mean:g} on "
        f"average; {source.growth:.2f} times the tokens of the text are trained",
        *(f"  {note}" for note in source.notes),
    ]
