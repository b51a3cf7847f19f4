"""The queue on the page: a button that puts the form into it, the list of what waits, and what came of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from html import escape
from typing import Any

import gradio as gr

from ...core.errors import TrainingProError, in_words
from ...core.jobs import Turns
from ...records.queue import Done, InLine, Queue, Waiting
from ...settings import presets
from ...train_utils import plural
from ..base import Form, Joined, follows, handle, markup, on_load, private, use

LOOK_SECONDS = 0.5


class QueueView:
    """Follows the list on disk and the session's turns; every page sees the same."""

    def __init__(self, joined: Joined, form: Form) -> None:
        self._joined, self._form = joined, form
        self._line = InLine(joined.host, joined.engine, joined.session)
        self._last = Queue()

    def draw_button(self) -> None:
        """Beside Start."""
        may = not self._joined.host_says_read_only()
        self._put = gr.Button(PUT, interactive=may, elem_id="tp-queue-put")

    def draw(self) -> None:
        with suppress(TrainingProError, OSError):  # told where the list stands
            self._line.set_right()
        self._said = gr.HTML(elem_id="tp-queue-said", elem_classes="tp-said")
        self._list = gr.HTML(elem_id="tp-queue", elem_classes="tp-said")
        self._go_on = gr.Button(GO_ON, visible=False, elem_id="tp-queue-go-on")
        self._wish = gr.Textbox(label="Queue", elem_id="tp-queue-wish", elem_classes="tp-hidden")
        self._again = gr.Button("Follow again", elem_classes=["tp-hidden", "tp-again"])

    def connect(self) -> None:
        shown = [self._list, self._go_on, self._put]
        told = {"outputs": self._said, "says": self._said, **private()}
        handle(self._put.click, self._on_put, self._form.inputs(), what=PUT, **told)
        handle(self._go_on.click, partial(self._done, lambda line: line.go_on()), None, what=GO_ON, **told)
        handle(self._wish.change, self._on_wish, self._wish, what="Changing the queue", **told)
        following = {"what": "Following the queue", "says": self._list, **follows()}
        on_load(self._follow, shown, **following)
        handle(self._again.click, self._follow, None, shown, **following)

    def following(self) -> str:
        """The name of the run that begins by itself when this one ends."""
        session = self._joined.session
        if not session.turns.going or (session.current is not None and session.current.control.stopping):
            return ""
        return next((run.name for run in self._seen()[0].waiting if not run.skipped), "")

    def _on_put(self, given: Mapping[Any, Any]) -> Iterator[str]:
        yield markup.paragraph("Checking it first ...", quiet=True)
        values = self._form.values(given)
        yield self._done(lambda line: (self._joined.asked(values), line.add(values)))

    def _on_wish(self, wish: str) -> str:
        what, number = json.loads(wish)["queue"].split()
        return self._done(partial(_WISHES[what], number=int(number)))

    def _done(self, act: Callable[[InLine], object]) -> str:
        """Nothing: the list shows it; or in words why not."""
        try:
            self._joined.refuse_where_read_only()
            act(self._line)
        except (TrainingProError, OSError) as error:
            return markup.problem(in_words(error))
        return ""

    async def _follow(self) -> AsyncIterator[dict[Any, Any]]:
        """The list, whenever it or what becomes of it is another."""
        shown: tuple[Any, ...] = ()
        while True:
            turns, job = self._joined.session.turns, self._joined.session.current
            trains = job is not None and job.kind == "training"
            known, problem = self._seen()
            state = (known, problem, turns.going, turns.due, turns.said, trains)
            if state != shown:
                shown = state
                waits = len(known.waiting)
                offered = bool(waits) and not (turns.going and (trains or turns.due))
                yield {
                    self._list: (markup.problem(problem) if problem else "") + html(known, turns, trains=trains),
                    self._go_on: gr.update(visible=offered, value=_offer(waits, turns, trains=trains)),
                    self._put: gr.update(value="Start after this one" if trains else PUT),
                }
            await asyncio.sleep(LOOK_SECONDS)

    def _seen(self) -> tuple[Queue, str]:
        """The list; where it cannot be read as it was, and why."""
        try:
            self._last = self._line.queue
        except (TrainingProError, OSError) as error:
            return self._last, in_words(error)
        return self._last, ""


def html(known: Queue, turns: Turns, *, trains: bool) -> str:
    """What waits, how it goes on, and what came of those that had their turn."""
    if not known.waiting and not known.done:
        return ""
    waits = len(known.waiting)
    head = f"Queue: {waits} {plural(waits, 'waits', 'wait')}" if waits else "Queue: nothing waits"
    parts = [
        f'<ol class="tp-queue">{"".join(f"<li>{_row(run)}</li>" for run in known.waiting)}</ol>' if waits else "",
        markup.paragraph(_how_it_goes_on(turns, trains=trains), quiet=True) if waits else "",
        markup.listed(map(_of_done, known.done), quiet=True),
    ]
    return markup.card(head, *parts)


def _row(run: Waiting) -> str:
    """A run with its ways: up, down, away, and back into the form."""
    data, epochs = ", ".join(map(str, run.values.get("data", ()))), run.values.get("epochs", 0)
    steps = f"{run.steps:,} {plural(run.steps, 'step')}"
    if not run.values.get("max_steps"):
        steps += f" in {presets.shown('epochs', epochs)} {plural(epochs, 'epoch')}"
    ways = "".join(_way(sign, what, words, run) for sign, what, words in _WAYS)
    skipped = markup.paragraph(f"Passed over: {run.skipped}", quiet=True) if run.skipped else ""
    told = f"<b>{escape(run.name)}</b> {escape(f'{data}; {steps}; {run.model}')}"
    return f"{told} {ways}{use('Into the form', run.values)}{skipped}"


def _way(sign: str, what: str, words: str, run: Waiting) -> str:
    name = escape(f"{words}: {run.name}")
    return (
        f'<button type="button" class="tp-use" data-tp-queue="{what} {run.number}" title="{name}" '
        f'aria-label="{name}">{sign}</button>'
    )


def _of_done(run: Done) -> str:
    return f"{escape(f'{run.name}: {run.outcome}. {run.text}')}{use('Into the form', run.values)}"


def _how_it_goes_on(turns: Turns, *, trains: bool) -> str:
    if turns.due and not trains:
        return "The next one begins as soon as the model is free."
    if turns.going and trains:
        return "The next one begins by itself when this run ends, also when it fails. Stop ends the queue as well."
    if turns.going:
        return f"They begin after the next run that you start, or at once with {START}."
    why = turns.said or "After a start of the program the queue does not begin by itself."
    if trains:
        return f"{why} The queue does not follow the run that goes now, unless you press {AFTER_IT}."
    return f"{why} Press {GO_ON}."


def _offer(waits: int, turns: Turns, *, trains: bool) -> str:
    words = START if turns.going else AFTER_IT if trains else GO_ON
    return f"{words} ({waits} {plural(waits, 'waits', 'wait')})"


START, GO_ON, AFTER_IT = "Start the queue", "Go on with the queue", "Let the queue follow this run"


PUT = "Put into the queue"
_WAYS = (("\u2191", "up", "Up"), ("\u2193", "down", "Down"), ("\u2715", "away", "Take out"))
_WISHES: Mapping[str, Callable[..., None]] = {
    "up": lambda line, number: line.move(number, -1),
    "down": lambda line, number: line.move(number, 1),
    "away": lambda line, number: line.remove(number),
}
