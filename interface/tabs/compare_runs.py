"""Two runs beside each other: their curves in one picture, their figures, and the settings that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...core.errors import TrainingProError
from ...core.files import read_json
from ...records.folder import GRAPH, PARAMETERS, Kept
from ...records.report import aside_losses, best_of, evaluations_of, number, points_of, steps_of
from ...settings import files, presets
from ...settings.definitions import SETTINGS
from ...train_utils import duration, size
from ..base import markup
from ..run import chart

OF_NO_MATTER = frozenset({"name", "if_exists"})


@dataclass(frozen=True)
class Run:
    """A run as its records tell of it."""

    kept: Kept

    @cached_property
    def graph(self) -> list[Mapping[str, Any]]:
        return [entry for entry in read_json(self.kept.folder / GRAPH, []) if isinstance(entry, dict)]

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """As they were asked for, whoever wrote them; nothing where that is not known."""
        try:
            return files.load(self.kept.folder / PARAMETERS).values
        except TrainingProError:
            return {}

    @property
    def tested_on(self) -> set[str]:
        """Fingerprints of what was kept aside."""
        return {str(entry["kept_aside"]) for entry in self.graph if entry.get("kept_aside")}


def beside(one: Kept, other: Kept) -> str:
    """What a look at both can tell."""
    runs = (Run(one), Run(other))
    charts = [
        _chart("Smoothed loss", runs, lambda run: [(p.step, p.smoothed) for p in points_of(run.graph)]),
        _chart("Kept aside", runs, lambda run: [(a.step, a.loss) for a in aside_losses(run.graph)]),
    ]
    said = [markup.paragraph(text, quiet=True) for text in _warnings(*runs)]
    rows = [*_figures(*runs), *_settings(*runs)]
    return markup.card(
        f"{one.name} and {other.name}", *charts, *said, markup.table(("", one.name, other.name), rows)
    )


def _chart(title: str, runs: tuple[Run, Run], places: Callable[[Run], list[tuple[int, float]]]) -> str:
    return chart(title, {run.kept.name: places(run) for run in runs})


def _warnings(one: Run, other: Run) -> Iterator[str]:
    """What must not be compared."""
    if one.kept.model != other.kept.model:
        yield "They sit on different models: their losses cannot be compared."
    if one.tested_on and other.tested_on and not one.tested_on & other.tested_on:
        yield "They were tested on different parts kept aside: only each run's own losses there can be compared."
    for run in (one, other):
        if not run.settings:
            yield f"Which settings {run.kept.name} was made with is not known."


def _figures(one: Run, other: Run) -> Iterator[tuple[str, str, str]]:
    for words, figure in FIGURES.items():
        left, right = figure(one), figure(other)
        if left or right:
            yield words, left or "-", right or "-"


def _settings(one: Run, other: Run) -> Iterator[tuple[str, str, str]]:
    """In the order of the form; what is not said is at its default."""
    if not one.settings or not other.settings:
        return
    defaults = {key: setting.default for key, setting in SETTINGS.items()}
    left, right = ({**defaults, **run.settings} for run in (one, other))
    for key in presets.apart(left, right):
        if key not in OF_NO_MATTER:
            yield SETTINGS[key].label, presets.shown(key, left[key]), presets.shown(key, right[key])


def _loss_at_the_end(run: Run) -> str:
    return "" if run.kept.loss is None else f"{run.kept.loss:.4f}"


def _best_aside(run: Run) -> str:
    best = best_of(evaluations_of(run.graph))
    return f"{best.loss:.4f} at step {best.step:,}" if best else ""


def _spent(run: Run) -> str:
    seconds = [number(entry["seconds"]) for entry in steps_of(run.graph) if entry.get("seconds")]
    return duration(sum(seconds)) if seconds else ""


FIGURES: Mapping[str, Callable[[Run], str]] = {
    "model": lambda run: run.kept.model,
    "steps": lambda run: f"{run.kept.step:,}" if run.kept.step else "",
    "smoothed loss at the end": _loss_at_the_end,
    "best loss kept aside": _best_aside,
    "spent on training": _spent,
    "on disk": lambda run: size(run.kept.size),
}
