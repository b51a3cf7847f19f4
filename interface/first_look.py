"""The first look: a beginning, one button that trains for two minutes, and the answers with and without."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from functools import partial

import gradio as gr

from ..core.engine import Question
from ..core.errors import TrainingProError
from ..core.events import Progress
from ..core.session import Job
from ..settings.declared import TrainingSettings
from ..settings.reading import training_settings
from . import wording
from .gradio_versions import private
from .joined import Joined, training
from .run_view import RunView
from .try_tab import answers

NAME = "first-look"
SECONDS = 120
BEGINNING = "Old Maren Tull ran the ferry at Low Water, and she ran it by"
VALUES: Mapping[str, object] = {
    # What shows on a model this small within two minutes: a high rate (its best is nearer 1e-3 than
    # 2e-4), short blocks, and as many steps as the time allows, up to a text learned by heart.
    "name": NAME,
    "data": ["story.txt"],
    "cutoff": 128,
    "batch_size": 4,
    "epochs": 20,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "rank": 16,
    "alpha": 16,
    "save_each_epoch": False,
    "sample_every": "never",  # two minutes are for learning; both answers come at the end
    "if_exists": "replace",
}


class FirstLook:
    """One button, from nothing to a LoRA that can be seen at work."""

    def __init__(self, joined: Joined, *, seconds: float = SECONDS) -> None:
        self._joined, self._seconds = joined, seconds

    def draw(self) -> None:
        with gr.Accordion("First look: train on a short story and see what changes", open=True):
            self._prompt = gr.Textbox(BEGINNING, label="The beginning of a text", elem_id="tp-first-prompt")
            self._go = gr.Button("Train 2 minutes", variant="primary", elem_id="tp-first-look")
            self._said = gr.HTML(elem_id="tp-first-said")
            with gr.Row():
                self._without = gr.Textbox(
                    label="The model goes on, without the LoRA",
                    lines=6,
                    interactive=False,
                    elem_id="tp-first-without",
                )
                self._with = gr.Textbox(label="With the LoRA", lines=6, interactive=False, elem_id="tp-first-with")
        self._go.click(self._run, self._prompt, [self._said, self._without, self._with], **private())

    async def _run(self, prompt: str) -> AsyncIterator[tuple[str, str, str]]:
        joined = self._joined
        try:
            settings = training_settings(VALUES)
            job = self._start(settings)
        except TrainingProError as error:
            yield wording.problem(str(error)), "", ""
            return
        view = RunView(job)
        async for said in _following(view):
            yield said, "", ""
        if job.end is None or job.end.outcome == "failed":
            return
        question = Question(prompt=prompt or BEGINNING, lora=NAME, max_tokens=60, temperature=0)
        async for said, texts in answers(
            joined, "Answering", partial(joined.engine.answer, question, joined.host)
        ):
            yield said or view.html(), texts["without"], texts["with"]

    def _start(self, settings: TrainingSettings) -> Job:
        joined = self._joined
        work = partial(joined.engine.train, settings, joined.host)
        job = joined.session.start("training", training(NAME), joined.host, work)
        threading.Thread(target=_stop_after, args=(job, self._seconds), name="two minutes", daemon=True).start()
        return job


async def _following(view: RunView) -> AsyncIterator[str]:
    while view.running:
        before = view.position
        view.catch_up()
        if view.position != before:
            yield view.html()
        await asyncio.sleep(0.5)


def _stop_after(job: Job, seconds: float) -> None:
    """Stop the run so many seconds after its first step; what it learned until then is kept."""
    for event in job.log.follow():
        if isinstance(event, Progress):
            threading.Timer(seconds, job.control.stop).start()
            return
