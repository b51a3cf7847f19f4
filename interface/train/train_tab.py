"""The Train tab: the form at the left, what comes of it at the right."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import gradio as gr

from ...core.errors import TrainingProError
from ...core.host import Folders
from ...settings import presets
from ...settings.definitions import keys_of
from ..base import (
    FOLDED,
    LIVE,
    LORA,
    MEMORY,
    TABLES,
    VISIBLE,
    Form,
    Joined,
    handle,
    markup,
    on_load,
    outdated,
    part_id,
    private,
    status_line,
    taken,
)
from ..run import RunPanel
from . import data_menu, field_visibility, summary
from .data_preview import DataLook, look
from .js_bridge import Clicks
from .layers import Layers
from .presets_panel import StartFrom
from .probe_panel import OneStep
from .resume_panel import Unfinished

CUTTING = ("data", *keys_of("text", "rows"), "eval_data", "eval_share", "seed")
"""What decides on the examples."""


class TrainTab:
    """The components of the tab and what they do."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._form = Form()
        self._clicks = Clicks(self._form)
        self._start_from = StartFrom(joined, self._form)
        self._run = RunPanel(joined, self._form)
        self._one_step = OneStep(joined, self._form)
        self._unfinished = Unfinished(joined)
        self._layers = Layers(joined, self._form)
        self._folded: dict[str, gr.Accordion] = {}

    @property
    def form(self) -> Form:
        """For the tabs beside it."""
        return self._form

    def draw(self, tab: gr.Tab) -> None:
        """Form at the left, run panel at the right; one below the other where it is narrow."""
        self._line = gr.HTML(status_line.html(self._joined), elem_id="tp-line")
        self._unfinished.draw()
        with gr.Row():
            with gr.Column(scale=6, min_width=320, elem_classes="tp-form"):
                self._draw_form()
            with gr.Column(scale=7, min_width=320, elem_classes="tp-right"):
                self._run.draw()
        assert not list(self._form.undrawn()), "a setting has no place on the page"
        self._connect(tab)

    def _draw_form(self) -> None:
        self._start_from.draw()
        self._form.draw_row("name", "if_exists")
        self._name_said = gr.HTML(elem_id="tp-name-said")
        with gr.Row():
            self._form.draw("data", choices=data_menu.choices(self._joined), allow_custom_value=True, scale=7)
            with gr.Column(scale=2, min_width=110):
                self._add = gr.UploadButton("Add files", file_count="multiple", size="sm", elem_id="tp-add")
                self._refresh = gr.Button("Refresh", size="sm", elem_id="tp-refresh")
        self._add_said = gr.HTML(elem_id="tp-add-said", elem_classes="tp-said")
        self._data_said = gr.HTML(look({}, self._joined).html, elem_id="tp-data-said")
        for keys in VISIBLE:
            self._form.draw_row(*keys)
            if "schedule" in keys:
                self._schedule = gr.HTML(elem_id="tp-schedule-drawn")
        self._together = gr.HTML(elem_id="tp-together")
        for title, rows in FOLDED.items():
            with gr.Accordion(title, open=False, elem_id=part_id(title)) as folded:
                if title in TABLES:
                    self._start_from.draw_table(TABLES[title])
                for keys in rows:
                    self._form.draw_row(*keys, **self._what_to_choose_from(keys))
                if title == LORA:
                    self._layers.draw()
                if title == LIVE:
                    self._run.draw_live()
                if title == MEMORY:
                    self._one_step.draw()
            self._folded[title] = folded
        with gr.Accordion("Presets", open=False, elem_id="tp-presets"):
            self._start_from.draw_keeping()
        self._found = gr.State(DataLook())
        self._chosen = gr.State({})
        self._marks = gr.HTML(
            field_visibility.style(field_visibility.beside_the_point({}, ())), elem_id="tp-marks"
        )
        self._clicks.draw()

    def _what_to_choose_from(self, keys: tuple[str, ...]) -> dict[str, Any]:
        """Data sets can be tested with as well as learned from."""
        if keys != ("eval_data",):
            return {}
        return {"choices": data_menu.choices(self._joined), "allow_custom_value": True}

    def _connect(self, tab: gr.Tab) -> None:
        parts = self._form.components
        data, name = parts["data"], parts["name"]
        self._start_from.connect(self._refresh.click, self._run.ended.change, tab.select)
        self._one_step.connect()
        self._unfinished.connect()
        self._layers.connect()
        self._run.connect(self._line)
        # In two steps: Gradio 4 keeps what is chosen by its place in the list, and new files move the places.
        listing = {"what": "Listing the data", **private()}
        cleared = self._cleared()
        emptied = handle(self._refresh.click, self._emptied, {data, parts["eval_data"]}, cleared, **listing)
        refreshed = handle(emptied.then, self._new_choices, {self._chosen}, cleared[1:], **listing)
        adding = {"what": "Add files", "says": self._add_said, **private()}
        handle(self._add.upload, self._take_in, {self._add, data}, [data, self._add_said], **adding)
        handle([data.input, self._refresh.click], lambda: "", None, self._add_said, **adding)
        handle(data.change, self._named, {data, name}, name, what="Finding a name", **private())
        standing = {name, parts["if_exists"], parts["method"]}
        looking = {"what": "Looking at the name", "says": self._name_said, **private()}
        handle([part.change for part in standing], self._standing, standing, self._name_said, **looking)
        self._connect_consequences(refreshed)
        on_load(
            self._as_left,
            [*parts.values(), self._start_from.menu],
            what="Filling in the form as it was left",
            **private(),
        )
        self._clicks.connect()

    def _connect_consequences(self, refreshed: Any) -> None:
        """Every change of the form is followed by what comes of it, one of the data by a look at them."""
        parts, form = self._form.components, self._form.inputs()
        latest = {"trigger_mode": "always_last", **private()}
        told = {
            "inputs": {*form, self._found, *self._results().values()},
            "outputs": [self._together, self._schedule, self._marks, *self._folded.values()],
            "what": "Working out what follows from the form",
            "says": self._together,
            "clears": {self._schedule: ""},
        }
        look_at = {
            "inputs": form,
            "outputs": [self._data_said, self._found],
            "what": "Looking at the data",
            "says": self._data_said,
            "clears": {self._found: DataLook()},
        }
        handle([c.change for c in parts.values()], self._changed, **told, **latest)
        looked = handle([parts[key].change for key in CUTTING], self._looked_at, **look_at, **latest)
        handle(refreshed.then, self._looked_at, **look_at, **private())
        handle(looked.then, self._changed, **told, **private())
        # With another model the same data are other tokens; the form is as it was, and is not written.
        anew = handle(self._run.model.change, self._looked_at, **look_at, **latest)
        for made in (anew, self._run.checking):
            handle(made.then, self._told, **told, **private())

    def _results(self) -> dict[outdated.Kind, Any]:
        """What each result that stands on the page was made from."""
        return {
            "check": self._run.made_from,
            "example": self._run.leafing.made_from,
            "probe": self._one_step.made_from,
        }

    def _as_left(self) -> dict[Any, Any]:
        """The form as it was left, with the data and LoRAs that there are now."""
        choices = data_menu.choices(self._joined)
        try:
            values = presets.left_form(self._joined.host.folders.form)
        except TrainingProError:
            values = {}
        menus = {}
        for key in ("data", "eval_data"):
            left = values.pop(key, None)
            chosen = {} if left is None else {"value": data_menu.still_there(left, choices)}
            menus[self._form.components[key]] = gr.update(choices=choices, **chosen)
        return {**self._form.shown(values), **menus, self._start_from.menu: self._start_from.refreshed()}

    def _changed(self, given: Mapping[Any, Any]) -> dict[Any, Any]:
        """The form is kept as it is, and what follows from it is told."""
        if not self._joined.host_says_read_only():
            with suppress(TrainingProError, OSError):  # a form that cannot be kept is still a form
                presets.leave_form(self._joined.host.folders.form, self._form.values(given))
        return self._told(given)

    def _told(self, given: Mapping[Any, Any]) -> dict[Any, Any]:
        """What follows from the form at once."""
        values, found = self._form.values(given), given[self._found]
        titles = {
            folded: gr.update(label=summary.title(name, FOLDED[name], values))
            for name, folded in self._folded.items()
        }
        said = f"{summary.together(values, found.examples)} {summary.strength(values, self._config())}".strip()
        gone = field_visibility.beside_the_point(values, found.kinds)
        return {
            self._together: markup.paragraph(said, quiet=True),
            self._schedule: summary.schedule(values, found.examples),
            self._marks: field_visibility.style(gone) + summary.changed(values) + self._outdated(given),
            **titles,
        }

    def _outdated(self, given: Mapping[Any, Any]) -> str:
        """Marks on the results that were made from something else than stands there now."""
        now = self._joined.made_from(self._form.values(given))
        made_from = {kind: given.get(state) for kind, state in self._results().items()}
        return outdated.style(kind for kind, then in made_from.items() if then and then.differs(now))

    def _config(self) -> Mapping[str, Any]:
        """The model's, where one is loaded or chosen."""
        if self._joined.host.standing().problem:
            return {}
        try:
            return self._joined.host.card().config
        except TrainingProError:
            return {}

    def _looked_at(self, given: Mapping[Any, Any]) -> tuple[str, DataLook]:
        """What the chosen data are, as far as that can be said in a moment."""
        found = look(self._form.values(given), self._joined)
        return found.html, found

    def _cleared(self) -> list[Any]:
        parts = self._form.components
        return [self._chosen, parts["data"], parts["eval_data"]]

    def _emptied(self, given: Mapping[Any, Any]) -> tuple[Any, Any, Any]:
        """What is chosen is taken out of the menus, to be put back into the new ones."""
        _, *menus = self._cleared()
        return [given[menu] or [] for menu in menus], gr.update(value=[]), gr.update(value=[])

    def _new_choices(self, given: Mapping[Any, Any]) -> tuple[Any, ...]:
        choices = data_menu.choices(self._joined)
        chosen = (data_menu.still_there(names, choices) for names in given[self._chosen])
        return tuple(gr.update(choices=choices, value=names) for names in chosen)

    def _take_in(self, given: Mapping[Any, Any]) -> tuple[Any, str]:
        """Add files from the browser to the data sets, and choose them."""
        taken: list[data_menu.Taken] = []

        def take_in(folders: Folders) -> str:
            taken.extend(data_menu.take_in(folders, given[self._add] or []))
            return " ".join(one.words for one in taken)

        said = self._joined.said_of(take_in)
        chosen = data_menu.chosen_with(given[self._form.components["data"]] or [], taken)
        return gr.update(choices=data_menu.choices(self._joined), value=chosen), said

    def _named(self, given: Mapping[Any, Any]) -> Any:
        """A name out of data and model, where none is typed."""
        parts = self._form.components
        if given[parts["name"]] or not given[parts["data"]]:
            return gr.update()
        return data_menu.name_for(given[parts["data"]][0], self._joined.host.standing().model)

    def _standing(self, given: Mapping[Any, Any]) -> str:
        """What stands under the name already, unless it is being made just now."""
        parts = self._form.components
        return taken(self._joined, *(given[parts[key]] or "" for key in ("name", "if_exists", "method")))
