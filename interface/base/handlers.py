"""Registration of the event handlers of the page. Every exception in a handler becomes a message on the page."""

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

from ...core.errors import TrainingProError, failure_message
from . import markup

logger = logging.getLogger("training_pro")
Handler = Callable[..., Any]


@dataclass(frozen=True)
class FailureReply:
    """Reply to an exception of one handler: where its message is shown, and which outputs are cleared.

    Without `says` the message is shown as a pop-up.
    """

    what: str
    says: Any = None
    clears: Mapping[Any, Any] = field(default_factory=dict)

    def updates(self, error: Exception) -> dict[Any, Any]:
        """The outputs after this exception. The traceback of an unexpected exception is logged."""
        if isinstance(error, gr.Error):
            raise error
        if not isinstance(error, TrainingProError):
            logger.exception("%s failed", self.what, exc_info=error)
        message = failure_message(self.what, error)
        if self.says is None:
            raise gr.Error(_message(message)) from None
        return {**self.clears, self.says: markup.problem(message)}


def add_handler(
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
    """Register a handler for one or several events, and return the dependency (for `.then`).

    On an exception, `what` begins the message ("Check" in "Check failed: ..."), `says` is the output that shows
    it, and `clears` maps outputs to new values, because their old content would be misleading.
    """
    wrapped = handler and guard_handler(handler, FailureReply(what, says, clears or {}))
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
    """Register a handler for the load event of the page that is being drawn, also when the host made that page."""
    assert Context.root_block is not None
    add_handler(Context.root_block.load, handler, None, outputs, what=what, says=says, clears=clears, **options)


def guard_handler(handler: Handler, failing: FailureReply) -> Handler:
    """Wrap a handler in a function of the same kind that raises nothing but `gr.Error`."""
    function = handler.func if isinstance(handler, functools.partial) else handler
    if inspect.isasyncgenfunction(function):
        wrapped = _guarded_async_generator(handler, failing)
    elif inspect.iscoroutinefunction(function):
        wrapped = _guarded_coroutine(handler, failing)
    elif inspect.isgeneratorfunction(function):
        wrapped = _guarded_generator(handler, failing)
    else:
        wrapped = _guarded_function(handler, failing)
    return _with_metadata(wrapped, handler, function, failing)


def is_guarded(handler: Handler) -> bool:
    return isinstance(getattr(handler, "failing", None), FailureReply)


def _with_metadata(wrapped: Any, handler: Handler, function: Handler, failing: FailureReply) -> Handler:
    """Copy the name and the signature of the handler, because Gradio inspects them."""
    wrapped.__name__ = getattr(function, "__name__", "handler")
    wrapped.__signature__ = inspect.signature(handler)
    wrapped.__annotations__ = {}
    wrapped.failing = failing
    result: Handler = wrapped
    return result


def _guarded_function(handler: Handler, failing: FailureReply) -> Handler:
    def call(*args: Any) -> Any:
        try:
            return handler(*args)
        except Exception as error:  # noqa: BLE001 - every error is shown on the page
            return failing.updates(error)

    return call


def _guarded_generator(handler: Handler, failing: FailureReply) -> Handler:
    def stream(*args: Any) -> Iterator[Any]:
        try:
            yield from handler(*args)
        except Exception as error:  # noqa: BLE001 - every error is shown on the page
            yield failing.updates(error)

    return stream


def _guarded_coroutine(handler: Handler, failing: FailureReply) -> Handler:
    async def call(*args: Any) -> Any:
        try:
            return await handler(*args)
        except Exception as error:  # noqa: BLE001 - every error is shown on the page
            return failing.updates(error)

    return call


def _guarded_async_generator(handler: Handler, failing: FailureReply) -> Handler:
    async def stream(*args: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(handler(*args)) as updates:
                async for update in updates:
                    yield update
        except Exception as error:  # noqa: BLE001 - every error is shown on the page
            yield failing.updates(error)

    return stream


def _message(text: str) -> str:
    """Gradio treats pop-up messages as HTML since version 5."""
    return escape(text) if int(gr.__version__.split(".")[0]) >= 5 else text
