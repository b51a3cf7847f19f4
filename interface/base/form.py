"""The form: the place of each setting, and one component for each. Handlers look values up by key."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import gradio as gr
from markupsafe import Markup

from ...settings.definitions import SETTINGS
from ...settings.parsing import ROW_SETTING_KEYS
from ...settings.setting import Setting, shortest_number, show_line_breaks

DataKind = Literal["text", "rows"]


# The order of a beginner's questions: what the run reads, how long, how strong, and how it is saved.
VISIBLE_ROWS: tuple[tuple[str, ...], ...] = (
    ("chunking", "hard_cut"),
    ("format", "train_on"),
    ("cutoff", "epochs"),
    ("learning_rate", "rank"),
    ("schedule",),
    ("batch_size", "accumulation"),
)
LORA_PART, LIVE_PART, MEMORY_PART = "LoRA", "Saving and stopping", "Memory and speed"
FOLDED_ROWS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "Text and tokens": (
        ("overlap", "dementor_repeats", "min_chars"),
        ("drop_boilerplate", "join_lines"),
        ("block_ends",),
        ("add_bos", "add_eos"),
        ("system",),
        ("train_only_after", "too_long"),
        ("source_max_len", "target_max_len"),
        ("bad_rows", "columns"),
        ("split_exchanges", "chat_side"),
        ("chat_user", "chat_context", "chat_names"),
    ),
    "Objective and preferences": (
        ("objective", "preferences"),
        ("beta", "preference_smoothing", "chosen_weight"),
    ),
    LORA_PART: (
        ("alpha", "dropout"),
        ("targets", "rslora"),
        ("dora", "lora_plus"),
        ("train_head", "head_rate"),
        ("modules_to_save", "bias", "layers_to_transform"),
    ),
    "Learning rate and optimizer": (
        ("warmup_steps", "max_steps"),
        ("optimizer", "weight_decay"),
        ("max_grad_norm", "label_smoothing", "neftune_noise"),
        ("adam_beta1", "adam_beta2", "adam_epsilon"),
    ),
    "Batch order": (
        ("batching",),
        ("switch_after", "switch_at", "switch_loss_low", "switch_loss_high"),
        ("switch_pairs", "second_switch_at", "second_switch_loss_low", "second_switch_loss_high"),
    ),
    "Validation and samples": (
        ("eval_share", "eval_every"),
        ("eval_data", "eval_batch_size"),
        ("exam", "recall_passages", "test_at_end"),
        ("sample_prompts",),
        ("sample_every", "sample_length", "sample_temperature"),
    ),
    LIVE_PART: (
        ("save_every", "save_on_loss_drop", "save_each_epoch"),
        ("backup_minutes", "keep_checkpoints", "keep_best"),
        ("stop_at_loss", "stop_at_epoch"),
        ("early_stopping", "stop_how"),
    ),
    MEMORY_PART: (
        ("packing", "gradient_checkpointing"),
        ("attention", "workers"),
        ("tf32", "liger", "compile"),
        ("method", "shard_size"),
    ),
    "Seed, logging, and sleep mode": (
        ("seed", "data_seed"),
        ("report_to", "run_name"),
        ("logging_steps", "logging_first_step", "keep_awake"),
    ),
}
# Folded parts that begin with a menu of presets, and the kind of these presets.
PRESET_TABLES = {LORA_PART: "loras", "Learning rate and optimizer": "optimizers"}
ALL_ROWS = (*VISIBLE_ROWS, *(row for rows in FOLDED_ROWS.values() for row in rows))


@dataclass
class Form:
    """The components of the settings that have been drawn so far."""

    components: dict[str, Any] = field(default_factory=dict)

    def draw(self, *keys: str, **more: Any) -> None:
        """Draw these settings here, in this order; `more` is passed on to each component."""
        for key in keys:
            self.components[key] = make_component(SETTINGS[key], **more)

    def draw_row(self, *keys: str) -> None:
        """Draw these settings side by side if there is room."""
        with gr.Row(elem_id=row_id(keys)):
            self.draw(*keys, min_width=120)

    def inputs(self) -> set[Any]:
        """All components, as inputs of an event. They are a set, so the handler gets a dict by component."""
        return set(self.components.values())

    def row_inputs(self) -> set[Any]:
        """The components of the settings that say how rows are read."""
        return {self.components[key] for key in ROW_SETTING_KEYS if key in self.components}

    def values(self, inputs: Mapping[Any, Any]) -> dict[str, Any]:
        return {key: choice_value(SETTINGS[key], inputs[c]) for key, c in self.components.items() if c in inputs}

    def updates(self, values: Mapping[str, Any]) -> dict[Any, Any]:
        """Component updates that put values into the form, except for those that their components can't show."""
        shown = {key: shown_value(SETTINGS[key], values[key]) for key in values if key in self.components}
        return {self.components[key]: gr.update(value=value) for key, value in shown.items() if value is not None}


def make_component(setting: Setting, **more: Any) -> Any:
    """Make the component that fits the kind of the setting."""
    common = {
        "label": setting.label,
        "info": setting.help,
        "value": display_value(setting, setting.default),
        "elem_id": f"tp-{setting.key}",
        "elem_classes": ["tp-setting", "tp-tick"] if setting.kind == "yes/no" else ["tp-setting"],
        **more,
    }
    if setting.kind == "yes/no":
        return gr.Checkbox(**common)
    if setting.kind == "choice":
        choices = [(label, value) for value, label in setting.choices.items()]
        return gr.Dropdown(**{"choices": choices, "allow_custom_value": setting.free, **common})
    if setting.kind == "names":
        # Also names that the menu does not offer, such as those of files in folders.
        return gr.Dropdown(**{"multiselect": True, "allow_custom_value": True, **common})
    if setting.kind == "texts":
        return gr.Textbox(**{"lines": 3, **common})
    if _is_number_box(setting):
        return gr.Number(**common)  # no bounds here: Gradio would show a bare "Error" or round; we check them
    # A box of one line would take the line breaks out of what is pasted.
    return gr.Textbox(**({} if setting.long else {"max_lines": 1}) | common)


def choice_value(setting: Setting, value: Any) -> Any:
    """The value of a choice, also when the page sends its label."""
    # In Gradio 4.37 a menu with custom values sends the label when the user leaves it with the Tab key. When that
    # version goes, delete this function: the form's values are then those that its components send.
    return next((choice for choice, label in setting.choices.items() if label == value), value)


def shown_value(setting: Setting, value: Any) -> Any:
    """What the component of a setting shows for a value from a file, which may not be valid; None for nothing."""
    try:
        return display_value(setting, setting.read(value))
    except ValueError:
        can_hold = isinstance(value, (int, float)) if _is_number_box(setting) else isinstance(value, str)
        closed = setting.kind in ("yes/no", "choice", "names")
        return value if can_hold and not closed else None


def _is_number_box(setting: Setting) -> bool:
    return setting.kind == "whole" and not setting.words


def display_value(setting: Setting, value: Any) -> Any:
    """A value in the form that its component displays."""
    if setting.kind == "texts":
        return value if isinstance(value, str) else "\n".join(map(show_line_breaks, value))
    if isinstance(value, tuple):
        return " ".join(value) if setting.kind == "choice" else list(value)
    if setting.kind == "number" or (setting.kind == "whole" and setting.words):
        return value if isinstance(value, str) else shortest_number(value)
    return value


def part_id(title: str) -> str:
    return "tp-part-" + re.sub(r"[^a-z]+", "-", title.lower())


def row_id(row: Sequence[str]) -> str:
    return f"tp-row-{row[0]}"


def hiding_style(keys: Collection[str]) -> Markup:
    """A style sheet that hides these settings, and rows without any visible setting."""
    if not keys:
        return Markup()
    # The settings are hidden, not removed, so their values stay in the form in every version of Gradio.
    selectors = [f"#tp-{key}" for key in sorted(keys)]
    selectors += [f"#{row_id(row)}" for row in ALL_ROWS if set(row) <= set(keys)]
    template = "{} {{display: none !important}} {} {{content: ' (not used with this dataset and these settings)'}}"
    links = [f'#tp-find-results [data-tp-go="{key}"]::after' for key in sorted(keys)]
    # Our own keys, with quotes that must stay: nothing to escape.
    return Markup("<style>{}</style>").format(Markup(template.format(", ".join(selectors), ", ".join(links))))
