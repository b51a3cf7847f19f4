"""What fills in the form (presets, LoRAs, layers, what fits the GPU), and the form as a preset or a command."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.errors import SettingsError, TrainingProError
from ...core.files import safe_paths
from ...core.host import Folders, Host
from ...core.jobs import Advice, ProbeDone, Stage, probe_figures
from ...core.version import ROOT
from ...data.dataset_index import find_datasets
from ...records.folder import PARAMETERS, loras
from ...records.remote import write_portable_run
from ...settings import files, flags, presets
from ...settings.definitions import SETTINGS
from ...settings.parsing import training_settings
from ..base import Form, PageContext, add_handler, markup, shown_value

UNCHANGED, DEFAULTS, LORA_SETTINGS = "", "defaults", "trained"
NEWEST_FIRST, BY_NAME = "newest", "name"


class PresetsPanel:
    """A menu that fills the form and reports the changes, with the buttons that save and delete presets."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        self._tables: dict[Any, Any] = {}
        self.menu = gr.Dropdown(
            self.choices(), value=UNCHANGED, label="Copy settings from", elem_id="tp-start-from"
        )
        self._menu_message = gr.HTML(elem_id="tp-start-from-said")

    def draw_table(self, kind: str) -> None:
        """Draw the menu of presets (S to XL) at the top of a folded part."""
        try:
            table = presets.load_table(kind, self._context.host.folders.presets)
        except TrainingProError:  # an error in a user file is reported when a preset is chosen
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
        for menu, message, what in (
            (self.menu, self._menu_message, "Copying the settings"),
            *((menu, message, "Loading the preset") for menu, message in self._tables.items()),
        ):
            copy = partial(self._copy, menu, message)
            # Not `input`, which Gradio 6 also sends when the menu is left: later edits would be lost.
            add_handler(menu.change, copy, {*form, menu}, [*components, menu, message], what=what)
        reset, outputs = partial(self._copy, None, self._menu_message), [*components, self._menu_message]
        add_handler(self._reset_button.click, reset, form, outputs, what="Reset to defaults")
        events, refill = [self._order.change, *refreshing], lambda order: gr.update(choices=self.choices(order))
        add_handler(events, refill, self._order, self.menu, what="Refreshing 'Copy settings from'")
        for button, answer in (
            (self._differences_button, self._describe_differences),
            (self._command_button, lambda inputs: cli_command_html(self._form.values(inputs), self._context.host)),
            (self._export_button, self._export),
        ):
            add_handler(button.click, answer, form, self.message, what=button.value)
        inputs, outputs = {*form, self._name, self._order}, [self.message, self.menu]
        for button, what in (
            (self._save_button, "Saving the preset"),
            (self._delete_button, "Deleting the preset"),
        ):
            add_handler(button.click, partial(self._save_or_delete, button), inputs, outputs, what=what)

    def choices(self, order: str = NEWEST_FIRST) -> list[tuple[str, str]]:
        list_loras = loras.list_loras if order == BY_NAME else loras.newest_first
        own, trained = self._context.read_disk(
            lambda folders: (presets.own_names(folders.presets), list_loras(folders.loras)), ((), ())
        )
        return [
            ("(choose a preset or an earlier run)", UNCHANGED),
            ("the defaults", DEFAULTS),
            *((goal.label, f"goals:{goal.name}") for goal in presets.goals()),
            *((f"preset: {name}", f"{presets.OWN_KIND}:{name}") for name in own),
            *((f"LoRA: {name}", f"{LORA_SETTINGS}:{name}") for name in trained),
        ]

    def _copy(self, menu: Any, message: Any, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """Fill in what is chosen in the menu, or the defaults if there is no menu, and report the changes.

        What says what a run is about is kept.
        """
        choice = DEFAULTS if menu is None else inputs[menu] or UNCHANGED
        if choice == UNCHANGED:  # as after each copy, so that the same entry can be chosen again
            return {message: gr.update()}
        kind, _, name = choice.partition(":")
        folders = self._context.host.folders
        values, note = {}, ""
        if kind == DEFAULTS:
            values, note = presets.DEFAULT_VALUES, "Reset to the defaults."
        elif kind == LORA_SETTINGS:
            folder = safe_paths.child(folders.loras, name, "LoRA")
            loaded = files.load_settings(folder / PARAMETERS, folders.datasets)
            values, note = {**presets.DEFAULT_VALUES, **loaded.values}, " ".join(loaded.notes)
        elif kind in presets.KINDS:
            preset = presets.find_preset_of_kind(kind, name, folders.presets)
            # A preset of the user's own is a whole form, as a LoRA's settings; the others change what they name.
            values = {**(presets.DEFAULT_VALUES if kind == presets.OWN_KIND else {}), **preset.values}
            note = preset.description
        values = {k: v for k, v in values.items() if k not in presets.EXCLUDED_KEYS}
        invalid = {k: v for k, v in values.items() if k in SETTINGS and shown_value(SETTINGS[k], v) is None}
        valid = {k: v for k, v in values.items() if k not in invalid}
        changed = presets.describe_changes(self._form.values(inputs), valid)
        report = "Changed: " + "; ".join(changed) if changed else "Nothing changed."
        if invalid:
            ignored = "; ".join(f"{SETTINGS[k].label} {v!r}" for k, v in invalid.items())
            report = f"{report.rstrip('.')}. Ignored, because these values are not valid: {ignored}."
        said = markup.paragraph(f"{note} {report}".strip(), quiet=True)
        return {**self._form.updates(valid), message: said, **({menu: UNCHANGED} if menu is not None else {})}

    def _describe_differences(self, inputs: Mapping[Any, Any]) -> str:
        values = {k: v for k, v in self._form.values(inputs).items() if k not in presets.EXCLUDED_KEYS}
        changed = presets.describe_changes(presets.DEFAULT_VALUES, values)
        return markup.bullets(changed) or markup.paragraph("All settings have their default values.", quiet=True)

    def _export(self, inputs: Mapping[Any, Any]) -> str:
        """Write a folder with the settings of the form and their data."""
        self._context.check_writable()
        settings, host = training_settings(self._form.values(inputs)), self._context.host
        out = host.folders.exports / settings.what.name
        datasets = find_datasets(settings.dataset_names, host.folders)
        paths = {dataset.name: dataset.path for dataset in datasets}
        write_portable_run(settings, paths, host.card(), host.folders, out)
        return markup.paragraph(
            f"{out} contains the settings and the data. Its README.txt explains how to train on another machine."
        )

    def _save_or_delete(self, button: gr.Button, inputs: Mapping[Any, Any]) -> tuple[str, Any]:
        """Save or delete the preset of the typed name, and list the presets anew."""
        name = (inputs[self._name] or "").strip()

        def act(folders: Folders) -> str:
            if button is self._delete_button:
                presets.delete(folders.presets, name)
                return f"{name} is deleted."
            presets.save(folders.presets, name, self._form.values(inputs))
            return f"Saved as {name}."

        return self._context.run_disk_action(act), gr.update(choices=self.choices(inputs[self._order]))


EXPLANATION = (
    "This command starts the same run. It includes only the settings that differ from their defaults. It also "
    "loads the model again. If there is not enough memory for two copies, quit this program first."
)
CMD_NOTE = (
    'Run this command in the Command Prompt (cmd), because PowerShell treats ", $ and ` as special characters.'
)


def cli_command_html(values: Mapping[str, Any], host: Host) -> str:
    """The form as a command to copy, or the problems of the form."""
    try:
        settings = training_settings(values)
    except SettingsError as error:
        return markup.problem(f"The form has problems, so there is no command yet.\n{error}")
    model: tuple[str, ...] = ("--model", "MODEL")
    try:
        card = host.card()
        in_user_data = host.folders.models == host.folders.user_data / "models"
        name = card.name if in_user_data else str(host.folders.models / card.name)
        model = ("--model", card.given_name or name)
        model += ("--tokenizer", card.tokenizer_name) if card.tokenizer_name else ()
        model += () if card.loading == "auto" else ("--load", card.loading)
        model += ("--max-memory", *card.max_memory.split()) if card.max_memory else ()
    except TrainingProError:  # no model is loaded
        pass
    # A Python that can train already: any other one would download PyTorch first.
    python, explanation = str(host.own_process.python if host.own_process else sys.executable), EXPLANATION
    words = [python, str(ROOT / "script.py"), "train", "--user-data", str(host.folders.user_data), *model]
    words += flags.as_arguments(settings.values())
    if os.name == "nt":
        if re.search('["$`]', "".join(words)) or " " in python:
            explanation = f"{EXPLANATION} {CMD_NOTE}"
        # In cmd an ampersand ends a command, in PowerShell a comma ends an argument, so all but these characters
        # need quotes. A backslash is doubled only before a quote: programs read it so.
        for n, word in enumerate(words):
            if not re.fullmatch(r"[\w.:/\\=+-]+", word):
                escaped = re.sub(r'(\\*)"', r'\1\1\\"', word)
                words[n] = '"' + re.sub(r"(\\+)\Z", r"\1\1", escaped) + '"'
    else:
        words = [shlex.quote(word) for word in words]
    # Lines break only between the words, so that none is cut in two when it is copied.
    spans = Markup(" ").join(map(Markup("<span>{}</span>").format, words))
    return markup.paragraph(explanation, quiet=True) + Markup('<pre class="tp-code">{}</pre>').format(spans)


def draw_layer_picker(context: PageContext, form: Form) -> None:
    """Draw a button that lists the layers, and a checkbox for each layer, after the setting that they fill in."""
    list_button = gr.Button("Pick from this model's layers", size="sm", elem_id="tp-layers")
    message = gr.HTML(elem_id="tp-layers-said", elem_classes="tp-said")
    boxes = gr.CheckboxGroup([], label="Layers", visible=False, elem_id="tp-layers-picked")

    def list_layers(targets: str | None) -> tuple[str, Any]:
        layers = context.engine.layers(context.host)
        choices = [(f"{name} ({count})", name) for name, count in layers.items()]
        chosen = [name for name in (targets or "").split() if name in layers]
        note = "The layers that you select here replace the value of Target modules."
        return markup.paragraph(note, quiet=True), gr.update(choices=choices, value=chosen, visible=True)

    targets, clears = form.components["targets"], {boxes: gr.update(visible=False)}
    outputs = [message, boxes]
    add_handler(list_button.click, list_layers, targets, outputs, what="Listing the layers", clears=clears)
    pick = lambda chosen: " ".join(chosen) or str(SETTINGS["targets"].default)  # noqa: E731
    add_handler(boxes.input, pick, boxes, targets, what="Picking layers")


class ProbePanel:
    """Two buttons in the form: one measures, the other also fills in settings that fit."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
        enabled = not context.read_only_reason()
        with gr.Row(elem_classes="tp-buttons"):
            self._test_button = gr.Button("Test one step", size="sm", interactive=enabled, elem_id="tp-probe")
            self._fit_button = gr.Button("Fit to my GPU", size="sm", interactive=enabled, elem_id="tp-fit")
        self._result = gr.HTML(elem_id="tp-probe-said", elem_classes="tp-said")
        self.made_from = gr.State()

    def connect(self) -> None:
        inputs, outputs = self._form.inputs(), [self._result, self.made_from, *self._form.components.values()]
        for button, fit in ((self._test_button, False), (self._fit_button, True)):
            add_handler(button.click, partial(self._on_click, fit=fit), inputs, outputs, what=button.value)

    async def _on_click(self, inputs: Mapping[Any, Any], *, fit: bool) -> AsyncIterator[dict[Any, Any]]:
        context, values, probed, told = self._context, self._form.values(inputs), None, list[str]()
        settings = training_settings({**values, "name": values.get("name") or "one-step"})
        work = partial(context.engine.probe, settings, context.host)
        async for message, events in context.follow_job("probe", "Testing one step", work):
            yield {self._result: message}
            probed = next((event for event in events if isinstance(event, ProbeDone)), probed)
            for event in events:
                if isinstance(event, Stage):  # what the test itself has to say comes after the last one
                    told.clear()
                elif isinstance(event, Advice):
                    told.append(event.text)
        if probed is None and told:
            yield {self._result: markup.join([message, *map(markup.paragraph, told)])}
        if probed is not None:
            changes = probed.fitting if fit else {}
            yield {
                self._result: probe_card(probed, values, told, fitted=fit),
                self.made_from: context.made_from({**values, **changes}),
                **self._form.updates(changes),
            }


def probe_card(probed: ProbeDone, values: Mapping[str, Any], told: Sequence[str], *, fitted: bool) -> str:
    """The result of the probe, with a button for settings that fit unless they are already filled in."""
    changes = presets.describe_changes(values, probed.fitting)
    if not changes:
        advice = markup.paragraph("The run fits in memory without changes." if probed.fits else NOTHING_HELPS)
    elif fitted:
        advice = markup.paragraph(f"Settings changed so that the run fits in memory: {'; '.join(changes)}.")
    else:
        answer = "The run fits in memory." if probed.fits else "The run does not fit in memory."
        advice = Markup("<p>{} {}</p>").format(answer, markup.apply_button("; ".join(changes), probed.fitting))
    mood = markup.usage_mood(probed.peak, probed.free)
    figures, notes = markup.figures(probe_figures(probed)), map(markup.paragraph, told)
    return markup.card("", markup.outdated_notice("probe"), figures, advice, *notes, mood=mood)


NOTHING_HELPS = (
    "The run does not fit in memory. Changing the batch size, gradient checkpointing or the optimizer would not "
    "help. Use a lower cutoff or rank, or a model that takes less memory."
)
