"""The Data tab: what is in a dataset, what cleaning would drop from it, a cleaned copy, and notes on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr
from markupsafe import Markup

from ...core.engine import EXAM_QUESTIONS, NOTE_KINDS, PAIR_TOKENS, StudyRequest
from ...core.errors import DataError
from ...core.files import safe_paths
from ...core.jobs import Job, JobEnded, Note, NotesTaken, Request
from ...data import dataset_index
from ..base import PageContext, StopButton, add_handler, markup, page_load, refresh_choices
from ..train import data_menu
from .data_map import MapPanel

if TYPE_CHECKING:
    from ...data import workshop

EXPLANATION = (
    "Look at a dataset before you train on it, and write a cleaned copy of it. A file that exists is never "
    "changed. Raw text is cleaned by paragraphs."
)
STEPS: Mapping[str, dict[str, Any]] = {
    "Duplicates": {"exact_duplicates": True},
    "Near duplicates": {"near_duplicates": 0.7},
    "Refusals": {"refusals": "drop"},
    "Empty replies": {"empty_replies": True},
    "Broken encoding": {"broken_encoding": True},
    "Boilerplate": {"boilerplate": True},
}
DEFAULT_STEPS = ["Duplicates", "Near duplicates", "Refusals"]
SOURCE_BOXES = {
    "from": ("Get a dataset", "OWNER/NAME of a dataset on the Hugging Face Hub, or the URL of a file."),
    "subset": ("Subset", "Of the Hub."),
    "split": ("Split", "Of the Hub. Empty: train."),
    "name": ("Save as", "Empty: by the address."),
}
EXAMPLES = Markup("<details><summary>{}</summary>{}</details>")


class DataTab:
    """The components of the tab and their event handlers."""

    def __init__(self, context: PageContext, tab: gr.Tab) -> None:
        self._context, self._enabled = context, not context.read_only_reason()
        gr.HTML(markup.paragraph(EXPLANATION, quiet=True))
        # Of both kinds of work on the dataset, which are drawn above them.
        self._status = gr.HTML(elem_id="tp-workshop-said", elem_classes="tp-said", render=False)
        self._found = gr.HTML(elem_id="tp-workshop-found", render=False)
        with gr.Accordion("Get a dataset from the Hugging Face Hub, or a file from the web", open=False):
            got = self._draw_source()
        self._data = gr.Dropdown([], label="Dataset", allow_custom_value=True, elem_id="tp-workshop-name")
        with gr.Accordion("Look at it and clean it"):
            self._draw_cleaning()
        with gr.Accordion("Let the model write: pairs, notes, an exam", open=False):
            pairs_stop, study_stop = self._draw_writing()
        self._status.render()
        self._found.render()
        with gr.Accordion("Map", open=False):
            map_stop = MapPanel(context, self._data).stop_button
        self.stop_buttons = (pairs_stop, study_stop, map_stop)
        for opened in ([tab.select, page_load()], got.then):
            refresh_choices(opened, self._data, lambda: [name for _, name in data_menu.dataset_choices(context)])

    def _draw_source(self) -> Any:
        """Draw what to get and from where; return the event of getting it."""
        self._source = dict[str, gr.Textbox]()
        with gr.Row():
            for key, (label, help_text) in SOURCE_BOXES.items():
                style = {"max_lines": 1, "scale": 2 if key == "from" else 1, "elem_id": f"tp-dataset-{key}"}
                self._source[key] = gr.Textbox(label=label, info=help_text, **style)
            self._rows = gr.Number(
                0, precision=0, label="First rows", info="0 gets all.", elem_id="tp-dataset-rows"
            )
        with gr.Row(elem_classes="tp-buttons"):
            get_button = gr.Button("Get it", interactive=self._enabled, elem_id="tp-dataset-get")
            get_stop = StopButton(self._context, "dataset", "tp-dataset-stop", on_model=False)
        status = gr.HTML(elem_id="tp-dataset-said", elem_classes="tp-said")
        get_stop.connect(status)
        wanted = {self._rows, *self._source.values()}
        return add_handler(get_button.click, self._on_get, wanted, status, what="Getting the dataset")

    def _draw_cleaning(self) -> None:
        self._steps = gr.CheckboxGroup(list(STEPS), value=DEFAULT_STEPS, label="Drop", elem_id="tp-workshop-steps")
        with gr.Row():
            options: dict[str, Any] = {
                "label": "Phrases",
                "info": "Drop rows whose reply has one, one in each line.",
            }
            self._phrases = gr.Textbox(lines=2, elem_id="tp-workshop-phrases", **options)
            self._sentences = gr.Checkbox(False, label="Drop only the sentence with a refusal or phrase")
        with gr.Row():
            help_text = "Keep only these, such as en, de. Empty keeps all."
            self._languages = gr.Textbox(
                max_lines=1, label="Languages", info=help_text, elem_id="tp-workshop-languages"
            )
            self._least = gr.Number(0, precision=0, label="Minimum words", elem_id="tp-workshop-least")
            help_text = "0 sets no limit."
            self._most = gr.Number(
                0, precision=0, label="Maximum words", info=help_text, elem_id="tp-workshop-most"
            )
        help_text = "A new file in training/datasets: .jsonl for rows, .txt or .jsonl for text."
        self._out = gr.Textbox(label="Cleaned copy", info=help_text, max_lines=1, elem_id="tp-workshop-out")
        with gr.Row(elem_classes="tp-buttons"):
            look_button = gr.Button("Look", elem_id="tp-workshop-look")
            try_button = gr.Button("Show what is dropped", elem_id="tp-workshop-try")
            write_button = gr.Button(
                "Write cleaned copy", variant="primary", interactive=self._enabled, elem_id="tp-workshop-write"
            )
        recipe = {self._steps, self._phrases, self._sentences, self._languages, self._least, self._most}
        inputs, outputs, clears = {self._data, self._out, *recipe}, [self._status, self._found], {self._found: ""}
        for button, handler, what in (
            (look_button, self._on_look, "Looking at the dataset"),
            (try_button, self._on_try, "Reading the dataset"),
            (write_button, self._on_write, "Cleaning"),
        ):
            add_handler(button.click, handler, inputs, outputs, what=what, clears=clears)

    def _draw_writing(self) -> tuple[StopButton, StopButton]:
        """Draw what the model writes on the dataset; return the Stop buttons of pairs and of notes."""
        help_text = "A new name in training/datasets: the author of a text against the model, to train on."
        self._pairs = gr.Textbox(label="Pairs", info=help_text, max_lines=1, elem_id="tp-pairs-out")
        with gr.Row(elem_classes="tp-buttons"):
            pairs_button = gr.Button("Write pairs", interactive=self._enabled, elem_id="tp-pairs")
            pairs_stop = StopButton(self._context, "pairs", "tp-pairs-stop")
        with gr.Row():
            help_text = "A new .jsonl in training/datasets, or one to resume. You can edit its rows."
            self._notes = gr.Textbox(label="Notes", info=help_text, max_lines=1, elem_id="tp-workshop-notes")
            help_text = "Links are about two passages with one name. Briefs say who, where and what happens."
            kinds: dict[str, Any] = {"label": "Kinds of notes", "info": help_text}
            self._kinds = gr.CheckboxGroup([*NOTE_KINDS], value=["questions"], **kinds)
            self._minutes = gr.Number(10, label="Minutes", minimum=0, elem_id="tp-workshop-minutes")
            help_text = "A .jsonl of questions that are not in the notes. Choose it as Exam of a run."
            self._exam = gr.Textbox(label="Exam", info=help_text, max_lines=1, elem_id="tp-workshop-exam")
        with gr.Row(elem_classes="tp-buttons"):
            exam_button = gr.Button("Write exam", interactive=self._enabled, elem_id="tp-workshop-write-exam")
            study_button = gr.Button("Take notes", interactive=self._enabled, elem_id="tp-workshop-study")
            study_stop = StopButton(self._context, "study", "tp-workshop-stop")
        inputs: set[Any] = {self._data, self._pairs}
        add_handler(pairs_button.click, self._on_pairs, inputs, self._status, what="Writing pairs")
        inputs, outputs = (
            {self._data, self._notes, self._kinds, self._minutes, self._exam},
            [self._status, self._found],
        )
        for button, handler, what in (
            (study_button, self._on_study, "Taking notes"),
            (exam_button, self._on_exam, "Writing an exam"),
        ):
            add_handler(button.click, handler, inputs, outputs, what=what, clears={self._found: ""})
        for stop_button in (pairs_stop, study_stop):
            stop_button.connect(self._status)
        return pairs_stop, study_stop

    async def _on_get(self, inputs: Mapping[Any, Any]) -> AsyncIterator[str]:
        from ...downloads import dataset

        address, subset, split, name = (str(inputs[box] or "").strip() for box in self._source.values())
        source = dataset.DatasetSource(address, subset, split, rows=int(inputs[self._rows] or 0))
        folder = self._context.host.folders.datasets
        out = safe_paths.descendant(folder, name or source.default_name, "Save as", refusal=DataError)

        def get(job: Job) -> JobEnded:
            is_stopped = partial(job.control.asked, Request.STOP)
            return dataset.get_dataset(source, out, dataset_index.DATA_SUFFIXES, job.log.append, is_stopped)

        notes = Markup()
        async for status, events in self._context.follow_job("dataset", f"Getting {address}", get, on_model=False):
            notes += markup.join(markup.paragraph(event.text) for event in events if isinstance(event, Note))
            yield notes + status

    def _on_look(self, inputs: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
        from ...data import workshop

        dataset, _, refusals = self._read(inputs)
        yield markup.paragraph(f"Looking at {dataset.path.name} ...", quiet=True), ""
        overview = workshop.look_at(dataset, workshop.EVERYTHING, refusals)
        lines = [line for line in overview.lines() if not line.startswith(" ")]
        yield "", markup.bullets(lines) + examples_html(overview.found.examples)

    def _on_try(self, inputs: Mapping[Any, Any], out: str = "") -> Iterator[tuple[str, str]]:
        from ...data import workshop

        dataset, recipe, refusals = self._read(inputs)
        yield markup.paragraph(f"Reading {dataset.path.name} ...", quiet=True), ""
        folder = self._context.host.folders.datasets
        path = safe_paths.descendant(folder, out, "Cleaned copy", refusal=DataError) if out else None
        result = workshop.clean_dataset(dataset, recipe, refusals, path)
        lines = [line for line in result.lines() if not line.startswith(" ")]
        said = f"{out} is written. You can choose it as the dataset of a run." if out else "Nothing was written."
        yield markup.paragraph(said), markup.bullets(lines) + examples_html(result.examples)

    def _on_write(self, inputs: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
        self._context.check_writable()
        out = str(inputs[self._out] or "").strip()
        if not out:
            raise DataError("Enter a name under Cleaned copy.")
        yield from self._on_try(inputs, out)

    async def _on_pairs(self, inputs: Mapping[Any, Any]) -> AsyncIterator[str]:
        """Let the model write against the author of the text; each time the table grows."""
        data, out = (str(inputs[box] or "").strip() for box in (self._data, self._pairs))
        if not data or not out:
            raise DataError("Choose a text under Dataset, and enter a name under Pairs.")
        work = partial(self._context.engine.write_pairs, data, out, PAIR_TOKENS, self._context.host)
        async for status, _ in self._context.follow_job("pairs", f"Writing pairs from {data}", work):
            yield status

    async def _on_study(self, inputs: Mapping[Any, Any]) -> AsyncIterator[tuple[str, str]]:
        minutes, exam = float(inputs[self._minutes] or 0), str(inputs[self._exam] or "").strip()
        datasets = dataset_index.find_datasets([exam] if exam else [], self._context.host.folders)
        more = {"rounds": int(not minutes), "minutes": minutes, "exams": tuple(each.path for each in datasets)}
        async for shown in self._write(inputs, self._notes, tuple(inputs[self._kinds] or ()), **more):
            yield shown

    async def _on_exam(self, inputs: Mapping[Any, Any]) -> AsyncIterator[tuple[str, str]]:
        async for shown in self._write(inputs, self._exam, ("questions",), per_section=EXAM_QUESTIONS):
            yield shown

    async def _write(
        self, inputs: Mapping[Any, Any], box: gr.Textbox, kinds: tuple[str, ...], **more: Any
    ) -> AsyncIterator[tuple[str, str]]:
        """Let the model write on the dataset into the file that is named in the box."""
        host, name = self._context.host, str(inputs[self._data] or "").strip()
        out = str(inputs[box] or "").strip()
        if not (name and out.endswith(".jsonl") and kinds):
            raise DataError(f"Choose a dataset and kinds of notes. {box.label} needs a name with .jsonl.")
        (entry,) = dataset_index.find_datasets([name], host.folders)
        path = safe_paths.descendant(host.folders.datasets, out, str(box.label), refusal=DataError)
        request = StudyRequest(str(entry.path), path, kinds, **more)
        found, work = Markup(), partial(self._context.engine.study, request, host)
        async for status, events in self._context.follow_job("study", f"{box.label} on {name}", work):
            for event in events:
                if isinstance(event, NotesTaken):
                    lines = [f"{count:,} dropped: {reason}" for reason, count in event.dropped.items()]
                    found = markup.bullets(lines) + examples_html(event.examples)
            yield status, found

    def _read(self, inputs: Mapping[Any, Any]) -> tuple[workshop.Dataset, workshop.Recipe, tuple[str, ...]]:
        """The dataset, the recipe and the refusals that the tab asks for."""
        from ...data import workshop  # with half of the program: the tab is drawn without
        from ...data.rows import load_refusal_phrases

        folders, name = self._context.host.folders, str(inputs[self._data] or "").strip()
        if not name:
            raise DataError("Choose a dataset first.")
        (entry,) = dataset_index.find_datasets([name], folders)
        values: dict[str, Any] = {}
        for step in inputs[self._steps] or ():
            values |= STEPS.get(step, {})
        if inputs[self._sentences]:
            values |= {"refusals": "sentence"} if "refusals" in values else {}
            values["phrases_drop"] = "sentence"
        values["phrases"] = list(filter(None, map(str.strip, str(inputs[self._phrases] or "").splitlines())))
        values["languages"] = str(inputs[self._languages] or "").replace(",", " ").lower().split()
        values |= {"min_words": int(inputs[self._least] or 0), "max_words": int(inputs[self._most] or 0)}
        return workshop.Dataset(entry.path), workshop.check_recipe(values, "Drop"), load_refusal_phrases(folders)


def examples_html(examples: Mapping[str, Sequence[str]]) -> Markup:
    """The examples of each step, folded."""
    return markup.join(
        EXAMPLES.format(f"{step}: examples", markup.bullets(lines)) for step, lines in examples.items()
    )
