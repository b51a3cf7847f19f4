"""The Train tab: the form on the left, the run panel on the right, and what follows from a change of the form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.errors import SavingError, TrainingProError
from ...core.host import Folders
from ...records.folder import inventory
from ...settings import presets
from ...settings.definitions import SETTINGS, LoraSettings
from ...settings.live_settings import LIVE_KEYS
from ...settings.other_names import Named, find_settings, why_not_here
from ...settings.parsing import training_settings
from ...settings.rules import hidden_keys
from ...train_utils import StepPlan, date_and_time, plural
from ..base import Form, PageContext, add_handler, confirm_click, load_script, markup, page_load, refresh_choices
from ..base import form as layout
from ..run import RunPanel, small_lr_svg
from . import data_menu
from .presets_panel import PresetsPanel, ProbePanel, draw_layer_picker
from .setup_panel import SetupPanel

RESULT = '<p>{} <span class="tp-quiet">{}</span></p>'
STEP_KEYS = ("batch_size", "accumulation", "epochs", "max_steps")
ASSUMED_EXAMPLES = 400  # examples, to draw the schedule before any data are chosen
REMOVE_SUCCESS = "(...messages) => messages.map((html) => (html ?? '').includes('tp-good') ? '' : html)"


class ResumePanel:
    """A panel that is visible only if there are crashed runs."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form
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
        """Register the event handlers, after the whole form is drawn."""
        panel = [self._card, self._description, self._menu]
        outputs = [self.message, *panel, *self._form.components.values()]
        for button in (self._resume_button, self._keep_button):
            on_click = partial(self._on_click, button)
            add_handler(button.click, on_click, {self._menu}, outputs, what=button.value)
        confirm_click(
            self._delete_button,
            lambda inputs: f"Delete what {inputs[self._menu]} has saved?" if inputs[self._menu] else "",
            partial(self._on_click, self._delete_button),
            {self._menu},
            outputs,
        )
        clears = {self._card: gr.update(visible=True)}  # the message of an error stands in it
        what = "Looking for interrupted runs"
        add_handler(page_load(), self._list_runs, None, panel, what=what, clears=clears)

    def _crashed_runs(self) -> list[inventory.CrashedRun]:
        if self._context.read_only_reason():
            return []
        runs = self._context.read_disk(inventory.find_crashed_runs, ())
        return [run for run in runs if not self._context.is_training(run.name)]

    def _list_runs(self) -> dict[Any, Any]:
        lines, names = [], []
        for run in self._crashed_runs():
            when = date_and_time(run.at)
            steps = f" of {run.steps}" if run.steps else ""
            stopped = f"{run.name} stopped unexpectedly at step {run.step}{steps} ({when})."
            lines.append(f"{stopped} If you resume it, {run.lost_work}.")
            names.append(run.name)
        card = markup.card("Interrupted runs", markup.bullets(lines), mood="fair") if lines else ""
        menu = gr.update(choices=names, value=names[0] if names else None)
        return {self._card: gr.update(visible=bool(names)), self._description: card, self._menu: menu}

    def _on_click(self, button: gr.Button, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        def act(folders: Folders) -> str:
            run = next((run for run in self._crashed_runs() if run.name == inputs[self._menu]), None)
            if run is None:
                raise SavingError("This run is no longer in the list of interrupted runs. Reload the page.")
            if button is self._resume_button:  # bit for bit as if it had not crashed
                return self._context.resume_run(run.folder)
            if button is self._keep_button:
                inventory.keep_run(run, folders)
                return f"{run.name} now has the weights from step {run.safe_step}."
            inventory.discard_run(run, folders)
            return f"Discarded {run.name}."

        message = {self.message: self._context.run_disk_action(act)}
        shown = self._context.live.of(self._context.running_job("training"))
        return {**message, **self._list_runs(), **self._form.updates(shown)}


class TrainTab:
    """The components of the tab and their event handlers."""

    def __init__(self, context: PageContext, tab: gr.Tab) -> None:
        self._context = context
        self.form = Form()
        self._run_panel = RunPanel(context, self.form)
        self._folded_parts: dict[str, gr.Accordion] = {}
        status_line = gr.HTML(self._context.model_line(), elem_id="tp-line")
        self.setup = None if self._context.host.owns_process else SetupPanel(self._context)
        self._resume_panel = ResumePanel(self._context, self.form)
        with gr.Row():  # on narrow screens, its columns are stacked
            with gr.Column(scale=6, min_width=320, elem_classes="tp-form"):
                self._draw_form()
            with gr.Column(scale=7, min_width=320, elem_classes="tp-right"):
                self._run_panel.draw()
        assert self.form.components.keys() == SETTINGS.keys(), "a setting has no place on the page"
        # A hidden text box with the kind of the job on the model, for the other tabs.
        self.working = self._run_panel.working
        # The states that hold the inputs of each result on the page.
        self._made_from: dict[str, Any] = {
            "check": self._run_panel.made_from,
            "example": self._run_panel.example_browser.made_from,
            "probe": self._probe_panel.made_from,
        }
        self._presets.connect(self._refresh_button.click, self._run_panel.ended.change, tab.select)
        self._probe_panel.connect()
        self._resume_panel.connect()
        fields = [*self.form.components.values(), self._presets.menu]
        self._restored = add_handler(page_load(), self._restore_form, None, fields, what="Restoring the form")
        self._run_panel.connect(status_line, self._restored.then)
        if self.setup is not None:
            self.setup.follow_after(self._run_panel.model.change)
        self._connect_form()
        self._connect_consequences()

    def _draw_form(self) -> None:
        data_options = {"choices": data_menu.dataset_choices(self._context)}
        self._presets = PresetsPanel(self._context, self.form)
        self.form.draw_row("name", "if_exists")
        # The first dataset that a name was suggested for, or with which the form was restored.
        self._data_before, self._model_before = gr.State(""), gr.State("")
        self._name_note = gr.HTML(elem_id="tp-name-said")
        with gr.Row():
            self.form.draw("data", **data_options, scale=7)
            with gr.Column(scale=2, min_width=110):
                self._add_button = gr.UploadButton("Add files", file_count="multiple", size="sm", elem_id="tp-add")
                self._refresh_button = gr.Button("Refresh", size="sm", elem_id="tp-refresh")
        self._add_message = gr.HTML(elem_id="tp-add-said", elem_classes="tp-said")
        self._data_note = gr.HTML(data_menu.preview_data({}, self._context).html, elem_id="tp-data-said")
        for keys in layout.VISIBLE_ROWS:
            self.form.draw_row(*keys)
            if "schedule" in keys:
                self._schedule_chart = gr.HTML(elem_id="tp-schedule-drawn")
        self._summary = gr.HTML(elem_id="tp-together")
        query = gr.Textbox(
            label="Find a setting or preset",
            placeholder="For example: save steps, stop token, out of memory, cutoff_len",
            max_lines=1,
            elem_id="tp-find",
        )
        results = gr.HTML(elem_id="tp-find-results", elem_classes="tp-said")
        add_handler(query.change, results_html, query, results, what="Finding a setting")
        for title, rows in layout.FOLDED_ROWS.items():
            with gr.Accordion(title, open=False, elem_id=layout.part_id(title)) as part:
                if title in layout.PRESET_TABLES:
                    self._presets.draw_table(layout.PRESET_TABLES[title])
                for keys in rows:
                    self.form.draw_row(*keys)
                if title == layout.LORA_PART:
                    draw_layer_picker(self._context, self.form)
                if title == layout.LIVE_PART:
                    self._run_panel.buttons.draw_live()
                if title == layout.MEMORY_PART:
                    self._probe_panel = ProbePanel(self._context, self.form)
            self._folded_parts[title] = part
        with gr.Accordion("Presets", open=False, elem_id="tp-presets"):
            self._presets.draw_saving()
        self._preview = gr.State(data_menu.DataPreview())
        self._form_state = gr.HTML(layout.hiding_style(hidden_keys({}, ())), elem_id="tp-marks")
        # A hidden text box that receives the clicks from clicks.js.
        self._wish_box = gr.Textbox(label="Wish", elem_id="tp-wish", elem_classes="tp-hidden")

    def _connect_form(self) -> None:
        """Fill in the form: what the script asks for, the form of the last visit, a name, and added files."""
        parts, form, ended = self.form.components, self.form.inputs(), self._run_panel.ended.change
        fields, name, data = list(parts.values()), parts["name"], parts["data"]
        wishes = {*form, self._wish_box}
        add_handler(self._wish_box.change, self._on_wish, wishes, fields, what="Filling in the form")
        add_handler(page_load(), None, None, [], what="", js=load_script("clicks"))
        # In the browser, remove a message of success once the user changes the form or takes another action.
        messages = [self._add_message, self._presets.message, self._resume_panel.message]
        events = [field.input for field in fields]
        events += [self._wish_box.change, *self._run_panel.starting_clicks]
        add_handler(events, None, messages, messages, what="Removing a message", js=REMOVE_SUCCESS)
        live_fields = [parts[key] for key in LIVE_KEYS]
        add_handler(ended, self._restore_live, form, live_fields, what="Restoring the form")
        # Suggest a name for new data, and describe an existing LoRA of the name, also one just trained.
        before = [self._data_before, self._model_before]
        inputs, suggested = {data, name, *before}, [name, parts["if_exists"], *before]
        changes = [data.change, self._run_panel.model.change]
        add_handler(changes, self._suggest_name, inputs, suggested, what="Finding a name")
        named_by = [name, parts["if_exists"], parts["method"]]
        changes, describe = [*(part.change for part in named_by), ended], self._context.describe_existing_name
        add_handler(changes, describe, named_by, self._name_note, what="Checking the name")
        inputs, outputs = {self._add_button, *form}, [*fields, self._add_message]
        add_handler(self._add_button.upload, self._on_upload, inputs, outputs, what="Add files")
        removing = [data.input, self._refresh_button.click]
        add_handler(removing, lambda: "", None, self._add_message, what="Add files")

    def _connect_consequences(self) -> None:
        """Update the summaries after every change of the form, and the preview after a change of the data."""
        parts, form = self.form.components, self.form.inputs()
        choices = partial(data_menu.dataset_choices, self._context)
        refreshed = refresh_choices(
            self._refresh_button.click, parts["data"], choices, keep=self._existing_entries
        )
        for key in ("eval_data", "exam"):
            refreshed = refresh_choices(refreshed.then, parts[key], choices, keep=self._existing_entries)
        latest: dict[str, Any] = {"trigger_mode": "always_last"}
        consequences: dict[str, Any] = {
            "inputs": {*form, self._preview, *self._made_from.values()},
            "outputs": [self._summary, self._schedule_chart, self._form_state, *self._folded_parts.values()],
            "what": "Updating the form",
            "clears": {self._schedule_chart: ""},
        }
        preview: dict[str, Any] = {
            "inputs": form,
            "outputs": [self._data_note, self._preview],
            "what": "Reading the dataset",
            "clears": {self._preview: data_menu.DataPreview()},
        }
        add_handler([part.change for part in parts.values()], self._on_change, **consequences, **latest)
        changes = [parts[key].change for key in data_menu.EXAMPLE_KEYS]
        previewed = add_handler(changes, self._preview_data, **preview, **latest)
        add_handler(refreshed.then, self._preview_data, **preview)
        add_handler(previewed.then, self._on_change, **consequences)
        # With another model the same data have other tokens, and Check reads files that may have changed. The
        # form has not changed and is not saved.
        checked = self._run_panel.check_event
        model_changed = add_handler(self._run_panel.model.change, self._preview_data, **preview, **latest)
        read_again = add_handler(checked.then, self._preview_data, **preview)
        # A form that is restored to its defaults changes nothing, and Gradio 4.37 sends no event then. When that
        # version goes, leave out `_restored`.
        for event in (checked, model_changed, read_again, self._restored):
            add_handler(event.then, self._consequences, **consequences)

    def _on_wish(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """Fill in what a click in our HTML asks for."""
        wish = json.loads(inputs[self._wish_box] or "{}")
        values = wish.get("set", {})
        if "share" in wish:
            chosen = inputs[self.form.components["data"]] or []
            name, per_cent = wish["share"]
            # Check reports a share that is no number.
            changed = name if per_cent.strip() in ("", "100") else f"{name}:{per_cent.strip()}"
            values = {"data": [changed if data_menu.dataset_name(entry) == name else entry for entry in chosen]}
        return self.form.updates({key: value for key, value in values.items() if key in SETTINGS})

    def _existing_entries(self, entries: Sequence[str], _choices: object = None) -> Sequence[str]:
        """Those of these entries whose datasets still exist; all of them if the disk can't be read."""
        return self._context.read_disk(partial(data_menu.existing_entries, entries), entries)

    def _restore_form(self) -> dict[Any, Any]:
        """Restore the form of the last visit, with the current datasets and LoRAs."""
        choices = data_menu.dataset_choices(self._context)
        values = presets.load_form(self._context.host.folders.form)
        values.pop("if_exists", None)  # the answer for one LoRA; the next one may be another book's
        values |= self._context.live.of(self._context.running_job("training"))
        menus = {}
        for key in ("data", "eval_data", "exam"):
            last = values.pop(key, None)
            chosen = {} if last is None else {"value": self._existing_entries(last)}
            menus[self.form.components[key]] = gr.update(choices=choices, **chosen)
        menus[self._presets.menu] = gr.update(choices=self._presets.choices())
        return {**self.form.updates(values), **menus}

    def _on_change(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """Save the form, and update what follows from it."""
        if not self._context.read_only_reason():
            with suppress(TrainingProError, OSError):  # the page works without a saved form
                # The form for the next run: during a run, with the saving and stopping rules from before it.
                values = self.form.values(inputs)
                if self._context.in_run:
                    saved = presets.load_form(self._context.host.folders.form)
                    values = {key: value for key, value in values.items() if key not in LIVE_KEYS}
                    values |= {key: saved[key] for key in LIVE_KEYS if key in saved}
                presets.save_form(self._context.host.folders.form, values)
        return self._consequences(inputs)

    def _restore_live(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """After a run, put back what the form had before, where it still shows what was in force in the run."""
        unchanged = {self.form.components[key]: gr.update() for key in LIVE_KEYS}  # Gradio refuses an empty dict
        if self._context.in_run:
            return unchanged
        of_run, values = self._context.live.values, self.form.values(inputs)
        typed = presets.differing_keys(of_run, {key: values[key] for key in of_run})
        own = presets.load_form(self._context.host.folders.form)
        restored = {key: own.get(key, SETTINGS[key].default) for key in of_run if key not in typed}
        if not self._context.read_only_reason():
            with suppress(TrainingProError, OSError):  # with what was typed during the run for the next one
                rules = {key: values[key] for key in LIVE_KEYS}
                presets.save_form(self._context.host.folders.form, {**own, **rules, **restored})
        return {**unchanged, **self.form.updates(restored)}

    def _consequences(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        context, values, preview = self._context, self.form.values(inputs), inputs[self._preview]
        titles = {
            part: gr.update(label=part_title(name, layout.FOLDED_ROWS[name], values))
            for name, part in self._folded_parts.items()
        }
        text = steps_and_lora(values, preview.examples)
        # A style sheet that marks the results whose inputs have changed.
        current = context.made_from(values)
        made_from = {kind: inputs.get(state) for kind, state in self._made_from.items()}
        outdated = [kind for kind, used in made_from.items() if used and used.differs(current)]
        hiding = layout.hiding_style(hidden_keys(values, preview.kinds))
        return {
            self._summary: markup.paragraph(text, quiet=True),
            self._schedule_chart: schedule_svg(values, preview.examples),
            self._form_state: hiding + reset_buttons(values) + markup.outdated_style(outdated),
            **titles,
        }

    def _preview_data(self, inputs: Mapping[Any, Any]) -> tuple[str, data_menu.DataPreview]:
        preview = data_menu.preview_data(self.form.values(inputs), self._context)
        return preview.html, preview

    def _on_upload(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """Add uploaded files to the datasets, and select them."""
        parts, uploaded = self.form.components, inputs[self._add_button] or []
        before = list(inputs[parts["data"]] or [])
        chosen, own = [*before], dict[Any, Any]()
        message = self._context.run_disk_action(lambda folders: data_menu.add_files(folders, uploaded, chosen))
        if before == presets.DEMO["data"] != chosen[:1] and inputs[parts["name"]] == presets.DEMO["name"]:
            own = self.form.updates({**presets.DEFAULT_VALUES, "name": ""})  # the demo's are for its story
        data = gr.update(choices=data_menu.dataset_choices(self._context), value=chosen)
        return {**own, parts["data"]: data, self._add_message: message}

    def _suggest_name(self, inputs: Mapping[Any, Any]) -> tuple[Any, Any, str, str]:
        """Suggest a name from data and model, unless one is typed; the choice for the old name is undone."""
        parts, before = self.form.components, inputs[self._data_before]
        name, data = inputs[parts["name"]] or "", (inputs[parts["data"]] or [""])[0]
        suggested = data_menu.suggest_lora_name(before, "")  # with any model
        is_typed = bool(name) and not (before and (name == suggested or name.startswith(f"{suggested}-")))
        model = self._context.host.model_status().model
        suggestion = data_menu.suggest_lora_name(data, model)
        model_before = inputs[self._model_before]
        is_named = data == before and (not model or name != data_menu.suggest_lora_name(data, model_before))
        if is_typed or not data or is_named or name == suggestion:
            return gr.update(), gr.update(), data or before, model or model_before
        return suggestion, SETTINGS["if_exists"].default, data, model


def results_html(query: str) -> str:
    """Links to what the query finds, each with a sentence; a preset also has a button that fills it in."""
    if not query.strip():
        return ""
    if elsewhere := why_not_here(query.strip()):
        return markup.paragraph(elsewhere)
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


def steps_and_lora(values: Mapping[str, Any], examples: int) -> str:
    """The number of steps, and what the LoRA will be; a sentence is left out while its numbers are half-typed."""
    sentences = []
    if parsed := _parse(values, STEP_KEYS):
        per_step, steps = parsed["batch_size"] * parsed["accumulation"], ""
        if examples:
            plan = StepPlan(examples, **parsed)
            per_step, steps = plan.examples_in_step(1), f"; {plan.steps:,} {plural(plan.steps, 'step')} in total"
        sentences.append(f"Each step trains on {per_step} {plural(per_step, 'example')}{steps}.")
    if parsed := _parse(values, ("rank", "alpha", "rslora")):
        lora = LoraSettings(**parsed)
        sentences.append(f"LoRA: alpha {lora.effective_alpha:g}, scaling {lora.strength:.3g}.")
    return " ".join(sentences)


def schedule_svg(values: Mapping[str, Any], examples: int) -> str:
    """A small chart of the schedule; empty while a setting is half-typed."""
    try:
        settings = training_settings({**values, "name": "look", "data": ["look"]})
    except TrainingProError:
        return ""
    return small_lr_svg(settings, settings.steps.plan(examples or ASSUMED_EXAMPLES))


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
