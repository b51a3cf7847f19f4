"""The Try it tab: the model answers a prompt with and without the LoRA, side by side."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import AnswerRequest
from ...core.errors import TrainingProError
from ...core.files import read_record, safe_paths
from ...core.host import Folders
from ...core.jobs import Answer
from ...records.folder import loras, run_files
from ...train_utils import format_count
from ..base import PageContext, StopButton, add_handler, markup, page_load, refresh_choices

NO_LORA = "(no LoRA)"
# How much of an example is suggested as a prompt. Chinese has no spaces between its words, hence the characters.
OPENING_WORDS, OPENING_CHARS = 10, 80
MAX_PROMPT_SHOWN = 200  # characters of the prompt, above the answers
GENERATE_HELP = "'Generate' writes one reply without the LoRA and one with it."
ATTACH_HELP = (
    "{} To use the LoRA outside this tab, for example in the webui's Chat or Notebook tab, press 'Attach LoRA'. "
    "'Detach LoRA' removes it from the model."
)


class TryTab:
    """The components of the tab and their event handlers."""

    def __init__(self, context: PageContext, tab: gr.Tab) -> None:
        self._context = context
        with gr.Row():
            with gr.Column(scale=4, min_width=320):
                with gr.Row():
                    choices = lora_choices(self._context)
                    options: dict[str, Any] = {"allow_custom_value": True, "scale": 5}
                    self._lora = gr.Dropdown(choices, value=NO_LORA, label="LoRA", elem_id="tp-lora", **options)
                    options = {"min_width": 90, "scale": 1, "elem_classes": "tp-beside-field"}
                    self._refresh_button = gr.Button("Refresh", size="sm", **options)
                self._strength = gr.Slider(
                    0,
                    150,
                    100,
                    step=5,
                    label="LoRA strength (%)",
                    info="100 is the strength that the LoRA was trained with.",
                )
                self._as_chat = gr.Checkbox(
                    False,
                    label="As a chat message",
                    info="Select 'As a chat message' to get a reply. Otherwise, the model continues your text.",
                )
                self._length = gr.Slider(10, 800, 120, step=10, label="Length (tokens)")
                self._temperature = gr.Slider(
                    0,
                    1.5,
                    0.7,
                    step=0.05,
                    label="Temperature",
                    info="0 always picks the most likely token. With higher values, the replies vary more.",
                )
            with gr.Column(scale=7, min_width=320):
                self._prompt = gr.Textbox(
                    label="Prompt",
                    info="For a LoRA trained on raw text, enter the start of a text. For a LoRA trained on "
                    "chats, enter a message and select 'As a chat message'.",
                    lines=3,
                    elem_id="tp-prompt",
                )
                with gr.Row(elem_classes="tp-buttons"):
                    options = {"interactive": not self._context.read_only_reason()}
                    self._answer_button = gr.Button("Generate", variant="primary", elem_id="tp-go", **options)
                    self._stop_button = StopButton(self._context, "answer", "tp-stop-answer")
                    self._put_on_button = gr.Button("Attach LoRA", elem_id="tp-put-on", **options)
                    self._take_off_button = gr.Button("Detach LoRA", elem_id="tp-take-off", **options)
                help_text = GENERATE_HELP if self._context.host.owns_process else ATTACH_HELP.format(GENERATE_HELP)
                gr.HTML(markup.paragraph(help_text, quiet=True))
                self._lora_status = gr.HTML(elem_id="tp-put-said", elem_classes="tp-said")
                self._status = gr.HTML(elem_id="tp-try-said")
                self._heading = gr.HTML(elem_id="tp-try-of", elem_classes="tp-said")
                with gr.Row():
                    box: dict[str, Any] = {"lines": 10, "interactive": False, "elem_classes": "tp-answer"}
                    self._without = gr.Textbox(label="Without the LoRA", elem_id="tp-without", **box)
                    self._with = gr.Textbox(label="With the LoRA", elem_id="tp-with", **box)
                self._suggestion = gr.State("")
        self._offered = NO_LORA
        self._connect(tab)

    def _connect(self, tab: gr.Tab) -> None:
        inputs = {self._lora, self._strength, self._as_chat, self._length, self._temperature, self._prompt}
        outputs = [self._status, self._lora_status, self._heading, self._without, self._with]
        # After an error, the earlier answers stay under their prompt.
        add_handler(self._answer_button.click, self._on_answer, inputs, outputs, what="Generating text")
        self._stop_button.connect(self._status)
        add_handler(self._prompt.input, lambda: "", None, self._status, what="Removing a message")
        chosen, status = {self._lora, self._strength}, self._lora_status
        add_handler(self._put_on_button.click, self._on_put_on, chosen, status, what="Attaching the LoRA")
        add_handler(self._take_off_button.click, self._on_take_off, None, status, what="Detaching the LoRA")
        # Keep the menu of LoRAs up to date, and suggest a prompt for the chosen one.
        choices = partial(lora_choices, self._context)
        refresh_choices([self._refresh_button.click, page_load()], self._lora, choices)
        opened = refresh_choices(tab.select, self._lora, choices, keep=self._selected_or_last)
        inputs = {self._lora, self._prompt, self._as_chat, self._suggestion}
        outputs = [self._prompt, self._as_chat, self._suggestion]
        for chosen in (self._lora.input, opened.then):
            add_handler(chosen, self._suggest, inputs, outputs, what="Finding a prompt for this LoRA")

    def _selected_or_last(self, selected: str | None, choices: Sequence[str]) -> str:
        """The LoRA that is selected when the tab is opened: that of the last run, unless the user chose one."""
        if selected not in (None, NO_LORA, self._offered) and selected in choices:
            return str(selected)
        job = self._context.session.latest("training")
        if job and job.end and job.end.folder and loras.has_lora(job.end.folder):
            self._offered = job.end.folder.name
        else:  # without a run in this session, the newest LoRA on the disk
            newest = self._context.read_disk(lambda folders: loras.newest_first(folders.loras), ())
            self._offered = next(iter(newest), NO_LORA)
        return self._offered

    def _suggest(self, inputs: Mapping[Any, Any]) -> tuple[Any, Any, Any]:
        """Suggest a passage of the training data as prompt, unless the user has typed one."""
        prompt: str = inputs[self._prompt] or ""
        suggestion, as_chat = suggest_prompt(self._context, inputs[self._lora])
        if prompt and prompt != inputs[self._suggestion]:
            return gr.update(), gr.update(), gr.update()
        if prompt == suggestion:  # nothing is sent to the box, because the user may be typing a prompt meanwhile
            return gr.update(), gr.update() if prompt else as_chat, gr.update()
        return suggestion, as_chat, suggestion

    async def _on_answer(self, inputs: Mapping[Any, Any]) -> AsyncIterator[dict[Any, Any]]:
        """Stream both answers under their prompt; an empty prompt leaves the old answers."""
        context, name = self._context, inputs[self._lora]
        question = AnswerRequest(
            prompt=inputs[self._prompt] or "",
            lora="" if name in (None, NO_LORA) else name,
            strength=inputs[self._strength] / 100,
            as_chat=bool(inputs[self._as_chat]),
            max_tokens=int(inputs[self._length]),
            temperature=float(inputs[self._temperature]),
        )
        prompt = " ".join(question.prompt.split())
        if not prompt:
            missing = "Enter a prompt. If you choose a LoRA, a prompt from its dataset is filled in."
            yield {self._status: markup.problem(missing)}
            return
        # Above the answers, since the form and the LoRA may change later: the LoRA, its steps, and the prompt.
        heading = f"{'Message' if question.as_chat else 'Prompt'}: "
        heading += prompt if len(prompt) <= MAX_PROMPT_SHOWN else f"... {prompt[-MAX_PROMPT_SHOWN:]}"
        if question.lora:
            # The name of a checkpoint tells its steps.
            steps = 0 if "/" in question.lora else context.read_disk(partial(read_steps, question.lora), 0)
            trained = f" (trained for {format_count(steps, 'step')})" if steps else ""
            heading = f"LoRA: {question.lora}{trained}, used at {question.strength:.0%} strength. {heading}"
        yield {self._lora_status: ""}
        texts = {"without": "", "with": ""}
        work = partial(context.engine.answer, question, context.host)
        async for status, events in context.follow_job("answer", "Generating text", work):
            if not events:
                yield {self._status: status}
                continue
            for event in events:
                if isinstance(event, Answer):
                    texts[event.side] += event.piece
            boxes = {self._without: texts["without"], self._with: texts["with"]}
            yield {self._status: status, self._heading: markup.paragraph(heading, quiet=True), **boxes}

    async def _on_put_on(self, inputs: Mapping[Any, Any]) -> AsyncIterator[str]:
        name, strength = inputs[self._lora], inputs[self._strength] / 100
        if name in (None, NO_LORA):
            yield markup.problem("Choose a LoRA to attach.")
            return
        async for status in self._context.attach_lora(name, strength):
            yield status

    async def _on_take_off(self) -> AsyncIterator[str]:
        work = partial(self._context.engine.detach_lora, self._context.host)
        async for status, _ in self._context.follow_job("model", "Detaching the LoRA", work):
            yield status


def lora_choices(context: PageContext) -> list[str]:
    return [NO_LORA, *context.read_disk(lambda folders: loras.list_loadable(folders.loras), ())]


def read_steps(lora: str, folders: Folders) -> int:
    """The steps that a LoRA was trained for; 0 if unknown."""
    return run_files.trained_steps(run_files.read_log(loras.find_lora(lora, folders.loras)))


def suggest_prompt(context: PageContext, name: str | None) -> tuple[str, bool]:
    """A prompt that shows the effect of a LoRA, and whether it is a chat message.

    It is the words that begin an example from its training data, or the first message of the example.
    """
    if name in (None, NO_LORA):
        return "", False
    try:
        folder = safe_paths.child(context.host.folders.loras, str(name).partition("/")[0], "LoRA")
        prompt = run_files.read_training_prompt(folder)
        text = prompt.example or read_record(folder / run_files.DATA_SAMPLE, list[dict[str, str]], [])[0]["value"]
    except (TrainingProError, OSError, ValueError, LookupError, TypeError, RecursionError):
        return "", False
    if prompt.has_messages:
        return prompt.message, True
    beginning = re.match(rf"(?:\s*\S+){{0,{OPENING_WORDS}}}", text)
    return beginning[0][:OPENING_CHARS].strip() if beginning else "", False
