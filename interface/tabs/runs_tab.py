"""The Runs tab: what is on disk, how each run went, and what of it may go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from ...core.engine import GgufLora
from ...core.errors import SavingError, TrainingProError, in_words
from ...core.files import read_json
from ...core.host import Folders
from ...records.folder import GRAPH, LOG, REPORT, Kept, as_lora, inventory, loras, notes, trash
from ...records.report import aside_losses, points_of, read_verdict, svg
from ...settings.name_rules import name_problem
from ...train_utils import plural, size
from ..base import Joined, follows, handle, markup, private
from .compare_runs import beside
from .merge_panel import MergingHere

Act = Callable[[Mapping[Any, Any], Folders], str]
NOBODY = "no other run"
EMPTY = "Empty the trash"
ASKS_SECONDS = 8
HEAD = ("LoRA", "", "model", "steps", "smoothed loss", "when", "size", "note")


@dataclass(frozen=True)
class Asked:
    """Whether the trash is really to be emptied, of what it held, and how long a click means yes."""

    words: str = ""
    until: float = 0.0


class RunsTab:
    """A table of all runs; one of them, or a part of it, to look at and to do something with."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._merging = MergingHere(joined)

    def draw(self, tab: gr.Tab) -> None:
        self._table = gr.HTML(elem_id="tp-runs-table")
        with gr.Row():
            self._chosen = gr.Dropdown(  # one that is gone by now is told by us, not by Gradio's bare "Error"
                [], label="Run, or a checkpoint of it", elem_id="tp-runs-chosen", allow_custom_value=True, scale=4
            )
            self._refresh = gr.Button("Refresh", size="sm", min_width=90, scale=1, elem_classes="tp-beside")
        self._said = gr.HTML(elem_id="tp-runs-said", elem_classes="tp-said")
        self._draw_buttons()
        self._other = gr.Dropdown(
            [NOBODY], value=NOBODY, label="Compare it with", elem_id="tp-runs-other", allow_custom_value=True
        )
        self._compared = gr.HTML(elem_id="tp-runs-compared")
        self._looked_at = gr.HTML(elem_id="tp-runs-one")
        self._connect(tab)

    def _draw_buttons(self) -> None:
        """What can be done with what is chosen, each beside what it needs."""
        may = not self._joined.host_says_read_only()
        with gr.Row(elem_classes="tp-buttons"):
            self._delete = gr.Button("Delete (into the trash)", interactive=may, elem_id="tp-runs-delete")
            self._undo = gr.Button("Undo the last delete", interactive=may, elem_id="tp-runs-undo")
            self._slim = gr.Button("Slim older checkpoints", interactive=may, elem_id="tp-runs-slim")
            self._empty = gr.Button(EMPTY, interactive=may, elem_id="tp-runs-empty")
        self._asked = gr.State(Asked())
        beside_a_box = {"interactive": may, "scale": 2, "elem_classes": "tp-beside"}
        with gr.Row():
            self._name = gr.Textbox(label="New name", max_lines=1, elem_id="tp-runs-name", scale=3)
            self._own = gr.Button("Copy as a LoRA", elem_id="tp-runs-own", min_width=200, **beside_a_box)
            self._merging.draw(min_width=200, **beside_a_box)
            self._gguf = gr.Button("Write as GGUF", elem_id="tp-runs-gguf", min_width=200, **beside_a_box)
        with gr.Row():
            self._note = gr.Textbox(label="Note", max_lines=3, elem_id="tp-runs-note", scale=3)
            self._keep = gr.Button("Keep the note", elem_id="tp-runs-keep", **beside_a_box)

    def _connect(self, tab: gr.Tab) -> None:
        lists = [self._table, self._chosen, self._other]
        about = {self._chosen, self._other}
        given = {*about, self._name, self._note}
        for button, act in (
            (self._delete, self._on_delete),
            (self._undo, self._on_undo),
            (self._slim, self._on_slim),
            (self._gguf, self._on_gguf),
            (self._own, self._on_own),
            (self._keep, self._on_keep),
        ):
            outputs = [self._said, *lists, self._looked_at]
            clears = {self._looked_at: ""}
            told = {"what": button.value, "says": self._said, "clears": clears, **private()}
            handle(button.click, self._doing(act), given, outputs, **told)
        asked = {*about, self._asked}
        emptied = [self._said, self._empty, self._asked, *lists]
        again = {"trigger_mode": "multiple", **follows()}  # the second click comes while the first one waits
        handle(self._empty.click, self._on_empty, asked, emptied, what=EMPTY, says=self._said, **again)
        self._merging.connect(self._chosen, self._name, self._said)
        for shown in (tab.select, self._refresh.click):
            handle(shown, self._lists, about, lists, what="Listing the runs", says=self._table, **private())
        one = {"what": "Looking at the run", "says": self._looked_at, "clears": {self._note: ""}, **private()}
        handle(self._chosen.change, self._one, self._chosen, [self._looked_at, self._note], **one)
        both = {"what": "Comparing the runs", "says": self._compared, **private()}
        handle([part.change for part in about], self._both, about, self._compared, **both)

    def _doing(self, act: Act) -> Callable[[Mapping[Any, Any]], tuple[Any, ...]]:
        """The act, and the lists and the run as they are afterwards."""

        def done(given: Mapping[Any, Any]) -> tuple[Any, ...]:
            said = self._joined.said_of(partial(act, given))
            return said, *self._lists(given), self._one(given[self._chosen])[0]

        return done

    def _lists(self, given: Mapping[Any, Any]) -> tuple[str, Any, Any]:
        """What there is; what is chosen and gone by now is let go of, and with it what is shown of it."""
        try:
            found = inventory.kept(self._joined.host.folders)
        except (TrainingProError, OSError) as error:
            return markup.problem(in_words(error)), gr.update(), gr.update()
        names, runs = [name for kept in found for name in kept.names], [NOBODY, *(kept.name for kept in found)]
        chosen, other = given.get(self._chosen), given.get(self._other)
        return (
            table(found),
            gr.update(choices=names, value=chosen if chosen in names else None),
            gr.update(choices=runs, value=other if other in runs else NOBODY),
        )

    def _one(self, name: str | None) -> tuple[str, str]:
        """How the run went, and its note."""
        kept = self._kept(name)
        return (how_it_went(kept), kept.note) if kept else ("", "")

    def _both(self, given: Mapping[Any, Any]) -> str:
        """The run and another one side by side, where two are chosen."""
        one, other = self._kept(given[self._chosen]), self._kept(given[self._other])
        return beside(one, other) if one and other and one.folder != other.folder else ""

    def _kept(self, name: str | None) -> Kept | None:
        """None where nothing is chosen, or it is gone."""
        try:
            folders = self._joined.host.folders
            return inventory.one(_run_of(inventory.named(name or "", folders), folders), folders)
        except (TrainingProError, OSError):
            return None

    def _on_delete(self, given: Mapping[Any, Any], folders: Folders) -> str:
        name = self._named(given)
        on = self._joined.host.standing().loras
        gone = trash.throw_away(name, folders, on=on)
        return f"{gone.name} is in the trash ({size(gone.size)}). Undo the last delete brings it back."

    def _on_undo(self, given: Mapping[Any, Any], folders: Folders) -> str:
        latest = next(iter(trash.thrown(folders)), None)
        if latest is None:
            raise SavingError("There is nothing in the trash.")
        back = trash.restore(latest, folders)
        return f"{back.relative_to(folders.loras).as_posix()} is back."

    def _on_slim(self, given: Mapping[Any, Any], folders: Folders) -> str:
        folder = inventory.named(self._named(given), folders)
        trash.refuse_in_use(folder.relative_to(folders.loras).as_posix(), folders)
        chosen = inventory.to_slim(folder) if folder.parent == folders.loras else [folder]
        freed = sum(loras.slim(checkpoint) for checkpoint in chosen)
        if not chosen:
            return "Nothing to slim: the newest checkpoint, the best and those saved by hand stay whole."
        return f"{len(chosen)} slimmed to the LoRA itself, {size(freed)} freed; no run can go on from them."

    async def _on_empty(self, given: Mapping[Any, Any]) -> AsyncIterator[dict[Any, Any]]:
        """What is gone then is gone for good: the first click asks, a second one soon after it does it."""
        inside, before = self._in_trash(), given[self._asked]
        if inside and (before.words != inside or time.monotonic() > before.until):
            yield {
                self._said: "",
                self._empty: inside,
                self._asked: Asked(inside, time.monotonic() + ASKS_SECONDS),
            }
            await asyncio.sleep(ASKS_SECONDS)
            yield {self._empty: EMPTY}
            return
        said = self._joined.said_of(self._emptied)
        lists = zip((self._table, self._chosen, self._other), self._lists(given), strict=True)
        yield {self._said: said, self._empty: EMPTY, self._asked: Asked(), **dict(lists)}

    def _in_trash(self) -> str:
        """What would be gone, as a question; nothing where nothing is in the trash, or none may be asked."""
        try:
            things = trash.thrown(self._joined.host.folders)
        except (TrainingProError, OSError):
            return ""
        many = f"{len(things)} {plural(len(things), 'thing')}"
        return f"Really: {many}, {size(sum(thing.size for thing in things))}" if things else ""

    def _emptied(self, folders: Folders) -> str:
        if not trash.thrown(folders):
            raise SavingError("There is nothing in the trash.")
        return f"The trash is empty; {size(trash.empty(folders))} are free again."

    def _on_gguf(self, given: Mapping[Any, Any], folders: Folders) -> str:
        lora, name = self._named(given), (given[self._name] or "").strip()
        if problem := name_problem(name, "GGUF file") if name else "":
            raise SavingError(f"New name: {problem}")
        folder = _run_of(inventory.named(lora, folders), folders)
        before = {file.name for file in folder.glob("*.gguf")}
        file = self._joined.engine.gguf(
            GgufLora(lora, str(folder / f"{name}.gguf") if name else ""), self._joined.host
        )
        written = "is written again" if file.name in before else "is written"
        return (
            f"{file} ({size(file.stat().st_size)}) {written}. It is for llama.cpp: --lora beside a GGUF file of "
            "the same model."
        )

    def _on_own(self, given: Mapping[Any, Any], folders: Folders) -> str:
        new = (given[self._name] or "").strip()
        made = as_lora(inventory.named(self._named(given), folders), new, folders)
        return f"{made.name} is a LoRA of its own now."

    def _on_keep(self, given: Mapping[Any, Any], folders: Folders) -> str:
        folder = _run_of(inventory.named(self._named(given), folders), folders)
        notes.leave_note(folder, given[self._note] or "")
        return f"The note of {folder.name} is kept."

    def _named(self, given: Mapping[Any, Any]) -> str:
        name: str = given[self._chosen] or ""
        if not name:
            raise SavingError("Choose a run first.")
        return name


def table(found: list[Kept]) -> str:
    """All runs, with how they ended and the room they take."""
    if not found:
        return markup.paragraph("No runs yet. What is trained stands here.", quiet=True)
    total = size(sum(kept.size for kept in found))
    said = markup.paragraph(f"{len(found)} in all, {total}.", quiet=True)
    return markup.table(HEAD, map(_row, found)) + said


def _row(kept: Kept) -> list[str]:
    steps = f"{kept.step:,} of {kept.steps:,}" if kept.steps else f"{kept.step:,}" if kept.step else ""
    return [
        kept.name,
        kept.standing,
        kept.model,
        steps,
        "" if kept.loss is None else f"{kept.loss:.3f}",
        time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.when)),
        size(kept.size),
        kept.note,
    ]


def how_it_went(kept: Kept) -> str:
    """Its curve, its verdict, what lies in its folder, and the whole report."""
    parts = [f"{part.name}: {part.kind}, {size(part.size)}" for part in kept.parts]
    verdict = read_verdict(read_json(kept.folder / LOG, {}))
    said = markup.paragraph(verdict) if verdict else ""
    many = f"{len(parts)} {plural(len(parts), 'checkpoint or backup', 'checkpoints and backups')}"
    folded = f"<details><summary>{many}</summary>{markup.bullets(parts)}</details>"
    return markup.card(kept.name, said, _curve(kept.folder), folded if parts else "", _report(kept.folder))


def _curve(folder: Path) -> str:
    graph = [entry for entry in read_json(folder / GRAPH, []) if isinstance(entry, dict)]
    points = points_of(graph)
    return svg(points, [point.rate for point in points], kept=aside_losses(graph)) if points else ""


def _report(folder: Path) -> str:
    """Framed, since it is a page with a style of its own; it holds nothing that runs."""
    try:
        page = (folder / REPORT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    frame = f'<iframe class="tp-report" title="Report" sandbox="" srcdoc="{escape(page)}"></iframe>'
    return f"<details><summary>The whole report</summary>{frame}</details>"


def _run_of(folder: Path, folders: Folders) -> Path:
    """The run that a checkpoint belongs to."""
    return folders.loras / folder.relative_to(folders.loras).parts[0]
