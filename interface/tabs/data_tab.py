"""The Data tab: get a dataset, look at it, clean, split, convert and map it, and let the model write about it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gradio as gr
from markupsafe import Markup

from ...core.engine import EXAM_QUESTIONS, NOTE_KINDS, PAIR_TOKENS, MapRequest, StudyRequest
from ...core.errors import DataError, StoppedError
from ...core.files import safe_paths, usable_entries
from ...core.host import Folders
from ...core.jobs import Job, JobEnded, Note, NotesTaken, Request, Stage
from ...data import dataset_index
from ...data.readers import unsupported
from ...records.report import charts
from ...settings.parsing import row_settings
from ..base import Form, PageContext, StopButton, add_handler, markup, page_load, refresh_choices
from ..train import data_menu

if TYPE_CHECKING:
    from ...data import workshop

EXPLANATION = (
    "Look at a dataset before you train on it, clean, split or convert it, and let the model write about it. A "
    "file that exists is never overwritten; pairs, notes and exams are added to it. Raw text is cleaned by "
    "paragraphs. Chats and tables are read with the settings of the Train tab."
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
FORMS = {
    "what fits it": "", "chats (messages)": "messages", "instruction and output": "instruction", "text": "text",
}  # fmt: skip
Step = Literal["look", "try", "clean", "split", "convert"]
MAX_POINTS = 2000  # with their tooltips, about 400 kB
MAP_EXPLANATION = (
    "A map sorts the rows or passages by what they are about, as the loaded model sees it. Rings are far from all "
    "others of their cluster, or nearly the same as an earlier one."
)


def text_box(label: str, info: str, name: str, **options: Any) -> gr.Textbox:
    """A box for one line, unless the options say otherwise."""
    return gr.Textbox(label=label, info=info, elem_id=f"tp-{name}", **{"max_lines": 1, **options})


def chosen_dataset(name: object, folders: Folders) -> dataset_index.DatasetEntry:
    if not (text := str(name or "").strip()):
        raise DataError("Choose a dataset first.")
    (entry,) = dataset_index.find_datasets([text], folders)
    return entry


class DataTab:
    """The components of the tab and their event handlers."""

    def __init__(self, context: PageContext, tab: gr.Tab, form: Form) -> None:
        self._context, self._settings, self._enabled = context, form, not context.read_only_reason()
        gr.HTML(markup.paragraph(EXPLANATION, quiet=True))
        # Of all work on the dataset, which is drawn above them.
        self._status = gr.HTML(elem_id="tp-workshop-said", elem_classes="tp-said", render=False)
        self._found = gr.HTML(elem_id="tp-workshop-found", render=False)
        with gr.Accordion("Get a dataset from the Hugging Face Hub, or a file from the web", open=False):
            got = self._draw_source()
        self._data = gr.Dropdown([], label="Dataset", allow_custom_value=True, elem_id="tp-workshop-name")
        with gr.Accordion("Look at it and clean it"):
            self._draw_cleaning()
        with gr.Accordion("Split it, or convert it to another form", open=False):
            self._draw_splitting()
        with gr.Accordion("Let the model write: pairs, notes, an exam", open=False):
            self._draw_writing()
        self._status.render()
        self._found.render()
        self._connect_reading()
        with gr.Accordion("Map", open=False):
            MapPanel(context, self._data, form)
        for opened in ([tab.select, page_load()], got.then):
            refresh_choices(opened, self._data, lambda: [name for _, name in data_menu.dataset_choices(context)])
        refresh_choices([tab.select, page_load()], self._recipe, self._list_recipes)

    def _button(self, label: str, name: str, **options: Any) -> gr.Button:
        return gr.Button(label, elem_id=f"tp-{name}", **{"interactive": self._enabled, **options})

    def _draw_source(self) -> Any:
        """Draw what to get and from where; return the event of getting it."""
        self._source = dict[str, gr.Textbox]()
        with gr.Row():
            for key, (label, info) in SOURCE_BOXES.items():
                self._source[key] = text_box(label, info, f"dataset-{key}", scale=2 if key == "from" else 1)
            self._rows = gr.Number(
                0, precision=0, label="First rows", info="0 gets all.", elem_id="tp-dataset-rows"
            )
        with gr.Row(elem_classes="tp-buttons"):
            get_button = self._button("Get it", "dataset-get")
            get_stop = StopButton(self._context, "dataset", "tp-dataset-stop", on_model=False)
        status = gr.HTML(elem_id="tp-dataset-said", elem_classes="tp-said")
        get_stop.connect(status)
        wanted = {self._rows, *self._source.values()}
        return add_handler(get_button.click, self._on_get, wanted, status, what="Getting the dataset")

    def _draw_cleaning(self) -> None:
        self._steps = gr.CheckboxGroup(list(STEPS), value=DEFAULT_STEPS, label="Drop", elem_id="tp-workshop-steps")
        with gr.Row():
            info = "Drop rows whose reply has one, one in each line."
            self._phrases = text_box("Phrases", info, "workshop-phrases", lines=2, max_lines=20)
            self._sentences = gr.Checkbox(False, label="Drop only the sentence with a refusal or phrase")
        with gr.Row():
            info = "Keep only these, such as en, de. Empty keeps all."
            self._languages = text_box("Languages", info, "workshop-languages")
            self._least = gr.Number(0, precision=0, label="Minimum words", elem_id="tp-workshop-least")
            options: dict[str, Any] = {"precision": 0, "info": "0 sets no limit."}
            self._most = gr.Number(0, label="Maximum words", elem_id="tp-workshop-most", **options)
            options = {"allow_custom_value": False, "elem_id": "tp-workshop-recipe"}
            options["info"] = "Of an earlier cleaned copy. It replaces all of the above."
            self._recipe = gr.Dropdown([("(none)", "")], value="", label="Recipe", **options)
        info = "A new file in training/datasets: .jsonl for rows, .txt for text (a run slices no rows)."
        self._out = text_box("Cleaned copy", info, "workshop-out")
        with gr.Row(elem_classes="tp-buttons"):
            self._read_buttons: dict[Step, gr.Button] = {
                "look": self._button("Look", "workshop-look", interactive=True),
                "try": self._button("Show what is dropped", "workshop-try", interactive=True),
                "clean": self._button("Write cleaned copy", "workshop-write", variant="primary"),
            }
            self._reading_stop = StopButton(self._context, "cleaning", "tp-workshop-halt", on_model=False)

    def _draw_splitting(self) -> None:
        with gr.Row():
            options: dict[str, Any] = {"minimum": 0, "maximum": 1, "info": "0.1 keeps a tenth for validation."}
            self._share = gr.Number(0.1, label="Validation share", elem_id="tp-workshop-share", **options)
            info = "A new folder in training/datasets, for train and validation (.jsonl, or .txt of a text)."
            self._folder = text_box("Folder", info, "workshop-folder")
            self._form = gr.Dropdown(list(FORMS.items()), value="", label="Form", elem_id="tp-workshop-form")
            info = "A new .jsonl in training/datasets, with all rows in this form."
            self._converted = text_box("Converted copy", info, "workshop-converted")
        with gr.Row(elem_classes="tp-buttons"):
            self._read_buttons["split"] = self._button("Split", "workshop-split")
            self._read_buttons["convert"] = self._button("Convert", "workshop-convert")

    def _connect_reading(self) -> None:
        """Connect the buttons of what reads the dataset and asks nothing of the model."""
        steps = {self._steps, self._phrases, self._sentences, self._languages, self._least, self._most}
        copies = {self._recipe, self._out, self._share, self._folder, self._form, self._converted}
        inputs, clears = {self._data, *steps, *copies, *self._settings.row_inputs()}, {self._found: ""}
        for step, button in self._read_buttons.items():
            handler, shown = partial(self._on_read, step), [self._status, self._found]
            done = add_handler(button.click, handler, inputs, shown, what=str(button.value), clears=clears)
            if step == "clean":  # its recipe is there now
                refresh_choices(done.then, self._recipe, self._list_recipes)
        self._reading_stop.connect(self._status)

    def _draw_writing(self) -> None:
        info = "A new name in training/datasets: the author of a text against the model, to train on."
        self._pairs = text_box("Pairs", info, "pairs-out")
        with gr.Row(elem_classes="tp-buttons"):
            pairs_button = self._button("Write pairs", "pairs")
            pairs_stop = StopButton(self._context, "pairs", "tp-pairs-stop")
        with gr.Row():
            info = "A new .jsonl in training/datasets, or one to resume. You can edit its rows."
            self._notes = text_box("Notes", info, "workshop-notes")
            info = "Links are about two passages with one name. Briefs say who, where and what happens."
            self._kinds = gr.CheckboxGroup([*NOTE_KINDS], value=["questions"], label="Kinds of notes", info=info)
            self._minutes = gr.Number(10, label="Minutes", minimum=0, elem_id="tp-workshop-minutes")
            info = "A .jsonl of questions that are not in the notes. Choose it as Exam of a run."
            self._exam = text_box("Exam", info, "workshop-exam")
        with gr.Row(elem_classes="tp-buttons"):
            exam_button = self._button("Write exam", "workshop-write-exam")
            study_button = self._button("Take notes", "workshop-study")
            study_stop = StopButton(self._context, "study", "tp-workshop-stop")
        inputs: set[Any] = {self._data, self._pairs}
        add_handler(pairs_button.click, self._on_pairs, inputs, self._status, what="Writing pairs")
        inputs = {self._data, self._notes, self._kinds, self._minutes, self._exam, *self._settings.row_inputs()}
        options: dict[str, Any] = {"outputs": [self._status, self._found], "clears": {self._found: ""}}
        add_handler(study_button.click, self._on_study, inputs, what="Taking notes", **options)
        add_handler(exam_button.click, self._on_exam, inputs, what="Writing an exam", **options)
        for stop_button in (pairs_stop, study_stop):
            stop_button.connect(self._status)

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

    async def _on_read(self, step: Step, inputs: Mapping[Any, Any]) -> AsyncIterator[tuple[str, str]]:
        """Read the dataset, show what is found, and write a copy where the step has one."""
        from ...data import workshop  # with half of the program: the tab is drawn without
        from ...data.rows import load_refusal_phrases

        folders = self._context.host.folders
        path = chosen_dataset(inputs[self._data], folders).path
        recipe = self._chosen_recipe(inputs) if step in ("try", "clean") else workshop.EVERYTHING
        refusals = load_refusal_phrases(folders)
        box = {"clean": self._out, "split": self._folder, "convert": self._converted}.get(step)
        name = str(inputs[box] or "").strip() if box else ""
        if box and not name:
            raise DataError(f"Enter a name under {box.label}.")
        out = safe_paths.descendant(folders.datasets, name, str(box.label), refusal=DataError) if box else None
        found = list[workshop.Cleaned | workshop.Overview]()
        rows = row_settings(self._settings.values(inputs))

        def read(job: Job) -> JobEnded:
            def report(records: int) -> None:
                if job.control.asked(Request.STOP):
                    raise StoppedError("Stopped. Nothing was written.")
                job.log.append(Stage(text=f"Reading {path.name}: {records:,} records"))

            dataset = workshop.Dataset(path, rows, report=report)
            said = (
                f"{name} is written. To choose it on the Train tab, press Refresh there."
                if out
                else "Nothing was written."
            )
            match step, out:
                case "look", _:
                    found.append(workshop.look_at(dataset, recipe, refusals))
                case "split", Path():
                    result = workshop.split_dataset(dataset, float(inputs[self._share] or 0), 42, out)
                    found.append(result)
                    training, validation = (f"{name}/{file}" for file in result.written)
                    said = f"A run takes {training} as Dataset and {validation} as Evaluation dataset."
                case "convert", Path():
                    found.append(workshop.convert_dataset(dataset, inputs[self._form] or None, out))
                case _:
                    found.append(workshop.clean_dataset(dataset, recipe, refusals, out))
            return JobEnded(outcome="finished", text=said)

        options: dict[str, Any] = {"on_model": False, "writes": out is not None}
        async for status, _ in self._context.follow_job("cleaning", f"Reading {path.name}", read, **options):
            yield status, ""
        for result in found:
            lines = [line for line in result.lines() if not line.startswith(" ")]
            cleaned = result if isinstance(result, workshop.Cleaned) else result.found
            yield status, markup.bullets(lines) + examples_html(cleaned.examples)

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
        host = self._context.host
        data = chosen_dataset(inputs[self._data], host.folders).path
        out = str(inputs[box] or "").strip()
        if not (out and kinds):
            raise DataError(f"Choose kinds of notes. {box.label} needs a name with .jsonl.")
        path = safe_paths.descendant(host.folders.datasets, out, str(box.label), refusal=DataError)
        request = StudyRequest(str(data), path, kinds, rows=self._settings.values(inputs), **more)
        found, work = Markup(), partial(self._context.engine.study, request, host)
        async for status, events in self._context.follow_job("study", f"{box.label} on {data.name}", work):
            for event in events:
                if isinstance(event, NotesTaken):
                    lines = [f"{count:,} dropped: {reason}" for reason, count in event.dropped.items()]
                    found = markup.bullets(lines) + examples_html(event.examples)
            yield status, found

    def _chosen_recipe(self, inputs: Mapping[Any, Any]) -> workshop.Recipe:
        """The recipe of the menu, or what the tab asks for."""
        from ...data import workshop

        if name := str(inputs[self._recipe] or ""):
            folder = self._context.host.folders.datasets
            return workshop.read_recipe(safe_paths.child(folder, name, "Recipe", refusal=DataError))
        values: dict[str, Any] = {}
        for step in inputs[self._steps] or ():
            values |= STEPS.get(step, {})
        if inputs[self._sentences]:
            values |= {"refusals": "sentence"} if "refusals" in values else {}
            values["phrases_drop"] = "sentence"
        values["phrases"] = list(filter(None, map(str.strip, str(inputs[self._phrases] or "").splitlines())))
        values["languages"] = str(inputs[self._languages] or "").replace(",", " ").lower().split()
        values |= {"min_words": int(inputs[self._least] or 0), "max_words": int(inputs[self._most] or 0)}
        return workshop.check_recipe(values, "Drop")

    def _list_recipes(self) -> list[tuple[str, str]]:
        names = sorted(path.name for path in usable_entries(self._context.host.folders.datasets))
        recipes = [name for name in names if name.endswith(unsupported.RECIPE_SUFFIX)]
        return [("(none)", ""), *((name.removesuffix(unsupported.RECIPE_SUFFIX), name) for name in recipes)]


def examples_html(examples: Mapping[str, Sequence[str]]) -> Markup:
    """The examples of each step, folded."""
    return markup.join(markup.fold(f"{step}: examples", markup.bullets(lines)) for step, lines in examples.items())


class MapPanel:
    """The row with the map, and its event handlers."""

    def __init__(self, context: PageContext, data: gr.Dropdown, form: Form) -> None:
        self._context, self._data, self._settings = context, data, form
        enabled = not context.read_only_reason()
        gr.HTML(markup.paragraph(MAP_EXPLANATION, quiet=True))
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
        folders = self._context.host.folders
        entry = chosen_dataset(inputs[self._data], folders)
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
