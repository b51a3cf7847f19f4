"""The Train tab: the form on the left, the run panel on the right."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import gradio as gr

from ...core.errors import SavingError, TrainingProError
from ...core.host import Folders
from ...records.folder import crashed_runs
from ...settings import presets
from ...settings.definitions import SETTINGS
from ...settings.live_settings import LIVE_KEYS
from ...settings.rules import hidden_keys
from ..base import (
    Form,
    PageContext,
    ResultKind,
    add_handler,
    confirm_click,
    describe_existing_name,
    load_script,
    markup,
    model_line,
    on_load,
    outdated_style,
    refresh_choices,
    resume_run,
    setting_layout,
)
from ..run import RunPanel
from . import data_menu, summary
from .data_menu import EXAMPLE_KEYS, DataPreview, preview_data
from .presets_panel import LayerPicker, PresetsPanel
from .probe_panel import ProbePanel
from .summary import SettingSearch


class JsBridge:
    """A hidden text box that receives the clicks from the script."""

    def __init__(self, form: Form) -> None:
        self._form = form

    def draw(self) -> None:
        self.request_box = gr.Textbox(label="Wish", elem_id="tp-wish", elem_classes="tp-hidden")

    def connect(self) -> None:
        """Register the event handlers, after the whole form is drawn."""
        outputs = list(self._form.components.values())
        inputs = {*self._form.inputs(), self.request_box}
        add_handler(self.request_box.change, self._fill_form, inputs, outputs, what="Filling in the form")
        on_load(None, [], js=load_script("clicks"))

    def _fill_form(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        request = json.loads(inputs[self.request_box] or "{}")
        values = request.get("set", {})
        if "share" in request:
            chosen = inputs[self._form.components["data"]] or []
            values = {"data": data_menu.set_share(chosen, *request["share"])}
        return self._form.updates({key: value for key, value in values.items() if key in SETTINGS})


RunAction = Callable[[crashed_runs.CrashedRun, Folders], str]


class ResumePanel:
    """A panel that is visible only if there are crashed runs."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form

    def draw(self) -> None:
        self._card = gr.Group(visible=False, elem_id="tp-unfinished")
        with self._card:
            self._description = gr.HTML(elem_id="tp-unfinished-said")
            with gr.Row(elem_classes="tp-buttons"):
                self._menu = gr.Dropdown(
                    [], label="Run", allow_custom_value=True, min_width=160, elem_id="tp-unfinished-run"
                )
                self._resume_button = gr.Button("Resume", variant="primary", elem_id="tp-unfinished-go-on")
                self._keep_button = gr.Button("Keep as is", elem_id="tp-unfinished-keep")
                self._delete_button = gr.Button("Discard", elem_id="tp-unfinished-throw")
        self.message = gr.HTML(elem_id="tp-unfinished-done", elem_classes="tp-said")

    def connect(self) -> None:
        panel = [self._card, self._description, self._menu]
        outputs = [self.message, *panel, *self._form.components.values()]
        for button, action in (
            (self._resume_button, self._resume),
            (self._keep_button, self._keep),
        ):
            on_click = partial(self._on_click, action)
            add_handler(button.click, on_click, {self._menu}, outputs, what=button.value)
        confirm_click(
            self._delete_button,
            lambda inputs: f"Delete what {inputs[self._menu]} has saved?" if inputs[self._menu] else "",
            partial(self._on_click, self._delete),
            {self._menu},
            outputs,
        )
        options: dict[str, Any] = {
            "what": "Looking for interrupted runs",
            "clears": {self._card: gr.update(visible=True)},
        }
        on_load(self._panel_updates, panel, **options)

    def _panel_updates(self) -> tuple[Any, str, Any]:
        runs = self._crashed_runs()
        card = (
            markup.card("Interrupted runs", markup.bullets(map(describe_crashed_run, runs)), mood="fair")
            if runs
            else ""
        )
        names = [run.name for run in runs]
        return gr.update(visible=bool(runs)), card, gr.update(choices=names, value=names[0] if names else None)

    def _crashed_runs(self) -> list[crashed_runs.CrashedRun]:
        if self._context.read_only_reason():
            return []
        runs = self._context.read_disk(crashed_runs.find_crashed_runs, ())
        return [run for run in runs if not self._context.is_training(run.name)]

    def _on_click(self, action: RunAction, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        def run_action(folders: Folders) -> str:
            run = next((run for run in self._crashed_runs() if run.name == inputs[self._menu]), None)
            if run is None:
                raise SavingError("This run is no longer in the list of interrupted runs. Reload the page.")
            return action(run, folders)

        message = {self.message: self._context.run_disk_action(run_action)}
        panel = zip((self._card, self._description, self._menu), self._panel_updates(), strict=True)
        shown = self._form.updates(self._context.live_values) if self._context.in_run else {}
        return {**message, **dict(panel), **shown}

    def _resume(self, run: crashed_runs.CrashedRun, folders: Folders) -> str:
        """Resume the run, bit for bit as if it had not crashed."""
        return resume_run(self._context, run.name)

    def _keep(self, run: crashed_runs.CrashedRun, folders: Folders) -> str:
        crashed_runs.keep_run(run, folders)
        return f"{run.name} is now a LoRA with the weights from step {run.safe_step}."

    def _delete(self, run: crashed_runs.CrashedRun, folders: Folders) -> str:
        crashed_runs.discard_run(run, folders)
        return f"Discarded {run.name}."


def describe_crashed_run(run: crashed_runs.CrashedRun) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.at))
    steps = f" of {run.steps}" if run.steps else ""
    return (
        f"{run.name} stopped unexpectedly at step {run.step}{steps} ({when}). If you resume it, {run.lost_work}."
    )


REMOVE_SUCCESS = "(...messages) => messages.map((html) => (html ?? '').includes('tp-good') ? '' : html)"


class TrainTab:
    """The components of the tab and their event handlers."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._form = Form()
        self._js_bridge = JsBridge(self._form)
        self._presets = PresetsPanel(context, self._form)
        self._run_panel = RunPanel(context, self._form)
        self._probe_panel = ProbePanel(context, self._form)
        self._resume_panel = ResumePanel(context, self._form)
        self._layer_picker = LayerPicker(context, self._form)
        self._setting_search = SettingSearch()
        self._folded_parts: dict[str, gr.Accordion] = {}

    @property
    def form(self) -> Form:
        """The form, for the other tabs."""
        return self._form

    @property
    def working(self) -> Any:
        """A hidden text box with the kind of the job on the model, for the other tabs."""
        return self._run_panel.working

    def draw(self, tab: gr.Tab) -> None:
        """Draw the form on the left and the run panel on the right; on narrow screens they are stacked."""
        self._status_line = gr.HTML(model_line(self._context), elem_id="tp-line")
        self._resume_panel.draw()
        with gr.Row():
            with gr.Column(scale=6, min_width=320, elem_classes="tp-form"):
                self._draw_form()
            with gr.Column(scale=7, min_width=320, elem_classes="tp-right"):
                self._run_panel.draw()
        assert not list(self._form.undrawn()), "a setting has no place on the page"
        refresh = self._refresh_button.click
        self._presets.connect(refresh, self._run_panel.ended.change, tab.select)
        self._probe_panel.connect()
        self._resume_panel.connect()
        self._layer_picker.connect()
        self._setting_search.connect()
        self._run_panel.connect(self._status_line)
        self._connect_name()
        # In the browser, remove a message of success once the user changes the form or takes another action.
        messages = [self._add_message, self._presets.message, self._resume_panel.message]
        events = [part.input for part in self._form.components.values()]
        events += [self._js_bridge.request_box.change, *self._run_panel.starting_clicks]
        add_handler(events, None, messages, messages, what="Removing a message", js=REMOVE_SUCCESS)
        outputs = [*self._form.components.values(), self._presets.menu]
        restored = on_load(self._restore_form, outputs, what="Restoring the form")
        self._connect_consequences(self._connect_data(refresh), restored)
        live_fields, inputs = [self._form.components[key] for key in LIVE_KEYS], self._form.inputs()
        ended = self._run_panel.ended.change
        add_handler(ended, self._restore_live, inputs, live_fields, what="Restoring the form")
        self._js_bridge.connect()

    def _draw_form(self) -> None:
        data_options = {"choices": data_menu.dataset_choices(self._context), "allow_custom_value": True}
        self._presets.draw()
        self._form.draw_row("name", "if_exists")
        # The first dataset that a name was suggested for, or with which the form was restored.
        self._data_before = gr.State("")
        self._name_note = gr.HTML(elem_id="tp-name-said")
        with gr.Row():
            self._form.draw("data", **data_options, scale=7)
            with gr.Column(scale=2, min_width=110):
                self._add_button = gr.UploadButton("Add files", file_count="multiple", size="sm", elem_id="tp-add")
                self._refresh_button = gr.Button("Refresh", size="sm", elem_id="tp-refresh")
        self._add_message = gr.HTML(elem_id="tp-add-said", elem_classes="tp-said")
        self._data_note = gr.HTML(preview_data({}, self._context).html, elem_id="tp-data-said")
        for keys in setting_layout.VISIBLE_ROWS:
            self._form.draw_row(*keys)
            if "schedule" in keys:
                self._schedule_chart = gr.HTML(elem_id="tp-schedule-drawn")
        self._summary = gr.HTML(elem_id="tp-together")
        self._setting_search.draw()
        for title, rows in setting_layout.FOLDED_ROWS.items():
            with gr.Accordion(title, open=False, elem_id=setting_layout.part_id(title)) as part:
                if title in setting_layout.PRESET_TABLES:
                    self._presets.draw_table(setting_layout.PRESET_TABLES[title])
                for keys in rows:
                    self._form.draw_row(*keys, **(data_options if keys == ("eval_data",) else {}))
                if title == setting_layout.LORA_PART:
                    self._layer_picker.draw()
                if title == setting_layout.LIVE_PART:
                    self._run_panel.draw_live()
                if title == setting_layout.MEMORY_PART:
                    self._probe_panel.draw()
            self._folded_parts[title] = part
        with gr.Accordion("Presets", open=False, elem_id="tp-presets"):
            self._presets.draw_saving()
        self._preview = gr.State(DataPreview())
        hidden = hidden_keys({}, ())
        self._form_state = gr.HTML(setting_layout.hiding_style(hidden), elem_id="tp-marks")
        self._js_bridge.draw()

    def _connect_name(self) -> None:
        """Suggest a name for new data, and describe an existing LoRA of the name, also one just trained."""
        parts, name = self._form.components, self._form.components["name"]
        data = parts["data"]
        suggested = [name, parts["if_exists"], self._data_before]
        inputs = {data, name, self._data_before}
        add_handler(data.change, self._suggest_name, inputs, suggested, what="Finding a name")
        inputs = {name, parts["if_exists"], parts["method"]}
        changes = [*(part.change for part in inputs), self._run_panel.ended.change]
        add_handler(changes, self._describe_name, inputs, self._name_note, what="Checking the name")

    def _connect_data(self, refresh: Any) -> Any:
        """Upload data and refresh their menus. Returns the last event of a refresh."""
        data, message = self._form.components["data"], self._add_message
        outputs = [data, message]
        add_handler(self._add_button.upload, self._on_upload, {self._add_button, data}, outputs, what="Add files")
        add_handler([data.input, refresh], lambda: "", None, message, what="Add files")
        list_data = partial(data_menu.dataset_choices, self._context)
        refreshed = refresh_choices(refresh, data, list_data, keep=self._existing_entries)
        eval_data = self._form.components["eval_data"]
        return refresh_choices(refreshed.then, eval_data, list_data, keep=self._existing_entries)

    def _existing_entries(self, entries: Sequence[str], _choices: object = None) -> Sequence[str]:
        """Those of these entries whose datasets still exist; all of them if the disk can't be read."""
        return self._context.read_disk(partial(data_menu.existing_entries, entries), entries)

    def _connect_consequences(self, refreshed: Any, restored: Any) -> None:
        """Update the summaries after every change of the form, and the preview after a change of the data."""
        parts, form = self._form.components, self._form.inputs()
        latest: dict[str, Any] = {"trigger_mode": "always_last"}
        consequences: dict[str, Any] = {
            "inputs": {*form, self._preview, *self._result_inputs().values()},
            "outputs": [self._summary, self._schedule_chart, self._form_state, *self._folded_parts.values()],
            "what": "Updating the form",
            "clears": {self._schedule_chart: ""},
        }
        preview: dict[str, Any] = {
            "inputs": form,
            "outputs": [self._data_note, self._preview],
            "what": "Reading the dataset",
            "clears": {self._preview: DataPreview()},
        }
        add_handler([c.change for c in parts.values()], self._on_change, **consequences, **latest)
        changes = [parts[key].change for key in EXAMPLE_KEYS]
        previewed = add_handler(changes, self._preview_data, **preview, **latest)
        add_handler(refreshed.then, self._preview_data, **preview)
        add_handler(previewed.then, self._on_change, **consequences)
        # With another model the same data have other tokens, and Check reads files that may have changed. The
        # form has not changed and is not saved.
        checked = self._run_panel.check_event
        model_changed = add_handler(self._run_panel.model.change, self._preview_data, **preview, **latest)
        read_again = add_handler(checked.then, self._preview_data, **preview)
        # A form that is restored to its defaults changes nothing, and Gradio 4 sends no event then.
        for event in (checked, model_changed, read_again, restored):
            add_handler(event.then, self._consequences, **consequences)

    def _result_inputs(self) -> dict[ResultKind, Any]:
        """The states that hold the inputs of each result on the page."""
        return {
            "check": self._run_panel.made_from,
            "example": self._run_panel.example_browser.made_from,
            "probe": self._probe_panel.made_from,
        }

    def _restore_form(self) -> dict[Any, Any]:
        """Restore the form of the last visit, with the current datasets and LoRAs."""
        choices = data_menu.dataset_choices(self._context)
        try:
            values = presets.load_form(self._context.host.folders.form)
        except TrainingProError:
            values = {}
        values.pop("if_exists", None)  # the answer for one LoRA; the next one may be another book's
        if self._context.in_run:
            values |= self._context.live_values
        menus = {}
        for key in ("data", "eval_data"):
            last = values.pop(key, None)
            chosen = {} if last is None else {"value": self._existing_entries(last)}
            menus[self._form.components[key]] = gr.update(choices=choices, **chosen)
        return {**self._form.updates(values), **menus, self._presets.menu: self._presets.refresh_menu()}

    def _on_change(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """Save the form, and update what follows from it."""
        if not self._context.read_only_reason():
            with suppress(TrainingProError, OSError):  # the page works without a saved form
                # The form for the next run: during a run, with the saving and stopping rules from before it.
                values = self._form.values(inputs)
                if self._context.in_run:
                    saved = presets.load_form(self._context.host.folders.form)
                    values = {key: value for key, value in values.items() if key not in LIVE_KEYS}
                    values |= {key: saved[key] for key in LIVE_KEYS if key in saved}
                presets.save_form(self._context.host.folders.form, values)
        return self._consequences(inputs)

    def _restore_live(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """After a run, put back what the form had before, where it still shows what was in force in the run."""
        unchanged = {self._form.components[key]: gr.update() for key in LIVE_KEYS}  # Gradio refuses an empty dict
        if self._context.in_run:
            return unchanged
        of_run, values = self._context.live_values, self._form.values(inputs)
        typed = presets.differing_keys(of_run, {key: values[key] for key in of_run})
        own = presets.load_form(self._context.host.folders.form)
        restored = {key: own.get(key, SETTINGS[key].default) for key in of_run if key not in typed}
        return {**unchanged, **self._form.updates(restored)}

    def _consequences(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """Updates of the parts that follow from the form."""
        values, preview = self._form.values(inputs), inputs[self._preview]
        titles = {
            part: gr.update(label=summary.part_title(name, setting_layout.FOLDED_ROWS[name], values))
            for name, part in self._folded_parts.items()
        }
        steps, lora = summary.step_summary(values, preview.examples), summary.lora_summary(values, self._config())
        text = f"{steps} {lora}".strip()
        hidden = hidden_keys(values, preview.kinds)
        # A style sheet that marks the results whose inputs have changed.
        current = self._context.made_from(self._form.values(inputs))
        made_from = {kind: inputs.get(state) for kind, state in self._result_inputs().items()}
        return {
            self._summary: markup.paragraph(text, quiet=True),
            self._schedule_chart: summary.schedule_svg(values, preview.examples),
            self._form_state: setting_layout.hiding_style(hidden)
            + summary.reset_buttons(values)
            + outdated_style(kind for kind, used in made_from.items() if used and used.differs(current)),
            **titles,
        }

    def _config(self) -> Mapping[str, Any]:
        """The config of the loaded or chosen model; empty if there is none."""
        if self._context.host.model_status().problem:
            return {}
        try:
            return self._context.host.card().config
        except TrainingProError:
            return {}

    def _preview_data(self, inputs: Mapping[Any, Any]) -> tuple[str, DataPreview]:
        """Preview the chosen data."""
        preview = preview_data(self._form.values(inputs), self._context)
        return preview.html, preview

    def _on_upload(self, inputs: Mapping[Any, Any]) -> tuple[Any, str]:
        """Add uploaded files to the datasets, and select them."""
        added: list[data_menu.AddedFile] = []

        def add_files(folders: Folders) -> str:
            added.extend(data_menu.add_files(folders, inputs[self._add_button] or []))
            return " ".join(file.message for file in added)

        message = self._context.run_disk_action(add_files)
        chosen = data_menu.merge_chosen(inputs[self._form.components["data"]] or [], added)
        return gr.update(choices=data_menu.dataset_choices(self._context), value=chosen), message

    def _suggest_name(self, inputs: Mapping[Any, Any]) -> tuple[Any, Any, str]:
        """Suggest a name from data and model, unless one is typed; the choice for the old name is undone."""
        parts, before = self._form.components, inputs[self._data_before]
        name, data = inputs[parts["name"]] or "", (inputs[parts["data"]] or [""])[0]
        is_typed = bool(name) and not (before and data_menu.is_suggested(name, before))
        if is_typed or not data or data == before:
            return gr.update(), gr.update(), data or before
        suggestion = data_menu.suggest_lora_name(data, self._context.host.model_status().model)
        return suggestion, SETTINGS["if_exists"].default, data

    def _describe_name(self, inputs: Mapping[Any, Any]) -> str:
        """Describe an existing LoRA of this name, unless it is being trained right now."""
        values = self._form.values(inputs)
        name, if_exists, method = (values[key] or "" for key in ("name", "if_exists", "method"))
        return describe_existing_name(self._context, name, if_exists, method)
