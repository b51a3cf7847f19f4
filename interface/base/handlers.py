"""Event handlers of the page: each is registered here, so that whatever is raised in one becomes a sentence."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from html import escape
from typing import Any

import gradio as gr
from gradio.context import Context

from ...core.errors import TrainingProError, failure_in_words
from . import markup

logger = logging.getLogger("training_pro")
Handler = Callable[..., Any]


@dataclass(frozen=True)
class Failing:
    """Reply to an exception of one handler: where its sentence is shown, and which outputs are emptied.

    Without `says` the sentence is a message over the page.
    """

    what: str
    says: Any = None
    clears: Mapping[Any, Any] = field(default_factory=dict)

    def updates(self, error: Exception) -> dict[Any, Any]:
        """The outputs after this exception; its traceback is in the console where it was not foreseen."""
        if isinstance(error, gr.Error):
            raise error
        if not isinstance(error, TrainingProError):
            logger.exception("%s failed", self.what, exc_info=error)
        sentence = failure_in_words(self.what, error)
        if self.says is None:
            raise gr.Error(_message(sentence)) from None
        return {**self.clears, self.says: markup.problem(sentence)}


def handle(
    event: Callable[..., Any] | Sequence[Callable[..., Any]],
    handler: Handler | None,
    inputs: Any,
    outputs: Any,
    *,
    what: str,
    says: Any = None,
    clears: Mapping[Any, Any] | None = None,
    **options: Any,
) -> Any:
    """Register a handler for an event, or for several, and return what it can be followed by.

    `what` begins the sentence ("Check" in "Check failed: ..."), `says` is the output that shows it, and `clears`
    has the value that each output takes whose content would belong to something else.
    """
    wrapped = handler and guarded(handler, Failing(what, says, clears or {}))
    if isinstance(event, Sequence):
        return gr.on(list(event), wrapped, inputs, outputs, **options)
    return event(wrapped, inputs, outputs, **options)


def on_load(
    handler: Handler | None,
    outputs: list[Any],
    *,
    what: str = "",
    says: Any = None,
    clears: Mapping[Any, Any] | None = None,
    **options: Any,
) -> None:
    """Register a handler for the opening of the page that is being drawn, whoever made that page."""
    assert Context.root_block is not None
    handle(Context.root_block.load, handler, None, outputs, what=what, says=says, clears=clears, **options)


def guarded(handler: Handler, failing: Failing) -> Handler:
    """The handler as a function of the same kind that raises nothing but gr.Error."""
    plain = handler.func if isinstance(handler, functools.partial) else handler
    if inspect.isasyncgenfunction(plain):
        wrapped = _guarded_async_generator(handler, failing)
    elif inspect.iscoroutinefunction(plain):
        wrapped = _guarded_coroutine(handler, failing)
    elif inspect.isgeneratorfunction(plain):
        wrapped = _guarded_generator(handler, failing)
    else:
        wrapped = _guarded_function(handler, failing)
    return _marked(wrapped, handler, plain, failing)


def is_guarded(handler: Handler) -> bool:
    return isinstance(getattr(handler, "failing", None), Failing)


def _marked(wrapped: Any, handler: Handler, plain: Handler, failing: Failing) -> Handler:
    """With the name and the parameters of the handler, which Gradio asks for."""
    wrapped.__name__ = getattr(plain, "__name__", "handler")
    wrapped.__signature__ = inspect.signature(handler)
    wrapped.__annotations__ = {}
    wrapped.failing = failing
    made: Handler = wrapped
    return made


def _guarded_function(handler: Handler, failing: Failing) -> Handler:
    def call(*given: Any) -> Any:
        try:
            return handler(*given)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says it
            return failing.updates(error)

    return call


def _guarded_generator(handler: Handler, failing: Failing) -> Handler:
    def stream(*given: Any) -> Iterator[Any]:
        try:
            yield from handler(*given)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says it
            yield failing.updates(error)

    return stream


def _guarded_coroutine(handler: Handler, failing: Failing) -> Handler:
    async def call(*given: Any) -> Any:
        try:
            return await handler(*given)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says it
            return failing.updates(error)

    return call


def _guarded_async_generator(handler: Handler, failing: Failing) -> Handler:
    async def stream(*given: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(handler(*given)) as updates:
                async for update in updates:
                    yield update
        except Exception as error:  # noqa: BLE001 - whatever it is, the page says it
            yield failing.updates(error)

    return stream


def _message(text: str) -> str:
    """A message over the page is HTML from Gradio 5 on."""
    return escape(text) if int(gr.__version__.split(".")[0]) >= 5 else text
