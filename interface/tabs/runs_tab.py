"""The Runs tab: list, inspect, compare, export, and delete runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.engine import GgufRequest
from ...core.errors import SavingError, TrainingProError, error_message
from ...core.files import read_json
from ...core.host import Folders
from ...records.folder import GRAPH, LOG, REPORT, LoraEntry, copy_as_lora, inventory, loras, run_files, trash
from ...records.report import draw_curve, read_evaluations, read_steps, read_verdict
from ...settings.name_rules import name_problem
from ...train_utils import plural, size
from ..base import PageContext, add_handler, markup
from .compare_runs import comparison_html
from .merge_panel import MergePanel

DiskAction = Callable[[Mapping[Any, Any], Folders], str]
NO_OTHER_RUN = "no other run"
EMPTY_TRASH = "Empty trash"
CONFIRM_SECONDS = 8
DETAILS = Markup("<details><summary>{}</summary>{}</details>")
COLUMNS = ("LoRA", "", "model", "steps", "smoothed loss", "when", "size", "note")


@dataclass(frozen=True)
class TrashConfirmation:
    """The question before the trash is emptied: its text, and until when a second click confirms it."""

    text: str = ""
    until: float = 0.0


class RunsTab:
    """A table of all runs, and actions on a chosen run or checkpoint."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._merge_panel = MergePanel(context)

    def draw(self, tab: gr.Tab) -> None:
        self._table = gr.HTML(elem_id="tp-runs-table")
        with gr.Row():
            # Custom values: we report a missing run ourselves, Gradio would show a bare "Error".
            options = {"allow_custom_value": True, "elem_id": "tp-runs-chosen", "scale": 4}
            self._chosen = gr.Dropdown([], label="Run or checkpoint", **options)
            self._refresh_button = gr.Button("Refresh", size="sm", min_width=90, scale=1, elem_classes="tp-beside")
        self._status = gr.HTML(elem_id="tp-runs-said", elem_classes="tp-said")
        self._draw_buttons()
        options = {"allow_custom_value": True, "elem_id": "tp-runs-other"}
        self._other = gr.Dropdown([NO_OTHER_RUN], value=NO_OTHER_RUN, label="Compare with", **options)
        self._comparison = gr.HTML(elem_id="tp-runs-compared")
        self._run_card = gr.HTML(elem_id="tp-runs-one")
        self._connect(tab)

    def _draw_buttons(self) -> None:
        """The buttons for the chosen run, each next to its input."""
        enabled = not self._context.read_only_reason()
        with gr.Row(elem_classes="tp-buttons"):
            self._delete_button = gr.Button("Move to trash", interactive=enabled, elem_id="tp-runs-delete")
            self._undo_button = gr.Button("Undo last delete", interactive=enabled, elem_id="tp-runs-undo")
            self._slim_button = gr.Button("Slim older checkpoints", interactive=enabled, elem_id="tp-runs-slim")
            self._empty_button = gr.Button(EMPTY_TRASH, interactive=enabled, elem_id="tp-runs-empty")
        self._confirmation = gr.State(TrashConfirmation())
        options = {"interactive": enabled, "scale": 2, "elem_classes": "tp-beside"}
        with gr.Row():
            self._name = gr.Textbox(label="New name", max_lines=1, elem_id="tp-runs-name", scale=3)
            self._copy_button = gr.Button("Copy as LoRA", elem_id="tp-runs-own", min_width=200, **options)
            self._merge_panel.draw(min_width=200, **options)
            self._gguf_button = gr.Button("Export GGUF", elem_id="tp-runs-gguf", min_width=200, **options)
        with gr.Row():
            self._note = gr.Textbox(label="Note", max_lines=3, elem_id="tp-runs-note", scale=3)
            self._note_button = gr.Button("Save note", elem_id="tp-runs-keep", **options)

    def _connect(self, tab: gr.Tab) -> None:
        lists = [self._table, self._chosen, self._other]
        menus = {self._chosen, self._other}
        self._connect_actions({*menus, self._name, self._note}, [self._status, *lists, self._run_card])
        self._connect_trash({*menus, self._confirmation}, lists)
        self._merge_panel.connect(self._chosen, self._name, self._status)
        listing = [tab.select, self._refresh_button.click]
        add_handler(listing, self._list_runs, menus, lists, what="Listing the runs")
        outputs, action = [self._run_card, self._note], "Looking at the run"
        add_handler(
            self._chosen.change, self._show_run, self._chosen, outputs, what=action, clears={self._note: ""}
        )
        changes = [menu.change for menu in menus]
        add_handler(changes, self._show_comparison, menus, self._comparison, what="Comparing the runs")

    def _connect_actions(self, form: set[Any], outputs: list[Any]) -> None:
        """Each button does its action, then the lists and the run are shown anew."""
        for button, action in (
            (self._delete_button, self._on_delete),
            (self._undo_button, self._on_undo),
            (self._slim_button, self._on_slim),
            (self._gguf_button, self._on_gguf),
            (self._copy_button, self._on_copy),
            (self._note_button, self._on_note),
        ):
            clears = {self._run_card: ""}
            add_handler(button.click, self._handler(action), form, outputs, what=button.value, clears=clears)

    def _connect_trash(self, inputs: set[Any], lists: list[Any]) -> None:
        """The second click arrives while the first one still waits."""
        outputs = [self._status, self._empty_button, self._confirmation, *lists]
        options: dict[str, Any] = {"what": EMPTY_TRASH, "trigger_mode": "multiple"}
        add_handler(self._empty_button.click, self._on_empty, inputs, outputs, **options)

    def _handler(self, action: DiskAction) -> Callable[[Mapping[Any, Any]], tuple[Any, ...]]:
        """A handler that runs the action, and shows the new lists and the run afterwards."""

        def on_click(inputs: Mapping[Any, Any]) -> tuple[Any, ...]:
            message = self._context.run_disk_action(partial(action, inputs))
            return message, *self._list_runs(inputs), self._show_run(inputs[self._chosen])[0]

        return on_click

    def _list_runs(self, inputs: Mapping[Any, Any]) -> tuple[str, Any, Any]:
        """List the runs; a chosen run that no longer exists is deselected, which also clears its card."""
        try:
            runs = inventory.list_entries(self._context.host.folders)
        except (TrainingProError, OSError) as error:
            return markup.problem(error_message(error)), gr.update(), gr.update()
        names = [name for run in runs for name in run.names]
        others = [NO_OTHER_RUN, *(run.name for run in runs)]
        chosen, other = inputs.get(self._chosen), inputs.get(self._other)
        return (
            runs_table(runs),
            gr.update(choices=names, value=chosen if chosen in names else None),
            gr.update(choices=others, value=other if other in others else NO_OTHER_RUN),
        )

    def _show_run(self, name: str | None) -> tuple[str, str]:
        """The card of the run, and its note."""
        run = self._find_run(name)
        return (run_card(run), run.note) if run else ("", "")

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
        name = self._chosen_name(inputs)
        loaded = self._context.host.model_status().loras
        item = trash.move_to_trash(name, folders, loaded=loaded)
        return f"{item.name} is in the trash ({size(item.size)}). Undo last delete brings it back."

    def _on_undo(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        latest = next(iter(trash.list_trash(folders)), None)
        if latest is None:
            raise SavingError("There is nothing in the trash.")
        restored = trash.restore_item(latest, folders)
        return f"{restored.relative_to(folders.loras).as_posix()} is restored."

    def _on_slim(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        folder = inventory.find_folder(self._chosen_name(inputs), folders)
        trash.refuse_in_use(folder.relative_to(folders.loras).as_posix(), folders)
        checkpoints = inventory.slimmable_checkpoints(folder) if folder.parent == folders.loras else [folder]
        freed = sum(loras.slim_checkpoint(checkpoint) for checkpoint in checkpoints)
        if not checkpoints:
            return "Nothing to slim: the newest checkpoint, the best one and those saved by hand stay complete."
        return f"{len(checkpoints)} reduced to the LoRA, {size(freed)} freed. Runs can't resume from them."

    async def _on_empty(self, inputs: Mapping[Any, Any]) -> AsyncIterator[dict[Any, Any]]:
        """Delete for good: the first click asks, a second click soon after it confirms."""
        contents, confirmation = self._in_trash(), inputs[self._confirmation]
        if contents and (confirmation.text != contents or time.monotonic() > confirmation.until):
            yield {
                self._status: "",
                self._empty_button: contents,
                self._confirmation: TrashConfirmation(contents, time.monotonic() + CONFIRM_SECONDS),
            }
            await asyncio.sleep(CONFIRM_SECONDS)
            yield {self._empty_button: EMPTY_TRASH}
            return
        message = self._context.run_disk_action(self._empty_trash)
        lists = zip((self._table, self._chosen, self._other), self._list_runs(inputs), strict=True)
        yield {
            self._status: message,
            self._empty_button: EMPTY_TRASH,
            self._confirmation: TrashConfirmation(),
            **dict(lists),
        }

    def _in_trash(self) -> str:
        """What would be deleted, as a question; empty if the trash is empty or cannot be read."""
        items = self._context.read_disk(trash.list_trash, ())
        count = f"{len(items)} {plural(len(items), 'thing')}"
        return f"Really: {count}, {size(sum(item.size for item in items))}" if items else ""

    def _empty_trash(self, folders: Folders) -> str:
        if not trash.list_trash(folders):
            raise SavingError("There is nothing in the trash.")
        return f"The trash is empty; {size(trash.empty_trash(folders))} freed."

    def _on_gguf(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        lora, name = self._chosen_name(inputs), (inputs[self._name] or "").strip()
        if problem := name_problem(name, "GGUF file") if name else "":
            raise SavingError(f"New name: {problem}")
        folder = _run_folder(inventory.find_folder(lora, folders), folders)
        existing = {file.name for file in folder.glob("*.gguf")}
        file = self._context.engine.export_gguf(
            GgufRequest(lora, str(folder / f"{name}.gguf") if name else ""), self._context.host
        )
        again = " again" if file.name in existing else ""
        purpose = "Use it in llama.cpp with --lora and a GGUF file of the same model."
        return f"{file} ({size(file.stat().st_size)}) is written{again}. {purpose}"

    def _on_copy(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        new_name = (inputs[self._name] or "").strip()
        copy = copy_as_lora(inventory.find_folder(self._chosen_name(inputs), folders), new_name, folders)
        return f"{copy.name} is now a separate LoRA."

    def _on_note(self, inputs: Mapping[Any, Any], folders: Folders) -> str:
        folder = _run_folder(inventory.find_folder(self._chosen_name(inputs), folders), folders)
        run_files.write_note(folder, inputs[self._note] or "")
        return f"The note of {folder.name} is saved."

    def _chosen_name(self, inputs: Mapping[Any, Any]) -> str:
        name: str = inputs[self._chosen] or ""
        if not name:
            raise SavingError("Choose a run first.")
        return name


def runs_table(runs: list[LoraEntry]) -> str:
    """The table of all runs as HTML."""
    if not runs:
        return markup.paragraph("No runs yet.", quiet=True)
    total = size(sum(run.size for run in runs))
    summary = markup.paragraph(f"{len(runs)} in all, {total}.", quiet=True)
    return markup.table(COLUMNS, map(_row, runs)) + summary


def _row(run: LoraEntry) -> tuple[str, ...]:
    steps = f"{run.step:,} of {run.steps:,}" if run.steps else f"{run.step:,}" if run.step else ""
    loss = "" if run.loss is None else f"{run.loss:.3f}"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.when))
    return run.name, run.status, run.model, steps, loss, when, size(run.size), run.note


def run_card(entry: LoraEntry) -> str:
    """The loss curve, the verdict, the checkpoints, and the report of a run."""
    verdict = read_verdict(read_json(entry.folder / LOG, {}))
    return markup.card(
        entry.name,
        markup.paragraph(verdict) if verdict else "",
        _curve(entry.folder),
        _checkpoints(entry),
        _report(entry.folder),
    )


def _checkpoints(entry: LoraEntry) -> str:
    parts = [f"{part.name}: {part.kind}, {size(part.size)}" for part in entry.parts]
    summary = f"{len(parts)} {plural(len(parts), 'checkpoint or backup', 'checkpoints and backups')}"
    return DETAILS.format(summary, markup.bullets(parts)) if parts else ""


def _curve(folder: Path) -> str:
    graph = [entry for entry in read_json(folder / GRAPH, []) if isinstance(entry, dict)]
    steps, evaluations = read_steps(graph), read_evaluations(graph)
    rates = [step.learning_rate for step in steps]
    return draw_curve(steps, rates, evaluations=evaluations) if steps else ""


def _report(folder: Path) -> str:
    """The report in an iframe, because it is a page with its own styles; it has no scripts."""
    try:
        page = (folder / REPORT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    frame = Markup('<iframe class="tp-report" title="Report" sandbox="" srcdoc="{}"></iframe>').format(page)
    return DETAILS.format("The whole report", frame)


def _run_folder(folder: Path, folders: Folders) -> Path:
    """The folder of the run that a checkpoint belongs to."""
    return folders.loras / folder.relative_to(folders.loras).parts[0]
