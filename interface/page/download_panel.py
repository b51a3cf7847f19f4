"""A model of the hub brought into the models folder: beside whatever goes on, and seen on every page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr

from ...core.errors import BusyError, SettingsError, TrainingProError
from ...core.jobs import Fetched, Job, Note, Stage, Work
from ..base import PAUSE_SECONDS, Joined, follows, handle, markup, on_load, private, put_into

TITLE = "Get a model"
NAME_BOX = "tp-get-name"
SUGGESTED = ("HuggingFaceTB/SmolLM2-360M-Instruct", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B")
"""To begin with, the smallest first; what one takes on disk is said before it comes."""

Get = Callable[[str], tuple[str, Work]]
"""A model's name out of what was typed, and the work that brings it."""


class GetView:
    """A download as a page shows it, whenever that page was opened; `seen` if its end was there by then."""

    def __init__(self, job: Job, *, seen: bool) -> None:
        self.job, self.position = job, 0
        self._seen = seen
        self._fetched: Fetched | None = None
        self._announced = self._said = ""

    def catch_up(self) -> tuple[Any, ...]:
        """Take in what is new; what comes back is another when the page has to be told of it."""
        fresh = self.job.log.since(self.position)
        self.position += len(fresh)
        for event in fresh:
            if isinstance(event, Fetched):
                self._fetched, self._said = event, ""
            elif isinstance(event, Note) and not self._announced:
                self._announced = event.text
            elif isinstance(event, (Note, Stage)):
                self._said = event.text
        return self.position, self.job.running, self.job.control.stopping

    @property
    def title(self) -> str:
        """Of the folded part: how far it is can be seen there too."""
        share = f": {self._fetched.share:.0%}" if self._fetched and self.job.running else ""
        return TITLE + share

    def came(self) -> str:
        """The name of the model that came while the page was open, once; else nothing."""
        if self._seen or (end := self.job.end) is None:
            return ""
        self._seen = True
        return end.folder.name if end.folder else ""

    def html(self) -> str:
        if (end := self.job.end) is None:
            return self._going_on()
        if end.outcome == "failed":
            return markup.problem(end.text)
        if end.folder is None:
            return markup.card("", markup.paragraph(end.text), mood="fair")
        words = f"{end.text} It stands in the menu of models above: choose how to load it, then press Load model."
        return markup.card("", markup.paragraph(words), mood="good")

    def _going_on(self) -> str:
        parts = []
        if self._fetched:
            words = f"{self._fetched.share:.0%}: {self._fetched.words}"
            parts = [markup.bar(self._fetched.share), markup.paragraph(words)]
        said = "Stopping ..." if self.job.control.stopping else self._said
        quiet = (markup.paragraph(words, quiet=True) for words in (said, self._announced) if words)
        return markup.card(self.job.title, *parts, *quiet, mood="live")


class GetModel:
    """A name to type, a button, how far it is, and what came chosen in the menu of models."""

    def __init__(self, joined: Joined, get: Get) -> None:
        self._joined, self._get = joined, get
        self._asked = ""

    def draw(self) -> None:
        nothing_yet = not self._joined.host.models()
        with gr.Accordion(TITLE, open=nothing_yet, elem_id="tp-get-part") as self._part:
            with gr.Row():
                self._name = gr.Textbox(
                    label="From the Hugging Face hub",
                    placeholder="OWNER/NAME, or the address of its page",
                    max_lines=1,
                    min_width=300,
                    elem_id=NAME_BOX,
                )
                beside = {"min_width": 90, "scale": 0, "elem_classes": "tp-beside-field"}
                self._go = gr.Button("Get", elem_id="tp-get", **beside)
                self._stop = gr.Button("Stop", elem_id="tp-get-stop", **beside)
            gr.HTML(suggestions())
            self._refused = gr.HTML(elem_id="tp-get-refused", elem_classes="tp-said")
            self._said = gr.HTML(elem_id="tp-get-said", elem_classes="tp-said")
            self._again = gr.Button("Follow again", elem_classes=["tp-hidden", "tp-again"])
        self._connect()

    def _connect(self) -> None:
        getting = {"outputs": self._refused, "says": self._refused, **private()}
        handle([self._go.click, self._name.submit], self._begin, self._name, what="Getting the model", **getting)
        handle(self._stop.click, self._end, None, what="Stop", **getting)
        seen = [self._part, self._go, self._stop, self._said, self._joined.models]
        on_load(self._as_asked, [self._name], what="Filling in the model's name", **private())
        following = {"what": "Following the download", "says": self._said, **follows()}
        on_load(self.follow, seen, **following)
        handle(self._again.click, self.follow, None, seen, **following)

    def _as_asked(self) -> Any:
        """What was asked for last; where nothing was, what somebody has typed by now stays."""
        return gr.update(value=self._asked) if self._asked else gr.update()

    def _begin(self, asked: str) -> str:
        """Begin; or why that cannot be."""
        asked = asked.strip()
        try:
            self._joined.refuse_where_read_only()
            if not asked:
                raise SettingsError(["Type OWNER/NAME of a model, or paste the address of its page."])
            name, work = self._get(asked)
            self._joined.session.start_beside("download", f"Getting {name}", work)
        except TrainingProError as error:
            return markup.problem(str(error))
        self._asked = asked
        return ""

    def _end(self) -> str:
        job = self._joined.session.latest("download")
        try:
            self._joined.refuse_where_read_only()
            if job is None or not job.running:
                raise BusyError("No model is being brought.")
            job.control.stop()
        except TrainingProError as error:
            return markup.problem(str(error))
        return ""

    async def follow(self) -> AsyncIterator[dict[Any, Any]]:
        """The last download, and then whatever is new, for as long as the page is open."""
        before = self._joined.session.latest("download")
        view = GetView(before, seen=not before.running) if before else None
        shown: tuple[Any, ...] = ("nothing",)
        while True:
            job = self._joined.session.latest("download")
            if job is not None and (view is None or view.job is not job):
                view = GetView(job, seen=False)
            state = (id(view), *(view.catch_up() if view else ()))
            if state != shown:
                shown = state
                yield self._updates(view)
                if view is not None and (made := view.came()):
                    # In two steps: Gradio 4 knows what is chosen by its place, and what came moves the places.
                    yield {self._joined.models: gr.update(value=None)}
                    yield {self._joined.models: gr.update(choices=self._joined.host.models(), value=made)}
            await asyncio.sleep(PAUSE_SECONDS)

    def _updates(self, view: GetView | None) -> dict[Any, Any]:
        running = view is not None and view.job.running
        may = not self._joined.host_says_read_only()
        buttons = {
            self._go: gr.update(interactive=may and not running),
            self._stop: gr.update(interactive=may and running, visible=running),
        }
        if view is None:
            return buttons
        opened = {"open": True} if running else {}
        return {**buttons, self._said: view.html(), self._part: gr.update(label=view.title, **opened)}


def suggestions() -> str:
    """A line of names, each of which a click puts into the box."""
    buttons = (put_into(NAME_BOX, name, name.partition("/")[2]) for name in SUGGESTED)
    return f'<p class="tp-quiet tp-suggested">To begin with: {" ".join(buttons)}</p>'
