"""Download a model from the Hugging Face hub. The download runs next to other jobs, and every page shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr
from markupsafe import Markup

from ...core.errors import BusyError, SettingsError
from ...core.jobs import DownloadProgress, Job, JobFn, Note, Request, Stage, event_text
from ..base import (
    PageContext,
    add_handler,
    fill_button,
    follow_changes,
    markup,
    on_load,
    page_load,
    stop_job,
)

TITLE = "Download a model"
NAME_BOX = "tp-get-name"
# Models for beginners, the smallest first.
SUGGESTED_MODELS = ("HuggingFaceTB/SmolLM2-360M-Instruct", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B")


class DownloadView:
    """The state of a download on one page; `seen` once its end needs no new choice in the menu of models."""

    def __init__(self, job: Job, *, seen: bool) -> None:
        self.job, self.seen = job, seen
        self.fetched: DownloadProgress | None = None
        self._position, self._first_note, self._status = 0, "", ""

    def catch_up(self) -> tuple[Any, ...]:
        """Process new events; the returned state changes whenever the page must be updated."""
        events = self.job.log.since(self._position)
        self._position += len(events)
        for event in events:
            if isinstance(event, DownloadProgress):
                self.fetched, self._status = event, ""
            elif isinstance(event, Note) and not self._first_note:
                self._first_note = event.text
            elif isinstance(event, (Note, Stage)):
                self._status = event.text
        return self._position, self.job.running, self.job.control.asked(Request.STOP)

    def html(self) -> str:
        if (end := self.job.end) is None:
            parts = []
            if self.fetched:
                fetched = event_text(self.fetched)
                parts = [markup.progress_bar(self.fetched.share), markup.paragraph(fetched)]
            status = "Stopping ..." if self.job.control.asked(Request.STOP) else self._status
            lines = (markup.paragraph(words, quiet=True) for words in (status, self._first_note) if words)
            return markup.card(self.job.title, *parts, *lines, mood="live")
        if end.outcome == "failed":
            return markup.problem(end.text)
        if end.folder is None:
            return markup.card("", markup.paragraph(end.text), mood="fair")
        text = f"{end.text} It is selected in the model menu above. Choose how to load it, then press Load model."
        return markup.card("", markup.paragraph(text), mood="good")


class DownloadPanel:
    """A text box for the name, buttons, and the progress. A new model is selected in the menu of models.

    `prepare` turns the typed text into the name of the model and the function of the job that downloads it.
    """

    def __init__(self, context: PageContext, prepare: Callable[[str], tuple[str, JobFn]]) -> None:
        self._context, self._prepare = context, prepare
        self._last_request = ""

    def draw(self) -> None:
        has_no_models = not self._context.host.models()
        with gr.Accordion(TITLE, open=has_no_models, elem_id="tp-get-part") as self._accordion:
            with gr.Row():
                name = gr.Textbox(
                    label="Model on the Hugging Face Hub",
                    placeholder="OWNER/NAME, or the URL of the model's page",
                    max_lines=1,
                    min_width=300,
                    elem_id=NAME_BOX,
                )
                style = {"min_width": 90, "scale": 0, "elem_classes": "tp-beside-field"}
                self._get_button = gr.Button("Get", elem_id="tp-get", **style)
                self._stop_button = gr.Button("Stop", elem_id="tp-get-stop", **style)
            suggested = Markup(" ").join(fill_button(NAME_BOX, m, m.partition("/")[2]) for m in SUGGESTED_MODELS)
            gr.HTML(Markup('<p class="tp-quiet tp-suggested">Suggested models: {}</p>').format(suggested))
            refusal = gr.HTML(elem_id="tp-get-refused", elem_classes="tp-said")
            self._status = gr.HTML(elem_id="tp-get-said", elem_classes="tp-said")
            follow_button = gr.Button("Follow again", elem_classes=["tp-hidden", "tp-again"])

        def stop() -> str:
            self._context.check_writable()
            if stop_job(self._context.session.latest("download")):
                return ""
            raise BusyError("No download is running.")

        get = [self._get_button.click, name.submit]
        add_handler(get, self._start_download, name, refusal, what="Downloading the model")
        add_handler(self._stop_button.click, stop, None, refusal, what="Stop")
        # The last requested name; if there is none, what the user has typed stays.
        asked = lambda: gr.update(**({"value": self._last_request} if self._last_request else {}))  # noqa: E731
        on_load(asked, [name], what="Filling in the model's name")
        outputs = [self._accordion, self._get_button, self._stop_button, self._status, self._context.models]
        for event in (page_load(), follow_button.click):
            add_handler(event, self._follow, None, outputs, what="Showing the download")

    def _start_download(self, name_or_url: str) -> str:
        """Start the download; an error says why it cannot start."""
        self._context.check_writable()
        name_or_url = name_or_url.strip()
        if not name_or_url:
            raise SettingsError(["Enter the OWNER/NAME of a model, or paste the URL of its page."])
        name, work = self._prepare(name_or_url)
        self._context.session.start_without_model("download", f"Downloading {name}", work)
        self._last_request = name_or_url
        return ""

    async def _follow(self) -> AsyncIterator[dict[Any, Any]]:
        """Show the last download, then every change for as long as the page is open."""
        session, menu = self._context.session, self._context.models
        previous = session.latest("download")
        view = DownloadView(previous, seen=not previous.running) if previous else None

        def catch_up() -> object:
            nonlocal view
            job = session.latest("download")
            if job is not None and (view is None or view.job is not job):
                view = DownloadView(job, seen=False)
            return view and (id(view), *view.catch_up())

        async for _ in follow_changes(catch_up):
            running = view is not None and view.job.running
            enabled = not self._context.read_only_reason()
            updates = {
                self._get_button: gr.update(interactive=enabled and not running),
                self._stop_button: gr.update(interactive=enabled and running, visible=running),
            }
            if view is None:
                yield updates
                continue
            share = f": {view.fetched.share:.0%}" if view.fetched and running else ""
            part = gr.update(label=TITLE + share, **({"open": True} if running else {}))
            yield {**updates, self._status: view.html(), self._accordion: part}
            if (end := view.job.end) is not None and not view.seen:
                view.seen = True
                if end.folder:
                    # In two steps: Gradio 4 stores the selection by index, and a new model shifts the indices.
                    # When Gradio 4.37 goes, delete the first one.
                    yield {menu: gr.update(value=None)}
                    yield {menu: gr.update(choices=self._context.host.models(), value=end.folder.name)}
