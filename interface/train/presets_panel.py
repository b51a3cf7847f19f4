"""Start from: a goal, a preset of one's own, a LoRA's settings, or the defaults; and keeping presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from ...core.errors import TrainingProError
from ...core.files import safe_paths
from ...core.host import Folders
from ...records.folder import PARAMETERS, loras
from ...settings import files, presets
from ...settings.definitions import SETTINGS
from ..base import Form, Joined, handle, markup, private
from .cli_command import as_command

NOTHING, DEFAULTS, TRAINED = "", "defaults", "trained"
NEWEST, BY_NAME = "newest", "name"
DOING = {"Save": "Saving the preset", "Delete": "Deleting the preset"}


class StartFrom:
    """A menu that fills the form, and what it changed."""

    def __init__(self, joined: Joined, form: Form) -> None:
        self._joined, self._form = joined, form
        self._tables: dict[Any, Any] = {}

    def draw(self) -> None:
        self._menu = gr.Dropdown(self._choices(), value=NOTHING, label="Start from", elem_id="tp-start-from")
        self.said = gr.HTML(elem_id="tp-start-from-said")

    def draw_table(self, kind: str) -> None:
        """At the top of a folded part: the menu of its presets, S to XL."""
        menu = gr.Dropdown(self._rows(kind), value=NOTHING, label="Preset", elem_id=f"tp-{kind}-preset")
        self._tables[menu] = gr.HTML(elem_id=f"tp-{kind}-said", elem_classes="tp-said")

    def draw_keeping(self) -> None:
        """Saving and deleting presets, what differs from the defaults, and the form as a command."""
        with gr.Row():
            self._name = gr.Textbox(
                label="Preset of your own", max_lines=1, elem_id="tp-preset-name", min_width=120
            )
            self._save = gr.Button("Save", min_width=70, elem_id="tp-preset-save")
            self._delete = gr.Button("Delete", min_width=70, elem_id="tp-preset-delete")
        self._order = gr.Radio(
            [("newest first", NEWEST), ("by name", BY_NAME)],
            value=NEWEST,
            label="LoRAs in the menu Start from",
            elem_id="tp-lora-order",
        )
        with gr.Row():
            self._differs = gr.Button("What differs from the defaults", size="sm", elem_id="tp-differs")
            self._reset = gr.Button("Back to defaults", size="sm", elem_id="tp-defaults")
            self._command = gr.Button("As a command", size="sm", elem_id="tp-command")
        self._kept = gr.HTML(elem_id="tp-preset-said")

    def connect(self, *refreshing: Callable[..., Any]) -> None:
        """After everything is drawn: the menu writes into the whole form, and has LoRAs anew with `refreshing`."""
        form = self._form.inputs()
        filled = [*self._form.components.values(), self.said]
        fill = partial(self._fill, self._menu, self.said)
        handle(
            self._menu.input,
            fill,
            {*form, self._menu},
            filled,
            what="Start from",
            says=self.said,
            **private(),
        )
        renewed = [self._order.change, *refreshing]
        handle(renewed, self.refreshed, self._order, self._menu, what="Renewing Start from", **private())
        for menu, said in self._tables.items():
            row = [*self._form.components.values(), said]
            fill = partial(self._fill, menu, said)
            handle(menu.input, fill, {*form, menu}, row, what="The preset", says=said, **private())
        handle(self._reset.click, self._back, form, filled, what="Back to defaults", says=self.said, **private())
        self._connect_keeping(form)

    def _connect_keeping(self, form: set[Any]) -> None:
        """The buttons of the folded part Presets, which all speak in one place."""
        kept = [self._kept, self._menu]
        for button, act, inputs, outputs in (
            (self._differs, self._differences, form, self._kept),
            (self._command, self._as_command, form, self._kept),
            (self._save, self._keep, {*form, self._name, self._order}, kept),
            (self._delete, self._drop, {self._name, self._order}, kept),
        ):
            what = DOING.get(button.value, button.value)
            handle(button.click, act, inputs, outputs, what=what, says=self._kept, **private())

    def refreshed(self, order: str = NEWEST) -> Any:
        return gr.update(choices=self._choices(order))

    @property
    def menu(self) -> Any:
        return self._menu

    def _rows(self, kind: str) -> list[tuple[str, str]]:
        """The rows of a table of presets; a file of the user's that is wrong is told when a row is chosen."""
        try:
            rows = presets.table(kind, self._joined.host.folders.presets)
        except TrainingProError:
            rows = presets.table(kind, presets.GOALS.parent)
        return [("(as it is)", NOTHING), *((p.label, f"{kind}:{p.name}") for p in rows)]

    def _choices(self, order: str = NEWEST) -> list[tuple[str, str]]:
        first = [("(the form as it is)", NOTHING), ("the defaults", DEFAULTS)]
        goals = [(p.label, f"goals:{p.name}") for p in presets.goals()]
        try:
            folders = self._joined.host.folders
            own = [(f"preset: {p.label}", f"{presets.OWN}:{p.name}") for p in presets.own(folders.presets)]
            trained = [(f"LoRA: {n}", f"{TRAINED}:{n}") for n in _in_order(folders.loras, order)]
        except (TrainingProError, OSError):
            own, trained = [], []
        return [*first, *goals, *own, *trained]

    def _fill(self, menu: Any, said: Any, given: Mapping[Any, Any]) -> dict[Any, Any]:
        try:
            values, words = self._asked(given[menu] or NOTHING)
        except TrainingProError as error:
            return {said: markup.problem(str(error))}
        return self._filled(given, values, words, said)

    def _back(self, given: Mapping[Any, Any]) -> dict[Any, Any]:
        return self._filled(given, _defaults(), "Back to the defaults.", self.said)

    def _filled(
        self, given: Mapping[Any, Any], values: Mapping[str, Any], words: str, said: Any
    ) -> dict[Any, Any]:
        """The form's updates, and what they change; name, data and what exists stay as they are."""
        values = {k: v for k, v in values.items() if k not in presets.UNTOUCHED}
        changed = presets.changes(self._form.values(given), values)
        told = "Changed: " + "; ".join(changed) if changed else "Nothing had to be changed."
        return {**self._form.shown(values), said: markup.paragraph(f"{words} {told}".strip(), quiet=True)}

    def _asked(self, choice: str) -> tuple[dict[str, Any], str]:
        kind, _, name = choice.partition(":")
        folders = self._joined.host.folders
        if kind == TRAINED:
            folder = safe_paths.child(folders.loras, name, "LoRA")
            loaded = files.load(folder / PARAMETERS, folders.datasets)
            return loaded.values, " ".join(loaded.notes)
        if kind in presets.KINDS:
            preset = presets.chosen(kind, name, folders.presets)
            return {**(_defaults() if kind == presets.OWN else {}), **preset.values}, preset.words
        return (_defaults() if choice == DEFAULTS else {}), ""

    def _differences(self, given: Mapping[Any, Any]) -> str:
        values = {k: v for k, v in self._form.values(given).items() if k not in presets.UNTOUCHED}
        changed = presets.changes(_defaults(), values)
        return markup.bullets(changed) or markup.paragraph("Everything is at its default.", quiet=True)

    def _as_command(self, given: Mapping[Any, Any]) -> str:
        return as_command(self._form.values(given), self._joined.host)

    def _keep(self, given: Mapping[Any, Any]) -> tuple[str, Any]:
        name = (given[self._name] or "").strip()

        def save(folders: Folders) -> str:
            presets.save(folders.presets, name, self._form.values(given))
            return f"Saved as {name}."

        return self._joined.said_of(save), self.refreshed(given[self._order])

    def _drop(self, given: Mapping[Any, Any]) -> tuple[str, Any]:
        name = (given[self._name] or "").strip()

        def delete(folders: Folders) -> str:
            presets.delete(folders.presets, name)
            return f"{name} is deleted."

        return self._joined.said_of(delete), self.refreshed(given[self._order])


def _defaults() -> dict[str, Any]:
    return {key: setting.default for key, setting in SETTINGS.items() if key not in presets.UNTOUCHED}


def _in_order(folder: Path, order: str) -> list[str]:
    """The LoRAs by name, or by when they were last written."""
    names = loras.listed(folder)
    return names if order == BY_NAME else sorted(names, key=lambda n: -(folder / n).stat().st_mtime)
