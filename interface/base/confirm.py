"""Buttons whose action a second click confirms: the first click shows on the button what would happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from .handlers import add_handler

CONFIRM_SECONDS = 8


@dataclass(frozen=True)
class Question:
    """The question on the button, and until when a second click confirms it."""

    text: str = ""
    until: float = 0.0


def confirm_click(
    button: gr.Button,
    question: Callable[[Mapping[Any, Any]], str],
    action: Callable[[Mapping[Any, Any]], Mapping[Any, Any]],
    inputs: set[Any],
    outputs: list[Any],
    **options: Any,
) -> Any:
    """Register the action of a button, which a second click confirms, unless the question is empty."""
    asked, label = gr.State(Question()), button.value

    async def on_click(inputs: Mapping[Any, Any]) -> AsyncIterator[dict[Any, Any]]:
        text, earlier = question(inputs), inputs[asked]
        if text and (earlier.text != text or time.monotonic() > earlier.until):
            yield {button: text, asked: Question(text, time.monotonic() + CONFIRM_SECONDS)}
            await asyncio.sleep(CONFIRM_SECONDS)
            yield {button: label}
            return
        yield {**action(inputs), button: label, asked: Question()}

    # The second click arrives while the first one still waits.
    options = {"what": label, "trigger_mode": "multiple", **options}
    return add_handler(button.click, on_click, {*inputs, asked}, [button, asked, *outputs], **options)
