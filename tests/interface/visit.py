"""A page as a visitor has it open: what its components hold, and their events, sent as Gradio sends them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import gradio as gr
from training_pro.interface.base import Form, PageContext


def name_of(part: Any) -> str:
    """The id of a component without its prefix, or what a visitor reads on it."""
    return (part.elem_id or getattr(part, "label", None) or str(getattr(part, "value", ""))).removeprefix("tp-")


class Visit:
    """One open page. Components are named by `name_of`; in keyword arguments `_` also stands for `-`."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        with gr.Blocks() as self.blocks:
            draw()
        self.named = {name_of(part): part for part in self.blocks.blocks.values()}
        self.held: dict[Any, Any] = {}

    def fill(self, **values: Any) -> None:
        """Type into boxes."""
        for key, value in values.items():
            self.held[self.named[key if key in self.named else key.replace("_", "-")]] = value

    def handlers(self, name: str, event: str = "click") -> Iterator[Any]:
        """The handlers of an event, each with those that follow it; a load event is named by what it does."""
        for number, handler in self.blocks.fns.items():
            if handler.fn is None:
                continue
            names = {
                (name_of(self.blocks.blocks[i]), what) for i, what in handler.targets if i in self.blocks.blocks
            }
            loads = event == "load" and handler.fn.what == name
            if (name, event) in names or (loads and any(what == "load" for _, what in handler.targets)):
                yield handler
                yield from (each for each in self.blocks.fns.values() if each.trigger_after == number)

    async def stream(self, name: str, event: str = "click", /, **values: Any) -> AsyncIterator[dict[str, Any]]:
        """Send an event, and yield each update by name."""
        self.fill(**values)
        for handler in self.handlers(name, event):
            given = {part: self.held.get(part, part.value) for part in handler.inputs}
            result = handler.fn(given) if handler.inputs_as_dict else handler.fn(*given.values())
            if inspect.isasyncgen(result):
                async with aclosing(result):
                    async for update in result:
                        yield self.take(handler, update)
            elif inspect.isgenerator(result):
                for update in result:
                    yield self.take(handler, update)
            else:
                yield self.take(handler, await result if inspect.isawaitable(result) else result)

    def take(self, handler: Any, result: Any) -> dict[str, Any]:
        """Keep the new values, as the browser does."""
        if not isinstance(result, dict) or "__type__" in result:
            outputs = handler.outputs
            result = dict(zip(outputs, [result] if len(outputs) == 1 else result, strict=True))
        for part, update in result.items():
            if not isinstance(update, dict):
                self.held[part] = update
            elif "value" in update:
                self.held[part] = update["value"]
        return {name_of(part): update for part, update in result.items()}

    def steps(self, name: str, event: str = "click", /, **values: Any) -> list[dict[str, Any]]:
        """Send an event, and return all updates."""

        async def collect() -> list[dict[str, Any]]:
            return [update async for update in self.stream(name, event, **values)]

        return asyncio.run(collect())

    def press(self, name: str, event: str = "click", /, **values: Any) -> dict[str, Any]:
        """Send an event, and return what it has changed in the end."""
        return {part: update for step in self.steps(name, event, **values) for part, update in step.items()}

    def until(
        self,
        name: str,
        enough: Callable[[dict[str, Any]], Any] = bool,
        act: Callable[[], Any] = bool,
        event: str = "click",
    ) -> dict[str, Any]:
        """What a stream has shown once `enough` is true of it; `act` is called after its first update."""

        async def follow() -> dict[str, Any]:
            shown: dict[str, Any] = {}
            async for update in self.stream(name, event):
                if not shown:
                    act()
                shown |= update
                if enough(shown):
                    break
            return shown

        return asyncio.run(follow())


def open_tab(tab: Any, context: PageContext, *keys: str) -> Visit:
    """A page with one tab; another tab than Train gets a form with these settings."""

    def draw() -> None:
        form = Form()
        form.draw(*keys)
        with gr.Tab("The tab") as parent:
            tab(context, parent, *([form] if len(inspect.signature(tab).parameters) > 2 else []))

    return Visit(draw)
