"""A quick demo: one button trains for two minutes, then the model continues a text with and without the LoRA."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import AnswerRequest
from ...core.errors import BusyError, TrainingProError
from ...core.jobs import Job, JobEnded, JobFn, TimeLimit, TimeLimited
from ...settings.parsing import training_settings
from ..base import (
    PageContext,
    add_handler,
    follow_changes,
    follow_refusal,
    latest_status,
    markup,
    on_load,
    page_load,
)
from ..run import RunView
from ..tabs import append_answers

LORA_NAME = "first-look"
TIME_LIMIT_SECONDS = 120
NEXT_STEP = "To train on your own text, collapse this demo, press Add files on the Train tab, and press Start."
TIME_LIMIT_NOTE = "The run stops two minutes after its first step."
TIME_LIMIT_REASON = "the two-minute limit was reached"
DEFAULT_PROMPT = "Old Maren Tull ran the ferry at Low Water, and she ran it by"
DEMO_VALUES: Mapping[str, object] = {
    # Settings with a visible effect on such a small model within two minutes: a high learning rate (the best
    # one is nearer 1e-3 than 2e-4), short blocks, and as many steps as the time allows, up to a memorized text.
    "name": LORA_NAME,
    "data": ["story.txt"],
    "cutoff": 128,
    "batch_size": 4,
    "epochs": 20,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "rank": 16,
    "alpha": 16,
    "save_each_epoch": False,
    "sample_every": "never",  # the two minutes are for training; both answers come at the end
    "if_exists": "replace",
}


@dataclass
class Demo:
    """One demo: its run, and the job that answers after the run."""

    prompt: str
    run: Job
    answer: Job | None = None


class DemoView:
    """The state of a demo on one page, from its first event."""

    def __init__(self, demo: Demo) -> None:
        self.demo = demo
        self._run_view = RunView(demo.run)
        self._answer_position = 0
        self._status = ""
        self.texts = {"without": "", "with": ""}

    def catch_up(self) -> tuple[Any, ...]:
        """Process new events; the returned state changes whenever the page must be updated."""
        self._run_view.catch_up()
        if self.demo.answer is not None:
            events = self.demo.answer.log.since(self._answer_position)
            self._answer_position += len(events)
            append_answers(events, self.texts)
            self._status = latest_status(events, self._status)
        return self._run_view.position, self._answer_position, self.demo.run.control.pending

    def html(self) -> str:
        """The run, or what came of it: then the replies below are what counts, and the run is folded away."""
        end, answer, run = self.demo.run.end, self.demo.answer, self._run_view.html()
        if end is None:
            return markup.join((markup.paragraph(TIME_LIMIT_NOTE, quiet=True), run))
        text = f"The two-minute limit was reached at step {self._run_view.step}. Compare the replies below."
        message = markup.card("", markup.paragraph(text), mood="good") if end.time_over else ""
        if answer is None or answer.end is None:
            return markup.join((message, run, self._status))
        details, next_step = markup.fold("Details of the run", run), markup.paragraph(NEXT_STEP)
        return markup.join((message, details, self._status, next_step))


class QuickDemo:
    """One button that trains a LoRA and shows its effect."""

    def __init__(self, context: PageContext, *, seconds: float = TIME_LIMIT_SECONDS) -> None:
        self._context, self._seconds = context, seconds
        self._demo: Demo | None = None

    def draw(self) -> None:
        title = "Quick demo: train on a short story and see what changes"
        with gr.Accordion(title, open=True, elem_id="tp-first-part") as self._fold:
            self._prompt = gr.Textbox(DEFAULT_PROMPT, label="Start of a text", elem_id="tp-first-prompt")
            self._start_button = gr.Button("Train for 2 minutes", variant="primary", elem_id="tp-first-look")
            self._refusal = gr.HTML(elem_id="tp-first-refused", elem_classes="tp-said")
            self._status = gr.HTML(elem_id="tp-first-said", elem_classes="tp-said")
            with gr.Row():
                self._without = gr.Textbox(
                    label="Without the LoRA",
                    lines=6,
                    interactive=False,
                    elem_id="tp-first-without",
                )
                self._with = gr.Textbox(label="With the LoRA", lines=6, interactive=False, elem_id="tp-first-with")
            self._follow_button = gr.Button("Follow again", elem_classes=["tp-hidden", "tp-again"])
        outputs = [self._start_button, self._status, self._without, self._with, self._fold]
        add_handler(self._start_button.click, self.press, self._prompt, self._refusal, what="Quick demo")
        on_load(self._current_prompt, [self._prompt, self._fold], what="Filling in the prompt")
        options: dict[str, Any] = {
            "what": "Showing the demo",
            "clears": {self._without: "", self._with: ""},
        }
        for event in (page_load(), self._follow_button.click):
            add_handler(event, self.follow, None, outputs, **options)

    async def press(self, prompt: str) -> AsyncIterator[str]:
        """Start the demo, or show why it cannot start for as long as that is so."""
        try:
            self._start(prompt or DEFAULT_PROMPT)
        except TrainingProError as error:
            async for message in follow_refusal(self._context.session, error):
                yield message
        else:
            yield ""

    def _current_prompt(self) -> tuple[str, Any]:
        """The prompt of the answers on this page, and whether the demo is folded away."""
        return self._demo.prompt if self._demo else DEFAULT_PROMPT, gr.update(open=not self._is_outdated())

    def _is_outdated(self) -> bool:
        """Whether the last run is the user's own, so that the demo only takes up space."""
        latest = self._context.session.latest("training")
        return latest is not None and (self._demo is None or latest is not self._demo.run)

    async def follow(self) -> AsyncIterator[dict[Any, Any]]:
        """Show the last demo, then every change for as long as the page is open."""
        view: DemoView | None = None
        outdated = self._is_outdated()

        def catch_up() -> object:
            nonlocal view
            if self._demo is not None and (view is None or view.demo is not self._demo):
                view = DemoView(self._demo)
            return self._context.session.current is None, view and (id(view), *view.catch_up())

        async for _ in follow_changes(catch_up):
            was_outdated, outdated = outdated, self._is_outdated()
            folded = {self._fold: gr.update(open=False)} if outdated and not was_outdated else {}
            yield {**self._updates(view), **folded}

    def _updates(self, view: DemoView | None) -> dict[Any, Any]:
        updates = {self._start_button: gr.update(interactive=self._context.session.current is None)}
        if view is None:
            return updates
        texts = {self._without: view.texts["without"], self._with: view.texts["with"]}
        return {**updates, self._status: view.html(), **texts}

    def _start(self, prompt: str) -> None:
        context, settings = self._context, training_settings(DEMO_VALUES)
        work = partial(context.engine.train, settings, context.host)
        job = context.session.train(LORA_NAME, context.host, partial(self._run_with_limit, work))
        self._demo = Demo(prompt, job)
        threading.Thread(target=self._answer_after, args=(self._demo,), name="first look", daemon=True).start()

    def _run_with_limit(self, work: JobFn, job: Job) -> JobEnded:
        """Train until the time limit."""
        job.control.time_limit = TimeLimit(self._seconds, TIME_LIMIT_REASON)
        job.log.append(TimeLimited(seconds=self._seconds))
        return work(job)

    def _answer_after(self, demo: Demo) -> None:
        """Generate both answers after the run, also with no page open. Other jobs on the model go first."""
        demo.run.log.wait_closed()
        if demo.run.end is None or demo.run.end.folder is None:
            return
        context = self._context
        question = AnswerRequest(prompt=demo.prompt, lora=LORA_NAME, max_tokens=60, temperature=0)
        work = partial(context.engine.answer, question, context.host)
        while demo is self._demo and demo.answer is None:
            try:
                demo.answer = context.session.start("answer", "Generating text", context.host, work)
            except BusyError:
                if (running := context.session.current) is not None:
                    running.log.wait_closed()
