"""The Try it tab: the model goes on with a text, with the LoRA and without, side by side."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import gradio as gr

from ...core.engine import Question
from ...core.errors import BusyError, TrainingProError
from ...core.files import safe_paths
from ...core.jobs import Answer, Ended, Event, Job
from ...records.folder import DATA_SAMPLE, how_to_talk, loras
from ..base import Joined, follows, handle, markup, news, on_load, private, refused, said_last

NONE = "(no LoRA)"
OPENING_WORDS = 10
MOST_SHOWN = 200
LISTING = "Listing the LoRAs"
NO_PROMPT = "The beginning, or the message, is empty. Type one; where a LoRA is chosen its own text begins one."


class TryTab:
    """The components of the tab and what they do."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined

    def draw(self, tab: gr.Tab) -> None:
        may = not self._joined.host_says_read_only()
        with gr.Row():
            with gr.Column(scale=4, min_width=320):
                with gr.Row():
                    self._lora = gr.Dropdown(
                        lora_choices(self._joined),
                        value=NONE,
                        label="LoRA",
                        elem_id="tp-lora",
                        scale=5,
                        allow_custom_value=True,
                    )
                    self._refresh = gr.Button(
                        "Refresh", scale=1, min_width=90, size="sm", elem_classes="tp-beside-field"
                    )
                self._strength = gr.Slider(0, 150, 100, step=5, label="Strength, %", info="100 is as trained.")
                self._as_chat = gr.Checkbox(
                    False, label="As a chat message", info="A text is gone on with; a message is answered."
                )
                self._length = gr.Slider(10, 800, 120, step=10, label="Length, tokens")
                self._warmth = gr.Slider(0, 1.5, 0.7, step=0.05, label="Temperature", info="0 is always the same.")
            with gr.Column(scale=7, min_width=320):
                self._draw_answers(may)
        self._connect(tab)

    def _draw_answers(self, may: bool) -> None:
        self._prompt = gr.Textbox(
            label="The beginning, or the message",
            info="A LoRA of a text shows its effect where the text goes on: give it a beginning, no question. One "
            "of chats is asked, as a chat message.",
            lines=3,
            elem_id="tp-prompt",
        )
        with gr.Row(elem_classes="tp-buttons"):
            self._go = gr.Button("Go on", variant="primary", interactive=may, elem_id="tp-go")
            self._stop = gr.Button("Stop", elem_id="tp-stop-answer")
            self._put_on = gr.Button("Put on", interactive=may, elem_id="tp-put-on")
            self._take_off = gr.Button("Take off", interactive=may, elem_id="tp-take-off")
        self._put_said = gr.HTML(elem_id="tp-put-said", elem_classes="tp-said")
        self._said = gr.HTML(elem_id="tp-try-said")
        self._of = gr.HTML(elem_id="tp-try-of", elem_classes="tp-said")
        with gr.Row():
            self._without = _answer_box("Without", "tp-without")
            self._with = _answer_box("With the LoRA", "tp-with")

        self._suggested = gr.State("")

    def _connect(self, tab: gr.Tab) -> None:
        asked = {self._lora, self._strength, self._as_chat, self._length, self._warmth, self._prompt}
        answers = [self._said, self._of, self._without, self._with]
        clears = {self._of: "", self._without: "", self._with: ""}
        answering = {"what": "Answering", "says": self._said, "clears": clears}
        handle(self._go.click, self._answer, asked, answers, **answering, **follows())
        handle(self._stop.click, self._stop_answer, None, self._said, what="Stop", says=self._said, **private())
        said = {"outputs": self._put_said, "says": self._put_said, **follows()}
        handle(self._put_on.click, self._put, {self._lora, self._strength}, what="Putting the LoRA on", **said)
        handle(self._take_off.click, self._take, None, what="Taking the LoRA off", **said)
        handle(self._refresh.click, self._choices, None, self._lora, what=LISTING, **private())
        chosen = {self._lora, self._prompt, self._as_chat, self._suggested}
        suggested = [self._prompt, self._as_chat, self._suggested]
        beginning = {"what": "Finding a beginning for this LoRA", **private()}
        handle(self._lora.change, self._begun, chosen, suggested, **beginning)
        handle(tab.select, self._opened, chosen, [self._lora, *suggested], what=LISTING, **private())
        on_load(self._choices, [self._lora], what=LISTING, **private())

    def _choices(self) -> Any:
        return gr.update(choices=lora_choices(self._joined))

    def _opened(self, given: dict[Any, Any]) -> tuple[Any, ...]:
        """The LoRAs that there are now; the last run's is chosen, unless another one is."""
        chosen = given[self._lora]
        there = lora_choices(self._joined)
        if chosen == NONE or chosen not in there:
            chosen = _last_trained(self._joined)
        begun = self._begun({**given, self._lora: chosen})
        return gr.update(choices=there, value=chosen), *begun

    def _begun(self, given: dict[Any, Any]) -> tuple[str, bool, str]:
        """What the LoRA was trained on begins so, unless the user has typed something."""
        typed: str = given[self._prompt] or ""
        if typed and typed != given[self._suggested]:
            return typed, bool(given[self._as_chat]), given[self._suggested]
        opening = opening_of(self._joined, given[self._lora])
        return opening.words, opening.as_chat, opening.words

    async def _answer(self, given: dict[Any, Any]) -> AsyncIterator[dict[Any, Any]]:
        """Both answers and what they answer; those that are there stay where nothing is asked."""
        question = self._question(given)
        if not question.prompt.strip():
            yield {self._said: markup.problem(NO_PROMPT)}
            return
        joined = self._joined
        work = partial(joined.engine.answer, question, joined.host)
        async for said, texts in answers(joined, "Answering", work):
            if texts:
                written = {self._without: texts["without"], self._with: texts["with"]}
                yield {self._said: said, self._of: answers_to(question), **written}
            else:
                yield {self._said: said}

    def _question(self, given: dict[Any, Any]) -> Question:
        name = given[self._lora]
        return Question(
            prompt=given[self._prompt] or "",
            lora="" if name in (None, NONE) else name,
            strength=given[self._strength] / 100,
            as_chat=bool(given[self._as_chat]),
            max_tokens=int(given[self._length]),
            temperature=float(given[self._warmth]),
        )

    def _stop_answer(self) -> str:
        job = self._joined.session.latest("answer")
        if job is None or not job.running:
            return ""
        job.control.stop()
        return markup.paragraph("Stopping.", quiet=True)

    async def _put(self, given: dict[Any, Any]) -> AsyncIterator[str]:
        name, strength = given[self._lora], given[self._strength] / 100
        if name in (None, NONE):
            yield markup.problem("Choose a LoRA to put on.")
            return
        joined = self._joined
        work = partial(joined.engine.put_on, name, strength, joined.host)
        async for said, _ in answers(joined, f"Putting {name} on", work):
            yield said

    async def _take(self) -> AsyncIterator[str]:
        work = partial(self._joined.engine.take_off, self._joined.host)
        async for said, _ in answers(self._joined, "Taking the LoRA off", work):
            yield said


async def answers(
    joined: Joined, title: str, work: Callable[[Job], Ended]
) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """Start a job on the model and follow it: what to say, and the answers as far as they are written.

    Where it cannot be started there are none.
    """
    texts = {"without": "", "with": ""}
    try:
        joined.refuse_where_read_only()
        job = joined.session.start("answer", title, joined.host, work)
    except BusyError as error:
        async for words in refused(joined.session, error):
            yield words, {}
        return
    said = ""
    async for fresh in news(job):
        take_in(fresh, texts)
        said = said_last(fresh, said)
        yield said, texts


def answers_to(question: Question) -> str:
    """What the answers below belong to, also when the boxes above hold something else by now."""
    text = question.prompt if len(question.prompt) <= MOST_SHOWN else f"... {question.prompt[-MOST_SHOWN:]}"
    lora = f", {question.lora} at {question.strength:.0%}" if question.lora else ""
    words = "Answers to" if question.as_chat else "Going on from"
    return markup.paragraph(f"{words} \u201c{text}\u201d{lora}:", quiet=True)


def take_in(fresh: Sequence[Event], texts: dict[str, str]) -> None:
    """New pieces of the answers, behind those that are there."""
    for event in fresh:
        if isinstance(event, Answer):
            texts[event.side] += event.piece


def lora_choices(joined: Joined) -> list[str]:
    try:
        return [NONE, *loras.to_try(joined.host.folders.loras)]
    except (TrainingProError, OSError):
        return [NONE]


def _last_trained(joined: Joined) -> str:
    """The LoRA of the last run of this session."""
    job = joined.session.latest("training")
    end = job.end if job else None
    return end.folder.name if end and end.folder and loras.has_lora(end.folder) else NONE


class Opening(NamedTuple):
    """A prompt that a LoRA's effect can be seen on, and whether it is a message."""

    words: str = ""
    as_chat: bool = False


def opening_of(joined: Joined, name: str | None) -> Opening:
    """The first words of a LoRA's data, or the first message of its chats."""
    if name in (None, NONE):
        return Opening()
    try:
        folder = safe_paths.child(joined.host.folders.loras, str(name).partition("/")[0], "LoRA")
        first: str = json.loads((folder / DATA_SAMPLE).read_text(encoding="utf-8"))[0]["value"]
    except (TrainingProError, OSError, ValueError, LookupError, TypeError):
        return Opening()
    if talk := how_to_talk(folder):
        return Opening(talk.message(first), as_chat=True)
    begins = re.match(rf"(?:\s*\S+){{0,{OPENING_WORDS}}}", first)
    return Opening(begins[0].strip() if begins else "")


def _answer_box(label: str, elem_id: str) -> gr.Textbox:
    return gr.Textbox(label=label, lines=10, interactive=False, elem_id=elem_id, elem_classes="tp-answer")
