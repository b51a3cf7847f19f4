"""The Runs tab: the list of runs, and beside it the chosen run with its actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.errors import TrainingProError, error_message
from ...core.host import Folders
from ...core.jobs import progress_text
from ...core.own_environment import State, own_environment
from ...records.folder import PARAMETERS, LoraEntry, inventory
from ...records.remote import read_progress
from ...records.report import write_missing_report
from ...settings import files, presets
from ...train_utils import size
from ..base import Form, PageContext, StopButton, add_handler, confirm_click, markup, refresh_choices
from . import run_actions, run_list

# An action on the disk: it gets the inputs of the tab, and returns its message.
DiskAction = Callable[[Mapping[Any, Any], Folders], str]
# The requests to a run in progress, by the labels of their buttons.
REMOTE_LABELS = {
    "stop": "Stop",
    "pause": "Pause",
    "resume": "Resume",
    "save": "Save checkpoint",
    "wind-down": "Wind down",
    "sample": "Sample",
    "evaluate": "Evaluate",
}
ACTION_HELP = {
    "Resume": "continue a run that was stopped or failed.",
    "Attach LoRA": (
        "load the LoRA onto the model and keep it there, for example for the webui's chat. You don't need this "
        "for the 'Try it' tab."
    ),
    "Copy settings to the form": "fill in the form on the Train tab with the settings of this run.",
    "Test LoRA": (
        "measure how much of your data the LoRA memorized, and what the model forgot. This takes a few minutes."
    ),
    "Compare with": "show two runs side by side.",
    "Shrink older checkpoints": "keep only their LoRAs, to save space. After that, you can't resume from them.",
    "Move to trash": "remove the run or checkpoint from all lists. To undo this, press 'Restore last deleted'.",
    "Copy to a new LoRA": "save a separate LoRA under the new name.",
    "Merge into model": "save a new model that includes the LoRA, under the new name.",
    "Export GGUF": "save the LoRA as a file for llama.cpp.",
}
# Options of the handlers that show a run: an earlier answer that comes later would show an earlier choice.
IN_ORDER: dict[str, Any] = {"concurrency_id": "training_pro_run_card", "concurrency_limit": 1}
CHOOSE_HINT = markup.paragraph("Choose a run in the list to see its loss curve and checkpoints.", quiet=True)


class RunsTab:
    """A list of all runs on the left; the chosen run or checkpoint and its actions on the right."""

    def __init__(self, context: PageContext, tab: gr.Tab, form: Form) -> None:
        self._context, self._form = context, form
        enabled = not self._context.read_only_reason()
        with gr.Row():
            with gr.Column(scale=7, min_width=320):
                # The filter and the list, and hidden boxes that take the clicks in it.
                with gr.Row(elem_classes="tp-buttons"):
                    self._filter = gr.Textbox(
                        label="Filter",
                        placeholder="Words from the name, model, note, status or date",
                        max_lines=1,
                        min_width=200,
                        scale=4,
                        elem_id="tp-runs-filter",
                    )
                    self._refresh_button = gr.Button("Refresh", size="sm", min_width=90, scale=1)
                self._table = gr.HTML(elem_id="tp-runs-table")
                options: dict[str, Any] = {"max_lines": 1, "elem_classes": "tp-hidden"}
                self._chosen = gr.Textbox(label="Chosen run", elem_id=run_list.CHOSEN_BOX, **options)
                self._other = gr.Textbox(label="Run to compare with", elem_id=run_list.OTHER_BOX, **options)
                self._sort = gr.Textbox(
                    run_list.NEWEST_FIRST, label="Sort by", elem_id=run_list.SORT_BOX, **options
                )
                self._runs, self._picking = gr.State([]), gr.State(False)
            with gr.Column(scale=6, min_width=320, elem_id="tp-runs-side"):
                self._comparison = gr.HTML(elem_id="tp-runs-compared", elem_classes="tp-said")
                self._run_card = gr.HTML(CHOOSE_HINT, elem_id="tp-runs-one")
                # The style sheet hides the actions if no run is chosen.
                with gr.Column(elem_classes="tp-run-actions"):
                    self._draw_actions(interactive=enabled)
                # Below the buttons: a message above them would move another button under the mouse.
                self._status = gr.HTML(elem_id="tp-runs-said", elem_classes="tp-said")
                options = {"size": "sm", "interactive": enabled}
                with gr.Row(elem_classes="tp-buttons"):
                    self._undo_button = gr.Button("Restore last deleted", elem_id="tp-runs-undo", **options)
                    self._empty_button = gr.Button("Empty trash", elem_id="tp-runs-empty", **options)
                    options["visible"] = False
                    self._environment_button = gr.Button(
                        "Remove training environment", elem_id="tp-runs-environment", **options
                    )
        # What decides which rows the list shows, and how; and what a new list of the runs changes.
        self._view = {self._runs, self._chosen, self._other, self._filter, self._sort, self._picking}
        self._lists = [self._table, self._runs, self._chosen, self._other, self._environment_button]
        # The buttons that need a saved LoRA; and what depends on the chosen run, besides its card and its note.
        use = [self._attach_button, self._test_button]
        self._lora_buttons = [*use, self._copy_button, self._merge_button, self._gguf_button]
        self._run_controls = [self._resume_button, self._remote_row, self._missing_lora, *self._lora_buttons]
        self._connect_list(tab)
        self._connect_disk_actions()
        self._connect_other_actions()

    def _draw_actions(self, *, interactive: bool) -> None:
        """The buttons for the chosen run; those that need a note or a name follow its box."""
        changes: dict[str, Any] = {"interactive": interactive}
        with gr.Row(elem_classes="tp-buttons", visible=False, elem_id="tp-runs-remote") as self._remote_row:
            self._remote_buttons = {
                request: gr.Button(label, size="sm") for request, label in REMOTE_LABELS.items()
            }
        self._missing_lora = gr.HTML(elem_classes="tp-said", elem_id="tp-runs-no-lora")
        with gr.Row(elem_classes="tp-buttons"):
            self._resume_button = gr.Button("Resume", visible=False, elem_id="tp-runs-resume")
            self._attach_button = gr.Button("Attach LoRA", elem_id="tp-runs-attach", **changes)
            self._settings_button = gr.Button("Copy settings to the form", elem_id="tp-runs-settings")
            self._test_button = gr.Button("Test LoRA", elem_id="tp-runs-test", **changes)
            self._stop_button = StopButton(self._context, "evidence", "tp-runs-stop")
            self._compare_button = gr.Button("Compare with", elem_id="tp-runs-compare")
            self._slim_button = gr.Button("Shrink older checkpoints", elem_id="tp-runs-slim", **changes)
            self._delete_button = gr.Button("Move to trash", elem_id="tp-runs-delete", **changes)
        with gr.Row(elem_classes="tp-buttons"):
            self._note = gr.Textbox(label="Note", max_lines=3, elem_id="tp-runs-note", scale=4)
            self._note_button = gr.Button("Save note", elem_id="tp-runs-keep", **changes)
        self._name = gr.Textbox(label="New name", max_lines=1, elem_id="tp-runs-name")
        with gr.Row(elem_classes="tp-buttons"):
            self._copy_button = gr.Button("Copy to a new LoRA", elem_id="tp-runs-own", **changes)
            self._merge_button = gr.Button("Merge into model", elem_id="tp-runs-merge", **changes)
            self._gguf_button = gr.Button("Export GGUF", elem_id="tp-runs-gguf", **changes)
        explained = (Markup("<b>{}</b>: {}").format(*entry) for entry in ACTION_HELP.items())
        gr.HTML(markup.fold("What the buttons do", markup.bullets(explained, quiet=True)))

    def _connect_list(self, tab: gr.Tab) -> None:
        """The list, the choice in it, and the comparison with a second run."""
        chosen, other = self._chosen, self._other
        opened = [tab.select, self._refresh_button.click]
        add_handler(opened, self._list_runs, self._view, self._lists, what="Listing the runs")
        # The choice too: a list that was filtered before the click arrives after it, without the mark.
        changes = [self._filter.change, self._sort.change, chosen.change]
        options: dict[str, Any] = {"trigger_mode": "always_last", "what": "Listing the runs"}
        add_handler(changes, self._list_html, self._view, self._table, **options)
        # A click on a row shows the run, or the comparison if the user picks a second run.
        shown = [self._run_card, self._note, *self._run_controls]
        options = {"what": "Reading the run", "clears": {self._note: ""}, **IN_ORDER}
        for event in (chosen.change, self._refresh_button.click):
            add_handler(event, self._show_run, chosen, shown, **options)
        # The message and the new name are about the run that was chosen before.
        after, forget = [self._status, self._name], lambda name: ("" if name else gr.update(), "")
        add_handler(chosen.change, forget, chosen, after, what="Reading the run")
        picking, what = [self._status, self._picking, self._table], "Comparing the runs"
        add_handler(self._compare_button.click, self._on_compare, self._view, picking, what=what)
        both = [chosen.change, other.change]
        add_handler(both, self._show_comparison, [chosen, other], self._comparison, what=what)
        add_handler(
            other.change,
            lambda inputs: ("", False, self._list_html({**inputs, self._picking: False})),
            self._view,
            picking,
            what=what,
        )
        if (working := self._context.working) is not None:  # a run that has ended is shown so
            add_handler(working.change, self._list_runs, self._view, self._lists, what="Listing the runs")
            self._read_state_after(working.change)

    def _connect_disk_actions(self) -> None:
        """Each button does its action, then the list is shown anew, and then the run that is chosen by then."""
        context, chosen, name, note = self._context, self._chosen, self._name, self._note
        actions: dict[Any, DiskAction] = {
            self._delete_button: lambda given, folders: run_actions.delete(context, given[chosen], folders),
            self._undo_button: lambda _, folders: run_actions.restore_latest(folders),
            self._copy_button: lambda given, folders: run_actions.copy_lora(given[chosen], given[name], folders),
            self._note_button: lambda given, folders: run_actions.save_note(given[chosen], given[note], folders),
            self._gguf_button: lambda given, folders: run_actions.export_gguf(
                context, given[chosen], given[name], folders
            ),
        }
        inputs, outputs = {*self._view, name, note}, [self._status, *self._lists]
        for button, action in actions.items():
            done = add_handler(button.click, self._disk_handler(action), inputs, outputs, what=button.value)
            self._read_state_after(done.then)
        # These ask before they do it.
        confirmed: dict[Any, tuple[Callable[[Mapping[Any, Any]], str], DiskAction]] = {
            self._slim_button: (
                lambda given: run_actions.slim_question(context, given[chosen]),
                lambda given, folders: run_actions.slim(given[chosen], folders),
            ),
            self._empty_button: (
                lambda _: run_actions.empty_question(context),
                lambda _, folders: run_actions.empty_trash(folders),
            ),
            self._environment_button: (
                lambda _: f"Remove it ({size(own_environment(context.host.folders).size)})?",
                lambda _, folders: context.remove_environment(folders),
            ),
        }
        for button, (question, action) in confirmed.items():
            done = confirm_click(button, question, self._disk_handler(action), self._view, outputs)
            self._read_state_after(done.then)
            if button is self._environment_button:
                self.environment_removed = done.then

    def _connect_other_actions(self) -> None:
        """The buttons that start a job on the model, fill in the form, or send a request to the run."""
        context, chosen, status = self._context, self._chosen, self._status
        for request, button in self._remote_buttons.items():
            send = partial(run_actions.send, context, request)
            add_handler(button.click, send, chosen, status, what=button.value)
        fields = [status, *self._form.components.values()]
        add_handler(
            self._resume_button.click,
            lambda name: {status: run_actions.resume(context, name), **self._form.updates(context.live.values)},
            chosen,
            fields,
            what="Resuming the run",
        )

        def copy_settings(name: str | None) -> dict[Any, Any]:
            folders = context.host.folders
            folder = run_actions.run_folder(name, folders)
            loaded = files.load_settings(folder / PARAMETERS, folders.datasets)
            said = " ".join((f"The form on the Train tab now has the settings of {folder.name}.", *loaded.notes))
            message = markup.card("", markup.paragraph(said), mood="good")
            return {status: message, **self._form.updates(presets.copied(loaded.values))}

        add_handler(self._settings_button.click, copy_settings, chosen, fields, what="Copying the settings")
        attach, measure = partial(run_actions.attach, context), partial(run_actions.measure, context)
        add_handler(self._attach_button.click, attach, chosen, status, what="Attaching the LoRA")
        add_handler(self._test_button.click, measure, chosen, status, what="Testing the LoRA")
        self._stop_button.connect(status)
        inputs = [chosen, self._name, self._form.components["shard_size"]]
        merge = partial(run_actions.merge, context)
        merged = add_handler(self._merge_button.click, merge, inputs, status, what="Merging the LoRA")
        if context.models:
            refresh_choices(merged.then, context.models, context.host.models)

    def _read_state_after(self, event: Any) -> None:
        """After this event, show the chosen run as it is now, but keep its note, which may be edited meanwhile."""
        shown, read = [self._run_card, *self._run_controls], partial(self._show_run, with_note=False)
        add_handler(event, read, self._chosen, shown, what="Reading the run", **IN_ORDER)

    def _disk_handler(self, action: DiskAction) -> Callable[[Mapping[Any, Any]], dict[Any, Any]]:
        """A handler that runs the action, and shows the new list afterwards."""

        def on_click(inputs: Mapping[Any, Any]) -> dict[Any, Any]:
            message = self._context.run_disk_action(partial(action, inputs))
            return {self._status: message, **self._list_runs(inputs)}

        return on_click

    def _list_runs(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """Read the runs; a chosen run that no longer exists is deselected, which also clears its card."""
        boxes = (self._chosen, self._other)
        # A choice that stays is not sent: the user may have chosen another run in the meantime.
        unchanged = {box: gr.update() for box in boxes}
        try:
            runs = run_list.list_runs(self._context.host.folders)
        except (TrainingProError, OSError) as error:
            problem = markup.problem(error_message(error))
            return {**unchanged, self._table: problem, self._runs: inputs.get(self._runs, [])}
        names = {name for run in runs for name in run.entry.names}
        gone = {box: "" for box in boxes if (inputs.get(box) or "") not in {"", *names}}
        environment = own_environment(self._context.host.folders)
        has_environment = environment.state is not State.MISSING
        text = f"The training environment takes {size(environment.size)}." if has_environment else ""
        parts = [self._list_html({**inputs, **gone, self._runs: runs}), markup.paragraph(text, quiet=True)]
        button = gr.update(visible=has_environment)
        shown = {self._table: markup.join(parts), self._runs: runs, self._environment_button: button}
        return {**unchanged, **gone, **shown}

    def _list_html(self, inputs: Mapping[Any, Any]) -> str:
        """The list as this page filters and sorts it."""
        boxes, picking = (self._filter, self._sort, self._chosen), bool(inputs.get(self._picking))
        runs, words = inputs.get(self._runs) or [], (inputs.get(box) or "" for box in boxes)
        return run_list.list_html(runs, *words, picking=picking)

    def _show_run(self, name: str | None, *, with_note: bool = True) -> dict[Any, Any]:
        """The card of the run, its note, and what can be done with it."""
        context, run = self._context, self._find_run(name)
        folders, enabled = context.host.folders, not context.read_only_reason()
        if run is not None and enabled:
            write_missing_report(run.folder, folders)
        in_progress, progress = run is not None and run.status == "in progress", ""
        if run is not None and in_progress:
            now = progress_text(read_progress(run.name, folders)).rstrip(".")
            progress = markup.paragraph(f"In progress: {now}.")
        reason = run_actions.describe_missing_lora(run, name or "")
        return {
            self._run_card: run_list.run_card(run, name or "", progress) if run else CHOOSE_HINT,
            **({self._note: run.note if run else ""} if with_note else {}),
            # Not for a finished run, or one without a complete checkpoint.
            self._resume_button: gr.update(
                visible=run is not None and not in_progress and context.can_resume(run.name), interactive=enabled
            ),
            self._remote_row: gr.update(visible=in_progress and enabled),
            self._missing_lora: markup.paragraph(reason, quiet=True) if reason else "",
            **{button: gr.update(interactive=enabled and not reason) for button in self._lora_buttons},
        }

    def _on_compare(self, inputs: Mapping[Any, Any]) -> tuple[str, bool, str]:
        """The next click on a row picks the other run; a second press of the button cancels that."""
        name = run_list.run_name(run_actions.require_choice(inputs[self._chosen]))
        picking = not inputs[self._picking]
        hint = f"In the list, choose the run that you want to compare with {name}."
        table = self._list_html({**inputs, self._picking: picking})
        return markup.card("", markup.paragraph(hint)) if picking else "", picking, table

    def _show_comparison(self, chosen: str | None, other: str | None) -> str:
        """The comparison, if two different runs are chosen."""
        run, second = self._find_run(chosen), self._find_run(other)
        return run_list.comparison_html(run, second) if run and second and run.folder != second.folder else ""

    def _find_run(self, name: str | None) -> LoraEntry | None:
        """The run, or None if none is chosen or it no longer exists."""
        return self._context.read_disk(
            lambda folders: inventory.read_entry(run_actions.run_folder(name, folders), folders), None
        )
