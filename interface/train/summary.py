"""What follows from the form, in a line each: beside the settings, before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...core.errors import TrainingProError
from ...data.report import is_known, parts_of
from ...settings import presets
from ...settings.definitions import SETTINGS, Lora
from ...settings.parsing import training_settings
from ...train_utils import ModelShape, StepPlan, plural, size
from ..base import way_back
from ..run import plan_svg

STEPS = ("batch_size", "accumulation", "epochs", "max_steps")
NO_DATA_YET = 400  # examples, for a curve of the schedule before any data are chosen


def together(values: Mapping[str, Any], examples: int) -> str:
    """Examples a step, and how many steps that makes; empty where a number is being typed."""
    read = _read(values, STEPS)
    if not read:
        return ""
    each = read["batch_size"] * read["accumulation"]
    planned = StepPlan(examples, **read).steps if examples else 0
    steps = f", {planned:,} {plural(planned, 'step')}" if examples else ""
    return f"Together {each} {plural(each, 'example')} a step{steps}."


def strength(values: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The LoRA's alpha and strength, and what its file will take."""
    read = _read(values, ("rank", "alpha", "rslora", "targets"))
    if not read:
        return ""
    file = _file(config, read["rank"], read["targets"])
    return f"LoRA alpha {read['alpha']:g}, strength {Lora(**read).strength:.3g}{file}."


def _file(config: Mapping[str, Any], rank: int, targets: Any) -> str:
    """What it will take; where the layers have to be counted, that is not done at each letter that is typed."""
    shape = ModelShape.of(config)
    if shape is None:
        return ""
    if not is_known(config, targets):
        return ", its file: Check says how large"
    return f", its file about {size(4 * shape.lora_weights(rank, parts_of(targets)))}"


def schedule(values: Mapping[str, Any], examples: int) -> str:
    """The schedule as a small curve; empty where something in it is being typed."""
    try:
        settings = training_settings({**values, "name": "look", "data": ["look"]})
    except TrainingProError:
        return ""
    plan = StepPlan(examples or NO_DATA_YET, **_read(values, STEPS))
    return plan_svg.small_curve(settings, plan)


def _read(values: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """These settings as they are typed; nothing where one of them is not finished."""
    try:
        return {key: SETTINGS[key].read(values[key]) for key in keys}
    except ValueError:
        return {}


def changed(values: Mapping[str, Any]) -> str:
    """The ways back of all settings that are not at their default."""
    keys = [key for key in values if key not in presets.UNTOUCHED]
    apart = presets.apart({key: SETTINGS[key].default for key in keys}, {key: values[key] for key in keys})
    return "".join(way_back(key, presets.shown(key, SETTINGS[key].default)) for key in apart)


def title(name: str, rows: Iterable[Iterable[str]], values: Mapping[str, Any]) -> str:
    """The title of a folded part, with what in it is not at its default."""
    keys = [key for row in rows for key in row if key in values]
    defaults = {key: SETTINGS[key].default for key in keys}
    changed = presets.changes(defaults, {key: values[key] for key in keys})
    return f"{name}: {'; '.join(changed)}" if changed else name
