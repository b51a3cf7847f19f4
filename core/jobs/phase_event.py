"""Figures of each phase of hybrid batching, from the steps and evaluations of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from ...train_utils import align_columns, known_columns
from .events import EvaluationDone, Event, Step

PHASE_COLUMNS = (
    "Phase",
    "Steps",
    "Examples",
    "Mean loss",
    "Smoothed loss",
    "Validation loss",
    "Perplexity",
    "Context gain",
)
UNKNOWN = "-"


@dataclass(frozen=True)
class PhaseFigures:
    """Figures of one batching phase; `before` and `after` are evaluations at its start and its end."""

    name: str
    first_step: int
    last_step: int
    examples: int
    """0 if the record is without this figure."""
    mean_loss: float
    smoothed: float
    """Smoothed loss after the last step."""
    before: EvaluationDone | None = None
    after: EvaluationDone | None = None

    @property
    def steps(self) -> int:
        return self.last_step - self.first_step + 1

    def as_log(self) -> dict[str, Any]:
        """Return plain values for training_log.json."""
        values = {key: value for key, value in vars(self).items() if key not in ("before", "after")}
        return {**values, "steps": self.steps, "before": _as_log(self.before), "after": _as_log(self.after)}


@dataclass(frozen=True, kw_only=True)
class PhasesMeasured(Event):
    """The figures of all phases, at the end of a run."""

    phases: tuple[PhaseFigures, ...]


def measure_phases(steps: Sequence[Step], evaluations: Sequence[EvaluationDone]) -> tuple[PhaseFigures, ...]:
    """Measure each phase of a run; empty if its order has only one."""
    if not steps or not steps[-1].phase:
        return ()
    key = evaluations[-1].validation_key if evaluations else ""
    comparable = [evaluation for evaluation in evaluations if evaluation.validation_key == key]
    phases = groupby(steps, key=lambda step: step.phase)
    return tuple(_measure_phase(name, list(members), comparable) for name, members in phases if name)


def _measure_phase(name: str, steps: Sequence[Step], evaluations: Sequence[EvaluationDone]) -> PhaseFigures:
    first, last = steps[0].step, steps[-1].step
    return PhaseFigures(
        name,
        first,
        last,
        sum(step.examples for step in steps),
        fmean(step.loss for step in steps),
        steps[-1].smoothed,
        next((e for e in reversed(evaluations) if e.step < first), None),
        next((e for e in reversed(evaluations) if first <= e.step <= last), None),
    )


def phase_table(phases: Sequence[PhaseFigures]) -> list[tuple[str, ...]]:
    """The phases as a table of texts, the header first; columns without a value are omitted."""
    return known_columns([PHASE_COLUMNS, *map(_cells, phases)])


def _cells(phase: PhaseFigures) -> tuple[str, ...]:
    return (
        phase.name,
        f"{phase.steps:,} ({phase.first_step} to {phase.last_step})",
        f"{phase.examples:,}" if phase.examples else UNKNOWN,
        _number(phase.mean_loss, ".4f"),
        _number(phase.smoothed, ".4f"),
        _change(phase, lambda evaluation: evaluation.loss, ".4f"),
        _change(phase, lambda evaluation: evaluation.perplexity, ".4g"),
        _change(phase, lambda evaluation: evaluation.context_gain, ".4f"),
    )


def _change(phase: PhaseFigures, figure: Callable[[EvaluationDone], float | None], number_format: str) -> str:
    """A figure of the evaluations before and after a phase: '4.2583 to 3.8645'."""
    if phase.after is None:
        return UNKNOWN
    after = _number(figure(phase.after), number_format)
    before = _number(figure(phase.before), number_format) if phase.before else UNKNOWN
    return after if UNKNOWN in (before, after) else f"{before} to {after}"


def _number(value: float | None, number_format: str) -> str:
    return UNKNOWN if value is None or not math.isfinite(value) else format(value, number_format)


def _as_log(evaluation: EvaluationDone | None) -> dict[str, Any] | None:
    keys = ("step", "loss", "perplexity", "context_gain")
    return {key: value for key, value in asdict(evaluation).items() if key in keys} if evaluation else None


def phase_lines(phases: Sequence[PhaseFigures]) -> str:
    """The table as aligned lines, for the console."""
    return "\n".join(align_columns(phase_table(phases)))
