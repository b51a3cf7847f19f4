"""The map of a dataset in the Data tab: its rows in clusters, and a dataset with a share of each cluster."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from markupsafe import Markup

from ...core.engine import MapRequest
from ...core.errors import DataError
from ...core.files import safe_paths
from ...core.jobs import JobEnded
from ...data import dataset_index
from ...data.readers import unsupported
from ...records.report import charts
from ..base import Form, PageContext, StopButton, add_handler, markup

if TYPE_CHECKING:
    from ...data import workshop

MAX_POINTS = 2000  # with their tooltips, about 400 kB
EXPLANATION = (
    "A map sorts the rows or passages by what they are about, as the loaded model sees it. Rings are far from all "
    "others of their cluster, or nearly the same as an earlier one."
)


def text_box(label: str, info: str, name: str, **options: Any) -> gr.Textbox:
    """A box for one line, unless the options say otherwise."""
    return gr.Textbox(label=label, info=info, elem_id=f"tp-{name}", **{"max_lines": 1, **options})


class MapPanel:
    """The row with the map, and its event handlers."""

    def __init__(self, context: PageContext, data: gr.Dropdown, form: Form) -> None:
        self._context, self._data, self._settings = context, data, form
        enabled = not context.read_only_reason()
        gr.HTML(markup.paragraph(EXPLANATION, quiet=True))
        with gr.Row():
            info = "Such as 2=0.5 5=0: half of cluster 2, nothing of cluster 5, and all of the others."
            self._shares = text_box("Share of each cluster", info, "map-shares")
            info = "A new .jsonl in training/datasets, with these shares."
            self._out = text_box("Save as", info, "map-out")
        with gr.Row(elem_classes="tp-buttons"):
            draw_button = gr.Button("Draw map", interactive=enabled, elem_id="tp-map-draw")
            write_button = gr.Button("Write share", interactive=enabled, elem_id="tp-map-write")
            stop_button = StopButton(context, "map", "tp-map-stop")
        status = gr.HTML(elem_id="tp-map-said", elem_classes="tp-said")
        drawn = gr.HTML(elem_id="tp-map-drawn")
        options: dict[str, Any] = {"what": "Drawing the map", "clears": {drawn: ""}}
        add_handler(draw_button.click, self._on_draw, {data} | form.row_inputs(), [status, drawn], **options)
        inputs = {data, self._shares, self._out}
        add_handler(write_button.click, self._on_write, inputs, status, what="Writing the share")
        stop_button.connect(status)

    async def _on_draw(self, inputs: Mapping[Any, Any]) -> AsyncIterator[tuple[str, str]]:
        from ...data.workshop import mapping

        data, out = self._paths(inputs)
        status: str = markup.paragraph(f"The map is in {out.name}. Remove this file to draw it anew.", quiet=True)
        if not out.exists():
            request = MapRequest(str(data), out, self._settings.values(inputs))
            work = partial(self._context.engine.draw_map, request, self._context.host)
            async for status, _ in self._context.follow_job("map", f"Map of {data.name}", work):
                yield status, ""
        if out.exists():
            yield status, map_html(mapping.read_map(out))

    def _on_write(self, inputs: Mapping[Any, Any]) -> str:
        from ...data.workshop import mapping

        self._context.check_writable()
        _, path = self._paths(inputs)
        if not path.exists():
            raise DataError("Draw the map first.")
        shares = mapping.parse_shares(str(inputs[self._shares] or "").split())
        name, folder = str(inputs[self._out] or "").strip(), self._context.host.folders.datasets
        out = safe_paths.descendant(folder, name, "Save as", refusal=DataError)
        result = mapping.keep_shares(mapping.read_map(path), shares, mapping.SEED, out)
        text = f"{name} is written: {result.kept:,} of {result.rows:,} rows."
        return markup.job_status(JobEnded(outcome="finished", text=text))

    def _paths(self, inputs: Mapping[Any, Any]) -> tuple[Path, Path]:
        """The chosen dataset, and its map."""
        name, folders = str(inputs[self._data] or "").strip(), self._context.host.folders
        if not name:
            raise DataError("Choose a dataset first.")
        (entry,) = dataset_index.find_datasets([name], folders)
        file = re.sub(r"[/\\:]+", "_", entry.name.rstrip("/")) + unsupported.MAP_SUFFIX
        return entry.path, safe_paths.descendant(folders.datasets, file, "Map", refusal=DataError)


def map_html(topic_map: workshop.mapping.TopicMap) -> Markup:
    """The picture of a map, with its legend."""
    rows = topic_map.rows[:: 1 + len(topic_map.rows) // MAX_POINTS]
    points = [
        charts.MapPoint(
            row["x"], row["y"], row["cluster"], row["begin"], row["outlier"] or row["like"] is not None
        )
        for row in rows
    ]
    lines = list(topic_map.lines())
    colors = zip(map(charts.topic_color, topic_map.clusters), lines, strict=False)
    key = Markup('<p class="tp-quiet tp-key">{}</p>').format(markup.legend(colors))
    return Markup(charts.draw_topics(points)) + key + markup.bullets(lines[len(topic_map.clusters) :])
