"""The Runs tab: the list of runs, and beside it the chosen run with its actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.engine import GgufRequest
from ...core.errors import SavingError, TrainingProError, error_message
from ...core.files import describe_unusable
from ...core.host import Folders
from ...records.folder import LoraEntry, copy_as_lora, inventory, loras, run_files, trash
from ...records.report import write_missing_report
from ...settings.name_rules import name_problem
from ...train_utils import format_count, plural, size
from ..base import Form, PageContext, add_handler, confirm_click, markup
from .run_actions import MergePanel, RemotePanel, UsePanel, describe_missing_lora, progress_line, require_choice
from .run_card import comparison_html, run_card
from .run_list import (
    CHOSEN_BOX,
    LIMIT_BOX,
    NEWEST_FIRST,
    OTHER_BOX,
    SORT_BOX,
    ListView,
    list_html,
    list_runs,
    run_name,
)

DiskAction = Callable[[Mapping[Any, Any], Folders], str]
EMPTY_TRASH = "Empty trash"
NOTHING_TO_SLIM = (
    "There is nothing to shrink. The newest checkpoint, the best one and those that you saved by hand stay "
    "complete."
)
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

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context = context
        self._remote_panel = RemotePanel(context)
        self._use_panel = UsePanel(context, form)
        self._merge_panel = MergePanel(context, form)

    def draw(self, tab: gr.Tab) -> None:
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
                self._chosen = gr.Textbox(label="Chosen run", elem_id=CHOSEN_BOX, **options)
                self._other = gr.Textbox(label="Run to compare with", elem_id=OTHER_BOX, **options)
                self._sort = gr.Textbox(NEWEST_FIRST, label="Sort by", elem_id=SORT_BOX, **options)
                self._limit = gr.Textbox(label="Most rows", elem_id=LIMIT_BOX, **options)
                self._runs, self._picking = gr.State([]), gr.State(False)
            with gr.Column(scale=6, min_width=320, elem_id="tp-runs-side"):
                # The style sheet hides the actions if no run is chosen.
                self._comparison = gr.HTML(elem_id="tp-runs-compared", elem_classes="tp-said")
                self._run_card = gr.HTML(CHOOSE_HINT, elem_id="tp-runs-one")
                enabled = not self._context.read_only_reason()
                with gr.Column(elem_classes="tp-run-actions"):
                    self._remote_panel.draw()
                    self._missing_lora = gr.HTML(elem_classes="tp-said", elem_id="tp-runs-no-lora")
                    # The buttons for the chosen run; those that need a note or a name follow its box.
                    with gr.Row(elem_classes="tp-buttons"):
                        self._use_panel.draw(enabled=enabled)
                        self._compare_button = gr.Button("Compare with", elem_id="tp-runs-compare")
                        self._slim_button = gr.Button(
                            "Shrink older checkpoints", interactive=enabled, elem_id="tp-runs-slim"
                        )
                        self._delete_button = gr.Button(
                            "Move to trash", interactive=enabled, elem_id="tp-runs-delete"
                        )
                    with gr.Row(elem_classes="tp-buttons"):
                        self._note = gr.Textbox(label="Note", max_lines=3, elem_id="tp-runs-note", scale=4)
                        self._note_button = gr.Button("Save note", interactive=enabled, elem_id="tp-runs-keep")
                    self._name = gr.Textbox(label="New name", max_lines=1, elem_id="tp-runs-name")
                    with gr.Row(elem_classes="tp-buttons"):
                        self._copy_button = gr.Button(
                            "Copy to a new LoRA", interactive=enabled, elem_id="tp-runs-own"
                        )
                        self._merge_panel.draw(interactive=enabled)
                        self._gguf_button = gr.Button("Export GGUF", interactive=enabled, elem_id="tp-runs-gguf")
                    explained = (Markup("<b>{}</b>: {}").format(*entry) for entry in ACTION_HELP.items())
                    gr.HTML(markup.fold("What the buttons do", markup.html_list(explained, quiet=True)))
                # Below the buttons: a message above them would move another button under the mouse.
                self._status = gr.HTML(elem_id="tp-runs-said", elem_classes="tp-said")
                with gr.Row(elem_classes="tp-buttons"):
                    self._undo_button = gr.Button(
                        "Restore last deleted", size="sm", interactive=enabled, elem_id="tp-runs-undo"
                    )
                    self._empty_button = gr.Button(
                        EMPTY_TRASH, size="sm", interactive=enabled, elem_id="tp-runs-empty"
                    )
        self._connect(tab)

    def _connect(self, tab: gr.Tab) -> None:
        view, lists = self._view, self._lists
        self._connect_actions({*view, self._name, self._note}, [self._status, *lists])
        empty = self._dict_handler(lambda _, folders: self._empty_trash(folders))
        outputs = [self._status, *lists]
        confirm_click(self._empty_button, lambda _: self._in_trash(), empty, view, outputs)
        slim = self._dict_handler(self._on_slim)
        slimmed = confirm_click(self._slim_button, self._slim_question, slim, view, outputs)
        self._read_state_after(slimmed.then)
        self._remote_panel.connect(self._chosen, self._status)
        self._use_panel.connect(self._chosen, self._status)
        self._merge_panel.connect(self._chosen, self._name, self._status)
        listing = [tab.select, self._refresh_button.click]
        add_handler(listing, self._list_runs, view, lists, what="Listing the runs")
        # The choice too: a list that was filtered before the click arrives after it, without the mark.
        changes = [self._filter.change, self._sort.change, self._limit.change, self._chosen.change]
        options: dict[str, Any] = {"trigger_mode": "always_last", "show_progress": "hidden"}
        add_handler(changes, self._list_html, view, self._table, what="Listing the runs", **options)
        # A click on a row shows the run, or the comparison if the user picks a second run.
        outputs, action = [self._run_card, self._note, *self._run_controls], "Reading the run"
        chosen, other = self._chosen, self._other
        options = {"clears": {self._note: ""}, **IN_ORDER}
        for event in (chosen.change, self._refresh_button.click):
            add_handler(event, self._show_run, chosen, outputs, what=action, **options)
        after = [self._status, self._name]
        add_handler(chosen.change, _after_choice, chosen, after, what=action)
        outputs, action = [self._status, self._picking, self._table], "Comparing the runs"
        add_handler(self._compare_button.click, self._on_compare, view, outputs, what=action)
        add_handler(
            [chosen.change, other.change], self._show_comparison, {chosen, other}, self._comparison, what=action
        )
        add_handler(other.change, self._on_picked, view, outputs, what=action)

    def follow(self, working: Any) -> None:
        """Follow a text box that holds the kind of the running job: a run that has ended is shown so."""
        add_handler(working.change, self._list_runs, self._view, self._lists, what="Listing the runs")
        self._read_state_after(working.change)

    def _read_state_after(self, event: Any) -> None:
        """After this event, show the chosen run as it is now, but keep its note, which may be edited meanwhile."""
        shown = [self._run_card, *self._run_controls]
        add_handler(event, self._show_state, self._chosen, shown, what="Reading the run", **IN_ORDER)

    @property
    def _view(self) -> set[Any]:
        """What decides which rows the list shows, and how."""
        return {self._runs, self._chosen, self._other, self._filter, self._sort, self._limit, self._picking}

    @property
    def _run_controls(self) -> list[Any]:
        """What depends on the chosen run, besides its card and its note."""
        own = [self._use_panel.resume_button, *self._remote_panel.outputs]
        return [*own, self._missing_lora, *self._lora_buttons]

    @property
    def _lora_buttons(self) -> list[Any]:
        """The buttons that need a saved LoRA."""
        use, merge = self._use_panel, self._merge_panel
        return [use.attach_button, use.test_button, self._copy_button, merge.button, self._gguf_button]

    @property
    def _lists(self) -> list[Any]:
        """What a new list of the runs changes."""
        return [self._table, self._runs, self._chosen, self._other]

    def _connect_actions(self, form: set[Any], outputs: list[Any]) -> None:
        """Each button does its action, then the list is shown anew, and then the run that is chosen by then."""
        for button, action in (
            (self._delete_button, self._on_delete),
            (self._undo_button, self._on_undo),
            (self._gguf_button, self._on_gguf),
            (self._copy_button, self._on_copy),
            (self._note_button, self._on_note),
        ):
            done = add_handler(button.click, self._handler(action), form, outputs, what=button.value)
            self._read_state_after(done.then)

    def _handler(self, action: DiskAction) -> Callable[[Mapping[Any, Any]], tuple[Any, ...]]:
        """A handler that runs the action, and shows the new list afterwards."""

        def on_click(inputs: Mapping[Any, Any]) -> tuple[Any, ...]:
            return self._context.run_disk_action(partial(action, inputs)), *self._list_runs(inputs)

        return on_click

    def _dict_handler(self, action: DiskAction) -> Callable[[Mapping[Any, Any]], Mapping[Any, Any]]:
        """The same, as updates by output."""
        handler, outputs = self._handler(action), [self._status, *self._lists]
        return lambda inputs: dict(zip(outputs, handler(inputs), strict=True))

    def _list_runs(self, inputs: Mapping[Any, Any]) -> tuple[str, Any, Any, Any]:
        """Read the runs; a chosen run that no longer exists is deselected, which also clears its card.

        A choice that stays is not sent: the user may have chosen another run in the meantime.
        """
        boxes = (self._chosen, self._other)
        try:
            runs = list_runs(self._context.host.folders)
        except (TrainingProError, OSError) as error:
            return markup.problem(error_message(error)), inputs.get(self._runs, []), gr.update(), gr.update()
        names = {name for run in runs for name in run.entry.names}
        gone = {box: "" for box in boxes if (inputs.get(box) or "") not in {"", *names}}
        chosen, other = (gone.get(box, gr.update()) for box in boxes)
        unusable = map(markup.problem, describe_unusable(self._context.host.folders.listed))
        table = self._list_html({**inputs, **gone, self._runs: runs})
        return markup.join([table, *unusable]), runs, chosen, other

    def _list_html(self, inputs: Mapping[Any, Any]) -> str:
        """The list as this page filters and sorts it."""
        boxes = (self._filter, self._sort, self._limit, self._chosen)
        words, sort, limit, chosen = (inputs.get(box) or "" for box in boxes)
        view = ListView(words, sort, limit, chosen, picking=bool(inputs.get(self._picking)))
        return list_html(inputs.get(self._runs) or [], view)

    def _show_run(self, name: str | None) -> tuple[Any, ...]:
        """The card of the run, its note, and whether it can be resumed or controlled."""
        run = self._find_run(name)
        if run is not None and not self._context.read_only_reason():
            write_missing_report(run.folder, self._context.host.folders)
        progress = progress_line(run, self._context.host.folders) if run else ""
        shown = (run_card(run, name or "", progress), run.note) if run else (CHOOSE_HINT, "")
        controls = self._use_panel.resume_update(run), *self._remote_panel.updates(run)
        reason = describe_missing_lora(run, name or "")
        # The reason why the actions on a LoRA are not possible, and whether their buttons are enabled.
        enabled = not reason and not self._context.read_only_reason()
        note = markup.paragraph(reason, quiet=True) if reason else ""
        return *shown, *controls, *(note, *(gr.update(interactive=enabled) for _ in self._lora_buttons))

    def _show_state(self, name: str | None) -> tuple[Any, ...]:
        """What of a run changes when it ends or after an action."""
        card, _, *buttons = self._show_run(name)
        return card, *buttons

    def _on_compare(self, inputs: Mapping[Any, Any]) -> tuple[str, bool, str]:
        """The next click on a row picks the other run; a second press of the button cancels that."""
        name, picking = run_name(require_choice(inputs[self._chosen])), not inputs[self._picking]
        hint = f"In the list, choose the run that you want to compare with {name}." if picking else ""
        table = self._list_html({**inputs, self._picking: picking})
        return markup.card("", markup.paragraph(hint)) if hint else "", picking, table

    def _on_picked(self, inputs: Mapping[Any, Any]) -> tuple[str, bool, str]:
        return "", False, self._list_html({**inputs, self._picking: False})

    def _show_comparison(self, inputs: Mapping[Any, Any]) -> str:
        """The comparison, if two different runs are chosen."""
        run, other = self._find_run(inputs[self._chosen]), self._find_run(inputs[self._other])
        return comparison_html(run, other) if run and other and run.folder != other.folder else ""

    def _find_run(self, name: str | None) -> LoraEntry | None:
        """The run, or None if none is chosen or it no longer exists."""

        def read_entry(folders: Folders) -> LoraEntry | None:
            return inventory.read_entry(_run_folder(inventory.find_folder(name or "", folders), folders), folders)

        return self._context.read_disk(read_entry, None)

    def _on_delete(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        name = require_choice(inputs[self._chosen])
        loaded = self._context.host.model_status().loras
        item = trash.move_to_trash(name, folders, loaded=loaded)
        return f"{item.name} is in the trash ({size(item.size)}). To restore it, press 'Restore last deleted'."

    def _on_undo(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        latest = next(iter(trash.list_trash(folders)), None)
        if latest is None:
            raise SavingError("There is nothing in the trash.")
        restored = trash.restore_item(latest, folders)
        return f"{restored.relative_to(folders.loras).as_posix()} is restored."

    def _slim_question(self, inputs: Mapping[Any, Any]) -> str:
        """What would be shrunk; empty if that is nothing."""
        if not (name := inputs[self._chosen]):
            return ""
        checkpoints = self._context.read_disk(
            lambda folders: inventory.slimmable_checkpoints(inventory.find_folder(name, folders)), []
        )
        return f"Never resume from {format_count(len(checkpoints), 'checkpoint')}?" if checkpoints else ""

    def _on_slim(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        folder = inventory.find_folder(require_choice(inputs[self._chosen]), folders)
        trash.refuse_in_use(folder.relative_to(folders.loras).as_posix(), folders)
        checkpoints = inventory.slimmable_checkpoints(folder)
        freed = sum(loras.slim_checkpoint(checkpoint) for checkpoint in checkpoints)
        if not checkpoints:
            return NOTHING_TO_SLIM
        number = len(checkpoints)
        now = f"{format_count(number, 'checkpoint')} now {plural(number, 'contains', 'contain')} only the LoRA"
        return f"{now}, which freed {size(freed)}. You can't resume from {plural(number, 'it', 'them')}."

    def _in_trash(self) -> str:
        """What would be deleted, as a question; empty if the trash is empty or cannot be read."""
        items = self._context.read_disk(trash.list_trash, ())
        count = f"{len(items)} {plural(len(items), 'item')}"
        return f"Delete {count} permanently ({size(sum(item.size for item in items))})?" if items else ""

    def _empty_trash(self, folders: Folders) -> str:
        if not trash.list_trash(folders):
            raise SavingError("There is nothing in the trash.")
        return f"The trash is empty now. {size(trash.empty_trash(folders))} was freed."

    def _on_gguf(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        lora, name = require_choice(inputs[self._chosen]), (inputs[self._name] or "").strip()
        if problem := name_problem(name, "GGUF file") if name else "":
            raise SavingError(f"New name: {problem}")
        folder = _run_folder(inventory.find_folder(lora, folders), folders)
        existing = {file.name for file in folder.glob("*.gguf")}
        file = self._context.engine.export_gguf(
            GgufRequest(lora, str(folder / f"{name}.gguf") if name else ""), self._context.host
        )
        verb = "replaced" if file.name in existing else "saved"
        purpose = "To use the LoRA in llama.cpp, load a GGUF file of the base model and add --lora with this file."
        return f"{file} ({size(file.stat().st_size)}) was {verb}. {purpose}"

    def _on_copy(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        new_name = (inputs[self._name] or "").strip()
        copy = copy_as_lora(
            inventory.find_folder(require_choice(inputs[self._chosen]), folders), new_name, folders
        )
        return f"{copy.name} is now a separate LoRA."

    def _on_note(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        folder = _run_folder(inventory.find_folder(require_choice(inputs[self._chosen]), folders), folders)
        run_files.write_note(folder, inputs[self._note] or "")
        return f"The note for {folder.name} is saved."


def _after_choice(name: str) -> tuple[Any, str]:
    """The message and the new name are about the run that was chosen before."""
    return "" if name else gr.update(), ""


def _run_folder(folder: Path, folders: Folders) -> Path:
    """The folder of the run that a checkpoint belongs to."""
    return folders.loras / folder.relative_to(folders.loras).parts[0]
