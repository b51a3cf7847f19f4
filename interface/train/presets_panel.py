"""The menu Copy settings from (goals, presets, settings of LoRAs, defaults), and the folded part Presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from ...core.errors import TrainingProError
from ...core.files import safe_paths
from ...core.host import Folders
from ...data.dataset_index import find_datasets
from ...records.folder import PARAMETERS, loras
from ...records.remote import write_portable_run
from ...settings import files, presets
from ...settings.definitions import SETTINGS
from ...settings.parsing import training_settings
from ..base import Form, PageContext, add_handler, markup, shown_value
from .cli_command import cli_command_html


class LayerPicker:
    """A button that lists the layers, and a checkbox for each layer."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form

    def draw(self) -> None:
        self._list_button = gr.Button("Pick from this model's layers", size="sm", elem_id="tp-layers")
        self._message = gr.HTML(elem_id="tp-layers-said", elem_classes="tp-said")
        self._boxes = gr.CheckboxGroup([], label="Layers", visible=False, elem_id="tp-layers-picked")

    def connect(self) -> None:
        targets = self._form.components["targets"]
        outputs, clears = [self._message, self._boxes], {self._boxes: gr.update(visible=False)}
        options: dict[str, Any] = {"what": "Listing the layers", "clears": clears}
        add_handler(self._list_button.click, self._on_list, targets, outputs, **options)
        add_handler(self._boxes.input, self._on_pick, self._boxes, targets, what="Picking layers")

    def _on_list(self, targets: str | None) -> tuple[str, Any]:
        try:
            layers = self._context.engine.layers(self._context.host)
        except TrainingProError as error:
            return markup.problem(str(error)), gr.update(visible=False)
        choices = [(f"{name} ({count})", name) for name, count in layers.items()]
        chosen = [name for name in (targets or "").split() if name in layers]
        message = "The layers that you select here replace the value of Target modules."
        return markup.paragraph(message, quiet=True), gr.update(choices=choices, value=chosen, visible=True)

    def _on_pick(self, chosen: list[str]) -> str:
        return " ".join(chosen) or str(SETTINGS["targets"].default)


UNCHANGED, DEFAULTS, LORA_SETTINGS = "", "defaults", "trained"
NEWEST_FIRST, BY_NAME = "newest", "name"
ACTION_NAMES = {"Save": "Saving the preset", "Delete": "Deleting the preset"}


class PresetsPanel:
    """A menu that fills the form and reports the changes, with the buttons that save and delete presets."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        self._tables: dict[Any, Any] = {}

    def draw(self) -> None:
        self.menu = gr.Dropdown(
            self._choices(), value=UNCHANGED, label="Copy settings from", elem_id="tp-start-from"
        )
        self.menu_message = gr.HTML(elem_id="tp-start-from-said")

    def draw_table(self, kind: str) -> None:
        """Draw the menu of presets (S to XL) at the top of a folded part."""
        # Labels and values of a menu of presets. An error in a user file is reported when a preset is chosen.
        try:
            table = presets.load_table(kind, self._context.host.folders.presets)
        except TrainingProError:
            table = presets.load_table(kind, presets.GOALS_FILE.parent)
        menu = gr.Dropdown(
            [("(unchanged)", UNCHANGED), *((p.label, f"{kind}:{p.name}") for p in table)],
            value=UNCHANGED,
            label="Preset",
            elem_id=f"tp-{kind}-preset",
        )
        self._tables[menu] = gr.HTML(elem_id=f"tp-{kind}-said", elem_classes="tp-said")

    def draw_saving(self) -> None:
        """Draw the part Presets: save, delete, changed settings, the form as a command or a folder."""
        with gr.Row():
            self._name = gr.Textbox(label="Your preset", max_lines=1, elem_id="tp-preset-name", min_width=120)
            self._save_button = gr.Button("Save", min_width=70, elem_id="tp-preset-save")
            self._delete_button = gr.Button("Delete", min_width=70, elem_id="tp-preset-delete")
        self._order = gr.Radio(
            [("newest first", NEWEST_FIRST), ("by name", BY_NAME)],
            value=NEWEST_FIRST,
            label="Order of the LoRAs in 'Copy settings from'",
            elem_id="tp-lora-order",
        )
        with gr.Row():
            self._differences_button = gr.Button("Show changed settings", size="sm", elem_id="tp-differs")
            self._reset_button = gr.Button("Reset to defaults", size="sm", elem_id="tp-defaults")
            self._command_button = gr.Button("Command line", size="sm", elem_id="tp-command")
            self._export_button = gr.Button("Export for another machine", size="sm", elem_id="tp-export")
        self.message = gr.HTML(elem_id="tp-preset-said")

    def connect(self, *refreshing: Callable[..., Any]) -> None:
        """Register the event handlers, after everything is drawn; the events `refreshing` update the menu."""
        form, components = self._form.inputs(), self._form.components.values()
        for menu, message, action in (
            (self.menu, self.menu_message, "Copying the settings"),
            *((menu, message, "Loading the preset") for menu, message in self._tables.items()),
        ):
            on_choose = partial(self._on_choose, menu, message)
            add_handler(menu.input, on_choose, {*form, menu}, [*components, message], what=action)
        events = [self._order.change, *refreshing]
        add_handler(events, self.refresh_menu, self._order, self.menu, what="Refreshing 'Copy settings from'")
        outputs = [*components, self.menu_message]
        add_handler(self._reset_button.click, self._on_reset, form, outputs, what="Reset to defaults")
        # Connect the buttons of the part Presets, which share one place for messages.
        outputs_with_menu = [self.message, self.menu]
        for button, handler, inputs, outputs in (
            (self._differences_button, self._on_differences, form, self.message),
            (self._command_button, self._on_command, form, self.message),
            (self._export_button, self._on_export, form, self.message),
            (self._save_button, self._on_save, {*form, self._name, self._order}, outputs_with_menu),
            (self._delete_button, self._on_delete, {self._name, self._order}, outputs_with_menu),
        ):
            action = ACTION_NAMES.get(button.value, button.value)
            add_handler(button.click, handler, inputs, outputs, what=action)

    def refresh_menu(self, order: str = NEWEST_FIRST) -> Any:
        return gr.update(choices=self._choices(order))

    def _choices(self, order: str = NEWEST_FIRST) -> list[tuple[str, str]]:
        first = [("(choose a preset or an earlier run)", UNCHANGED), ("the defaults", DEFAULTS)]
        goals = [(p.label, f"goals:{p.name}") for p in presets.goals()]

        def own_choices(folders: Folders) -> list[tuple[str, str]]:
            own = [(f"preset: {n}", f"{presets.OWN_KIND}:{n}") for n in presets.own_names(folders.presets)]
            trained = [
                (f"LoRA: {n}", f"{LORA_SETTINGS}:{n}")
                for n in (
                    loras.list_loras(folders.loras) if order == BY_NAME else loras.newest_first(folders.loras)
                )
            ]
            return own + trained

        return [*first, *goals, *self._context.read_disk(own_choices, ())]

    def _on_choose(self, menu: Any, message: Any, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        try:
            values, note = self._load_choice(inputs[menu] or UNCHANGED)
        except TrainingProError as error:
            return {message: markup.problem(str(error))}
        return self._fill_updates(inputs, values, note, message)

    def _on_reset(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        return self._fill_updates(inputs, _defaults(), "Reset to the defaults.", self.menu_message)

    def _fill_updates(
        self, inputs: Mapping[Any, Any], values: Mapping[str, Any], note: str, message: Any
    ) -> dict[Any, Any]:
        """Fill in the values and report the changes; name, data, and `if_exists` are kept."""
        values = {k: v for k, v in values.items() if k not in presets.EXCLUDED_KEYS}
        invalid = {k: v for k, v in values.items() if k in SETTINGS and shown_value(SETTINGS[k], v) is None}
        valid = {k: v for k, v in values.items() if k not in invalid}
        changed = presets.describe_changes(self._form.values(inputs), valid)
        report = "Changed: " + "; ".join(changed) if changed else "Nothing changed."
        if invalid:
            ignored = "; ".join(f"{SETTINGS[k].label} {v!r}" for k, v in invalid.items())
            report = f"{report.rstrip('.')}. Ignored, because these values are not valid: {ignored}."
        return {**self._form.updates(valid), message: markup.paragraph(f"{note} {report}".strip(), quiet=True)}

    def _load_choice(self, choice: str) -> tuple[dict[str, Any], str]:
        kind, _, name = choice.partition(":")
        folders = self._context.host.folders
        if kind == LORA_SETTINGS:
            folder = safe_paths.child(folders.loras, name, "LoRA")
            loaded = files.load_settings(folder / PARAMETERS, folders.datasets)
            return loaded.values, " ".join(loaded.notes)
        if kind in presets.KINDS:
            preset = presets.find_preset_of_kind(kind, name, folders.presets)
            return {**(_defaults() if kind == presets.OWN_KIND else {}), **preset.values}, preset.description
        return (_defaults() if choice == DEFAULTS else {}), ""

    def _on_differences(self, inputs: Mapping[Any, Any]) -> str:
        values = {k: v for k, v in self._form.values(inputs).items() if k not in presets.EXCLUDED_KEYS}
        changed = presets.describe_changes(_defaults(), values)
        return markup.bullets(changed) or markup.paragraph("All settings have their default values.", quiet=True)

    def _on_command(self, inputs: Mapping[Any, Any]) -> str:
        return cli_command_html(self._form.values(inputs), self._context.host)

    def _on_export(self, inputs: Mapping[Any, Any]) -> str:
        """Write a folder with the settings of the form and their data."""
        context = self._context
        context.check_writable()
        settings, host = training_settings(self._form.values(inputs)), context.host
        out = host.folders.exports / settings.what.name
        datasets = find_datasets((*settings.what.data, *settings.aside.eval_data), host.folders)
        paths = {dataset.name: dataset.path for dataset in datasets}
        write_portable_run(settings, paths, host.card(), host.folders, out)
        return markup.paragraph(
            f"{out} contains the settings and the data. Its README.txt explains how to train on another machine."
        )

    def _on_save(self, inputs: Mapping[Any, Any]) -> tuple[str, Any]:
        values = self._form.values(inputs)
        return self._change(inputs, lambda folder, name: presets.save(folder, name, values), "Saved as {}.")

    def _on_delete(self, inputs: Mapping[Any, Any]) -> tuple[str, Any]:
        return self._change(inputs, presets.delete, "{} is deleted.")

    def _change(
        self, inputs: Mapping[Any, Any], action: Callable[[Path, str], object], message: str
    ) -> tuple[str, Any]:
        """Save or delete the preset of the typed name."""
        name = (inputs[self._name] or "").strip()

        def run_action(folders: Folders) -> str:
            action(folders.presets, name)
            return message.format(name)

        return self._context.run_disk_action(run_action), self.refresh_menu(inputs[self._order])


def _defaults() -> dict[str, Any]:
    return {key: setting.default for key, setting in SETTINGS.items() if key not in presets.EXCLUDED_KEYS}
