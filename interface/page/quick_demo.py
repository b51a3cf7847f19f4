"""The first look: a beginning, one button that trains for two minutes, and the answers with and without."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import Question
from ...core.errors import BusyError, TrainingProError
from ...core.jobs import Ended, Job, TimeLimit, TimeLimited, Work
from ...settings.parsing import training_settings
from ..base import PAUSE_SECONDS, Joined, follows, handle, markup, on_load, private, refused, said_last
from ..run import WISHES, RunView
from ..tabs import take_in

NAME = "first-look"
SECONDS = 120
OVER = "the two minutes are over"
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


@dataclass
class Look:
    """One first look: its run, and the answers that follow when that has ended."""

    prompt: str
    run: Job
    answer: Job | None = None


class LookView:
    """A look as a page shows it, from its first event, whenever that page was opened."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self._run = RunView(look.run)
        self._answered = 0
        self._said = ""
        self.texts = {"without": "", "with": ""}

    def catch_up(self) -> tuple[Any, ...]:
        """Take in what is new; what comes back is another when the page has to be told of it."""
        self._run.catch_up()
        if self.look.answer is not None:
            fresh = self.look.answer.log.since(self._answered)
            self._answered += len(fresh)
            take_in(fresh, self.texts)
            self._said = said_last(fresh, self._said)
        control = self.look.run.control
        return self._run.position, self._answered, control.pausing, *(wish(control) for wish in WISHES)

    def html(self) -> str:
        end = self.look.run.end
        over = end is not None and end.time_over
        words = f"The two minutes are over at step {self._run.step}: here is what it learned."
        head = markup.card("", markup.paragraph(words), mood="good") if over else ""
        return head + self._run.html() + self._said


class FirstLook:
    """One button, from nothing to a LoRA that can be seen at work."""

    def __init__(self, joined: Joined, *, seconds: float = SECONDS) -> None:
        self._joined, self._seconds = joined, seconds
        self._look: Look | None = None

    def draw(self) -> None:
        with gr.Accordion("First look: train on a short story and see what changes", open=True):
            self._prompt = gr.Textbox(BEGINNING, label="The beginning of a text", elem_id="tp-first-prompt")
            self._go = gr.Button("Train 2 minutes", variant="primary", elem_id="tp-first-look")
            self._refused = gr.HTML(elem_id="tp-first-refused", elem_classes="tp-said")
            self._said = gr.HTML(elem_id="tp-first-said", elem_classes="tp-said")
            with gr.Row():
                self._without = gr.Textbox(
                    label="The model goes on, without the LoRA",
                    lines=6,
                    interactive=False,
                    elem_id="tp-first-without",
                )
                self._with = gr.Textbox(label="With the LoRA", lines=6, interactive=False, elem_id="tp-first-with")
            self._again = gr.Button("Follow again", elem_classes=["tp-hidden", "tp-again"])
        shown = [self._go, self._said, self._without, self._with]
        handle(
            self._go.click,
            self.press,
            self._prompt,
            self._refused,
            what="First look",
            says=self._refused,
            **follows(),
        )
        on_load(self._asked, [self._prompt], what="Filling in the beginning", **private())
        following = {
            "what": "Following the first look",
            "says": self._said,
            "clears": {self._without: "", self._with: ""},
            **follows(),
        }
        on_load(self.follow, shown, **following)
        handle(self._again.click, self.follow, None, shown, **following)

    async def press(self, prompt: str) -> AsyncIterator[str]:
        """Start; where that cannot be, why, for as long as it is so."""
        try:
            self._start(prompt or BEGINNING)
        except TrainingProError as error:
            async for said in refused(self._joined.session, error):
                yield said
        else:
            yield ""

    def _asked(self) -> str:
        """The beginning that the answers on this page belong to."""
        return self._look.prompt if self._look else BEGINNING

    async def follow(self) -> AsyncIterator[dict[Any, Any]]:
        """The whole of the last look, and then whatever is new, for as long as the page is open."""
        view: LookView | None = None
        shown: tuple[Any, ...] = ()
        while True:
            if self._look is not None and (view is None or view.look is not self._look):
                view = LookView(self._look)
            state = (self._joined.session.current is None, id(view), *(view.catch_up() if view else ()))
            if state != shown:
                shown = state
                yield self._updates(view)
            await asyncio.sleep(PAUSE_SECONDS)

    def _updates(self, view: LookView | None) -> dict[Any, Any]:
        free = gr.update(interactive=self._joined.session.current is None)
        if view is None:
            return {self._go: free}
        return {
            self._go: free,
            self._said: view.html(),
            self._without: view.texts["without"],
            self._with: view.texts["with"],
        }

    def _start(self, prompt: str) -> None:
        joined, settings = self._joined, training_settings(VALUES)
        work = partial(joined.engine.train, settings, joined.host)
        job = joined.session.train(NAME, joined.host, partial(self._limited, work))
        self._look = Look(prompt, job)
        threading.Thread(target=self._answer_after, args=(self._look,), name="first look", daemon=True).start()

    def _limited(self, work: Work, job: Job) -> Ended:
        """The run, which ends after its two minutes by itself."""
        job.control.limit_time(TimeLimit(self._seconds, OVER))
        job.log.append(TimeLimited(seconds=self._seconds))
        return work(job)

    def _answer_after(self, look: Look) -> None:
        """Both answers when the run has ended, also with no page open; whoever has the model goes first."""
        look.run.log.wait_closed()
        if look.run.end is None or look.run.end.folder is None:
            return
        joined = self._joined
        question = Question(prompt=look.prompt, lora=NAME, max_tokens=60, temperature=0)
        work = partial(joined.engine.answer, question, joined.host)
        while look is self._look and look.answer is None:
            try:
                look.answer = joined.session.start("answer", "Answering", joined.host, work)
            except BusyError:
                if (busy := joined.session.current) is not None:
                    busy.log.wait_closed()
