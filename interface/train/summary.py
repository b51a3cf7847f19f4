"""What follows from the form: steps, LoRA strength and size, schedule, changed settings; what a search finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from ...core.errors import TrainingProError
from ...core.model_shape import ModelShape
from ...settings import presets
from ...settings.definitions import SETTINGS, LoraSettings
from ...settings.other_names import Named, find_settings
from ...settings.parsing import training_settings
from ...settings.target_layers import is_known_architecture, target_layers
from ...train_utils import StepPlan, plural, size
from ..base import markup
from ..run import small_lr_svg

RESULT = '<p>{} <span class="tp-quiet">{}</span></p>'


def results_html(query: str) -> str:
    """Links to what the query finds, each with a sentence; a preset also has a button that fills it in."""
    if not query.strip():
        return ""
    goals = {f"Preset: {goal.label}": goal for goal in presets.goals()}
    names = [Named("start-from", label, {"preset": [goal.label]}, goal.words) for label, goal in goals.items()]
    found = find_settings(query, names)
    if not found:
        return markup.paragraph(f"No setting or preset matches {query[:60]!r}. Try a shorter word.", quiet=True)
    results = []
    for named in found:
        goal, link = goals.get(named.label), markup.setting_link(named.key, named.label)
        button = Markup(" {}").format(markup.apply_button("use", goal.values)) if goal else ""
        results.append(Markup(RESULT).format(link + button, named.help.partition(". ")[0]))
    return markup.join(results)


STEP_KEYS = ("batch_size", "accumulation", "epochs", "max_steps")
ASSUMED_EXAMPLES = 400  # examples, to draw the schedule before any data are chosen


def steps_and_lora(values: Mapping[str, Any], examples: int, config: Mapping[str, Any]) -> str:
    """The number of steps, and what the LoRA will be; a sentence is left out while its numbers are half-typed."""
    sentences = []
    if parsed := _parse(values, STEP_KEYS):
        per_step = parsed["batch_size"] * parsed["accumulation"]
        total = StepPlan(examples, **parsed).steps if examples else 0
        steps = f"; {total:,} {plural(total, 'step')} in total" if examples else ""
        sentences.append(f"Each step trains on {per_step} {plural(per_step, 'example')}{steps}.")
    if parsed := _parse(values, ("rank", "alpha", "rslora", "targets")):
        lora, shape, targets, file_size = LoraSettings(**parsed), ModelShape.of(config), parsed["targets"], ""
        if shape is not None and is_known_architecture(config, targets):
            # Four bytes for each weight: the LoRA is float32, whatever the model is.
            weights = shape.lora_weights(parsed["rank"], target_layers(targets))
            file_size = f", file size about {size(4 * weights)}"
        elif shape is not None:  # its layers must be counted: too slow for every key press
            file_size = "; Check shows its file size"
        sentences.append(f"LoRA: alpha {lora.effective_alpha:g}, scaling {lora.strength:.3g}{file_size}.")
    return " ".join(sentences)


def schedule_svg(values: Mapping[str, Any], examples: int) -> str:
    """A small chart of the schedule; empty while a setting is half-typed."""
    try:
        settings = training_settings({**values, "name": "look", "data": ["look"]})
    except TrainingProError:
        return ""
    plan = StepPlan(examples or ASSUMED_EXAMPLES, **_parse(values, STEP_KEYS))
    return small_lr_svg(settings, plan)


def _parse(values: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Parse these settings; empty if one of them is invalid."""
    try:
        return {key: SETTINGS[key].read(values[key]) for key in keys}
    except ValueError:
        return {}


def reset_buttons(values: Mapping[str, Any]) -> Markup:
    """Reset buttons of all settings that differ from their defaults."""
    defaults = {key: SETTINGS[key].default for key in values if key not in presets.EXCLUDED_KEYS}
    changed_keys = presets.differing_keys(defaults, {key: values[key] for key in defaults})
    buttons = (markup.reset_button(key, presets.format_value(key, defaults[key])) for key in changed_keys)
    return markup.join(buttons)


def part_title(name: str, rows: Iterable[Iterable[str]], values: Mapping[str, Any]) -> str:
    """The title of a folded part, with its settings that differ from their defaults."""
    defaults = {key: SETTINGS[key].default for row in rows for key in row if key in values}
    changed = presets.describe_changes(defaults, {key: values[key] for key in defaults})
    return f"{name}: {'; '.join(changed)}" if changed else name
