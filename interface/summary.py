"""What follows from the form, in a line each: beside the settings, before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..core.errors import TrainingProError
from ..data import library
from ..settings import presets
from ..settings.declared import SETTINGS
from ..settings.reading import training_settings
from .joined import Joined

QUICKLY = 3_000_000
"""Data of so many bytes are looked at while the form is being filled in; more, when Check is pressed."""


def together(values: Mapping[str, Any]) -> str:
    """Examples a step, and the strength of the LoRA."""
    try:
        read = {
            key: SETTINGS[key].read(values[key])
            for key in ("batch_size", "accumulation", "rank", "alpha", "rslora")
        }
    except ValueError:
        return ""
    each = read["batch_size"] * read["accumulation"]
    strength = read["alpha"] / (read["rank"] ** 0.5 if read["rslora"] else read["rank"])
    return (
        f"Together {each} {'example' if each == 1 else 'examples'} a step. "
        f"LoRA alpha {read['alpha']:g}, strength {strength:.3g}."
    )


def title(name: str, rows: Iterable[Iterable[str]], values: Mapping[str, Any]) -> str:
    """The title of a folded part, with what in it is not at its default."""
    keys = [key for row in rows for key in row if key in values]
    defaults = {key: SETTINGS[key].default for key in keys}
    changed = presets.changes(defaults, {key: values[key] for key in keys})
    return f"{name}: {'; '.join(changed)}" if changed else name


def data(values: Mapping[str, Any], joined: Joined) -> str:
    """What the chosen data are; nothing where that cannot be said quickly."""
    if not values.get("data") or joined.host.standing().problem:
        return ""
    try:
        if _bytes_of(values["data"], joined) > QUICKLY:
            return "Press Check to see what is in these data."
        report = joined.engine.check(training_settings({**values, "name": "look"}), joined.host)
    except TrainingProError:
        return ""  # the form is not finished; Check and Start say what is wrong
    return " ".join([*(s.short for s in report.sources), *report.problems])


def _bytes_of(names: Iterable[str], joined: Joined) -> int:
    sets = library.found(list(names), joined.host.folders)
    files = [f for d in sets for f in (d.path.rglob("*") if d.path.is_dir() else [d.path]) if f.is_file()]
    return sum(f.stat().st_size for f in files)
