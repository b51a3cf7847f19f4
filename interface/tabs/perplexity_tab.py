"""The Perplexity tab: how well the model knows a text or rows, without a LoRA and with each of some."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from ...core.engine import PerplexityOf
from ...core.errors import TrainingProError
from ...core.evaluations_table import COLUMNS, rows
from ...core.jobs import Advice, Event, Note, PerplexityFound
from ...data import dataset_index
from ...data.rows import row_dataset
from ...records.folder import loras
from ...settings.parsing import HOW_ROWS_ARE_READ, row_settings
from ..base import Form, Joined, follows, handle, markup, news, on_load, private, refused, said_last
from ..train import data_menu
from .perplexity_rows import known_rows
from .perplexity_strip import known_along
from .rows_note import rows_read

HEAD = ("data", "model", "LoRA", "perplexity", "loss a token", "tokens right", "tokens", "took")
EARLIER = 30


class PerplexityTab:
    """The components of the tab and what they do."""

    def __init__(self, joined: Joined, form: Form) -> None:
        self._joined, self._form = joined, form

    def draw(self, tab: gr.Tab) -> None:
        may = not self._joined.host_says_read_only()
        gr.HTML(markup.paragraph(EXPLAINED, quiet=True))
        with gr.Row():
            self._data = gr.Dropdown([], label="Data", allow_custom_value=True, elem_id="tp-perplexity-data")
            self._loras = gr.Dropdown(
                [],
                label="LoRAs and checkpoints, each alone",
                multiselect=True,
                allow_custom_value=True,
                elem_id="tp-perplexity-loras",
            )
        self._read = gr.HTML(elem_id="tp-perplexity-read", elem_classes="tp-said")
        with gr.Row():
            self._without = gr.Checkbox(True, label="Without a LoRA, too", min_width=200)
            self._length = gr.Number(
                0, precision=0, label="Window, tokens", info="0: what the model takes, to 2048"
            )
            self._stride = gr.Number(
                0,
                precision=0,
                label="Stride, tokens",
                info="0: half a window; not for rows",
                elem_id="tp-perplexity-stride",
            )
            self._comment = gr.Textbox(label="Comment", max_lines=1)
        with gr.Row(elem_classes="tp-buttons"):
            self._go = gr.Button("Work it out", variant="primary", interactive=may, elem_id="tp-perplexity-go")
            self._stop = gr.Button("Stop", interactive=may, elem_id="tp-perplexity-stop")
        self._chosen = gr.State([])
        self._said = gr.HTML(elem_id="tp-perplexity-said", elem_classes="tp-said")
        self._found = gr.HTML(elem_id="tp-perplexity-found")
        self._earlier = gr.HTML(elem_id="tp-perplexity-earlier")
        self._connect(tab)

    def _connect(self, tab: gr.Tab) -> None:
        form = {self._form.components[key] for key in HOW_ROWS_ARE_READ if key in self._form.components}
        asked = {self._data, self._loras, self._without, self._length, self._stride, self._comment, *form}
        working = {"what": "Perplexity", "says": self._said, "clears": {self._found: ""}, **follows()}
        handle(self._go.click, self._work, asked, [self._said, self._found, self._earlier], **working)
        handle(self._stop.click, self._stopped, None, self._said, what="Stop", says=self._said, **private())
        lists = [self._data, self._loras, self._earlier]
        # In two steps: Gradio 4 keeps what is chosen by its place in the list, and new LoRAs move the places.
        listing = {"what": "Listing data and LoRAs", "says": self._earlier, **private()}
        emptying = {"what": "Listing data and LoRAs", **private()}
        emptied = handle(tab.select, self._emptied, {self._loras}, [self._chosen, self._loras], **emptying)
        handle(emptied.then, self._lists_anew, {self._chosen}, lists, **listing)
        on_load(self._lists, lists, **listing)
        told = [self._read, self._stride]
        looking = {"what": "Looking at the data", "says": self._read, **private()}
        handle([self._data.change, tab.select], self._of_data, {self._data, *form}, told, **looking)

    def _emptied(self, given: Mapping[Any, Any]) -> tuple[Any, Any]:
        return given[self._loras] or [], gr.update(value=[])

    def _lists_anew(self, given: Mapping[Any, Any]) -> tuple[Any, Any, str]:
        """With what was chosen, as far as it is still there."""
        data, names, table = self._lists()
        there = names.get("choices") or []
        return data, {**names, "value": [name for name in given[self._chosen] if name in there]}, table

    def _lists(self) -> tuple[Any, Any, str]:
        try:
            names = loras.to_try(self._joined.host.folders.loras)
        except (TrainingProError, OSError):
            return gr.update(), gr.update(), ""
        # By their names alone: a menu of Gradio 4.37 that takes names of one's own may give the words of a choice.
        data = [name for _, name in data_menu.choices(self._joined)]
        return gr.update(choices=data), gr.update(choices=names), self._table_so_far()

    def _of_data(self, given: Mapping[Any, Any]) -> tuple[str, Any]:
        """Of rows is told how they are read, and they have no stride."""
        rows = self._has_rows(given[self._data])
        said = markup.paragraph(rows_read(self._form.values(given)), quiet=True) if rows else ""
        return said, gr.update(interactive=not rows)

    def _has_rows(self, name: Any) -> bool:
        """What is chosen; a name that is none, or not yet, has none."""
        try:
            (data,) = dataset_index.found([str(name or "")], self._joined.host.folders)
            return any(map(row_dataset.is_rows, dataset_index.files(data.path)))
        except (TrainingProError, OSError):
            return False

    async def _work(self, given: Mapping[Any, Any]) -> AsyncIterator[tuple[str, str, Any]]:
        joined = self._joined
        try:
            joined.refuse_where_read_only()
            asked, settings = self._asked(given), row_settings(self._form.values(given))
            work = partial(joined.engine.perplexity, asked, settings, joined.host)
            job = joined.session.start("perplexity", f"Perplexity of {Path(asked.data).name}", joined.host, work)
        except TrainingProError as error:
            async for said in refused(joined.session, error):
                yield said, "", gr.update()
            return
        said, events = "", list[Event]()
        yield "", "", gr.update()
        async for fresh in news(job):
            events += fresh
            said = said_last(fresh, said)
            yield said, shown(events), gr.update()
        yield said, shown(events), self._table_so_far()

    def _asked(self, given: Mapping[Any, Any]) -> PerplexityOf:
        """Of a data set by its name: whoever sees the page sees no other file of this machine."""
        name = str(given[self._data] or "").strip()
        return PerplexityOf(
            data=str(dataset_index.found([name], self._joined.host.folders)[0].path) if name else "",
            loras=tuple(given[self._loras] or ()),
            without=bool(given[self._without]),
            stride=0 if self._has_rows(name) else int(given[self._stride] or 0),
            max_length=int(given[self._length] or 0),
            comment=str(given[self._comment] or ""),
        )

    def _stopped(self) -> str:
        job = self._joined.session.latest("perplexity")
        if job is None or not job.running:
            return markup.paragraph("Nothing is being worked out.", quiet=True)
        job.control.stop()
        return markup.paragraph("Stopping.", quiet=True)

    def _table_so_far(self) -> str:
        """The last rows of the table that the host keeps, whoever put them in."""
        try:
            there = rows(self._joined.host.folders.logs)[-EARLIER:]
        except TrainingProError as error:
            return markup.problem(str(error))
        if not there:
            return ""
        told = markup.paragraph("The table so far (logs/evaluations.csv), the latest first:", quiet=True)
        return told + markup.table(COLUMNS, [[row.get(c) or "" for c in COLUMNS] for row in reversed(there)])


def shown(events: Sequence[Event]) -> str:
    """What is to be known of it, and what was worked out now, the best first."""
    told = [event.text for event in events if isinstance(event, (Note, Advice))]
    notes = markup.paragraph(" ".join(told), quiet=True) if told else ""
    found = [event for event in events if isinstance(event, PerplexityFound)]
    if not found:
        return notes
    best_first = sorted(found, key=lambda one: one.perplexity)
    table = markup.table(HEAD, [_row(one) for one in best_first])
    return notes + table + known_along(best_first) + known_rows(best_first)


def _row(one: PerplexityFound) -> tuple[str, ...]:
    known = f"{one.perplexity:.4f}", f"{one.loss:.4f}", f"{one.right:.1%}"
    return one.dataset, one.model, one.lora, *known, f"{one.tokens:,}", f"{one.seconds:.1f} s"


EXPLAINED = (
    "Perplexity is between how many tokens the model hesitates at each place of a text: lower is better known. On "
    "a text that was not trained on it tells whether a LoRA, or which checkpoint, learned something that holds; "
    "on the text that was, how far it is known by heart, and where in it. Of rows (chats, questions and answers) "
    "the replies count, and it is told which of them are known least and best."
)
