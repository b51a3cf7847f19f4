"""Registration of the event handlers of the page. Every exception in a handler becomes a message on the page."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from gradio.context import Context
from markupsafe import Markup

from ...core.errors import TrainingProError, failure_message
from . import markup
from .gradio_compat import GRADIO_VERSION, private_options

Handler = Callable[..., Any]
Event = Callable[..., Any]
"""An event of a component, as in `button.click`; calling it registers a handler."""


@dataclass(frozen=True)
class FailureReply:
    """Reply to an exception of one handler: where its message is shown, and which outputs are cleared.

    Without `says` the message is shown as a pop-up.
    """

    what: str
    says: Any = None
    clears: Mapping[Any, Any] = field(default_factory=dict)

    def updates(self, error: Exception) -> dict[Any, Any]:
        """The outputs after this exception. The traceback of an unexpected exception is printed."""
        if isinstance(error, gr.Error):
            raise error
        if not isinstance(error, TrainingProError):
            traceback.print_exception(error)  # the webui sends the records of all loggers but its own nowhere
        message = failure_message(self.what, error)
        if self.says is None:
            pop_up = Markup("{}").format(message) if GRADIO_VERSION >= 5 else message  # HTML since version 5
            raise gr.Error(pop_up) from None
        return {**self.clears, self.says: markup.problem(message)}


def add_handler(
    event: Event | Sequence[Event],
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
    it (by default the first output that is HTML), and `clears` maps outputs to new values, because their old
    content would be misleading.
    """
    if says is None:
        listed = outputs if isinstance(outputs, Iterable) else [outputs]
        says = next((output for output in listed if isinstance(output, gr.HTML)), None)
    wrapped = handler and guard_handler(handler, FailureReply(what, says, clears or {}))
    streams = {"concurrency_limit": None} if inspect.isasyncgenfunction(wrapped) else {}
    options = {**private_options(), **streams, **options}
    if isinstance(event, Sequence):
        return gr.on(list(event), wrapped, inputs, outputs, **options)
    return event(wrapped, inputs, outputs, **options)


def page_load() -> Event:
    """The load event of the page that is being drawn, also when the host made that page."""
    assert Context.root_block is not None
    load: Event = Context.root_block.load
    return load


def on_load(handler: Handler | None, outputs: list[Any], *, what: str = "", **options: Any) -> Any:
    """Register a handler for the load event of the page, with the options of `add_handler`."""
    return add_handler(page_load(), handler, None, outputs, what=what, **options)


def refresh_choices(
    event: Event | Sequence[Event],
    menu: gr.Dropdown,
    choices: Callable[[], list[Any]],
    keep: Callable[[Any, list[Any]], Any] = lambda selected, _: selected,
) -> Any:
    """After this event, give the menu new choices; `keep` says what stays selected. Return the dependency.

    Gradio 4 stores the selection by index, and new choices shift the indices. Therefore the selection is removed
    first and put back afterwards.
    """
    action = f"Refreshing the {menu.label} menu"
    nothing: Any = [] if menu.multiselect else None

    def refill(selected: Any) -> Any:
        new_choices = choices()
        selected = nothing if selected is None else selected  # Gradio 4.37 sends None for an empty list
        return gr.update(choices=new_choices, value=keep(selected, new_choices))

    if GRADIO_VERSION >= 6:
        return add_handler(event, refill, menu, menu, what=action)
    selection = gr.State()
    cleared = add_handler(
        event, lambda selected: (selected, gr.update(value=nothing)), menu, [selection, menu], what=action
    )
    return add_handler(cleared.then, refill, selection, menu, what=action)


def guard_handler(handler: Handler, failing: FailureReply) -> Handler:
    """Wrap a handler in a function of the same kind that raises nothing but `gr.Error`.

    The name and the signature stay, because Gradio inspects them.
    """
    function = handler.func if isinstance(handler, functools.partial) else handler
    wrapped: Any
    if inspect.isasyncgenfunction(function):
        wrapped = _guarded_async_generator(handler, failing)
    elif inspect.isgeneratorfunction(function):
        wrapped = _guarded_generator(handler, failing)
    elif inspect.iscoroutinefunction(function):
        wrapped = _guarded_coroutine(handler, failing)
    else:
        wrapped = _guarded_function(handler, failing)
    wrapped.__name__ = getattr(function, "__name__", "handler")
    wrapped.__signature__ = inspect.signature(handler)
    wrapped.__annotations__ = {}
    wrapped.failing = failing
    guarded: Handler = wrapped
    return guarded


def is_guarded(handler: Handler) -> bool:
    return isinstance(getattr(handler, "failing", None), FailureReply)


def _guarded_function(handler: Handler, failing: FailureReply) -> Handler:
    def call(*args: Any) -> Any:
        try:
            return handler(*args)
        except Exception as error:  # noqa: BLE001 - every error is shown on the page
            return failing.updates(error)

    return call


def _guarded_coroutine(handler: Handler, failing: FailureReply) -> Handler:
    async def call(*args: Any) -> Any:
        try:
            return await handler(*args)
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


def _guarded_async_generator(handler: Handler, failing: FailureReply) -> Handler:
    async def stream(*args: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(handler(*args)) as updates:
                async for update in updates:
                    yield update
        except Exception as error:  # noqa: BLE001 - every error is shown on the page
            yield failing.updates(error)

    return stream
