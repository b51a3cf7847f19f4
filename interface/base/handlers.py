"""Registration of the event handlers of the page. Every exception in a handler becomes a message on the page."""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.context import Context
from markupsafe import Markup

from ...core.errors import TrainingProError, error_message
from . import markup

CONFIRM_SECONDS = 8
GRADIO_VERSION = int(gr.__version__.split(".")[0])

Handler = Callable[..., Any]
# An event of a component, as in `button.click`; calling it registers a handler.
Event = Callable[..., Any]


def load_script(name: str) -> str:
    """The script of this name, without its comment lines."""
    lines = Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("//"))


def guard_handler(handler: Handler, what: str, says: Any, clears: Mapping[Any, Any]) -> Handler:
    """Wrap a handler in a function of the same kind that raises nothing but `gr.Error`.

    The message of any other exception is shown in `says`, or as a pop-up if that is None.
    """
    function = handler.func if isinstance(handler, partial) else handler
    wrapped: Any

    def failed(error: Exception) -> dict[Any, Any]:
        """The outputs after this exception. The traceback of an unexpected exception is printed."""
        if isinstance(error, gr.Error):
            raise error
        message = error_message(error)
        if not isinstance(error, TrainingProError):
            traceback.print_exception(error)  # the webui sends the records of all loggers but its own nowhere
            message = f"{what} failed: {message} See the console for details."
        if says is None:
            # Pop-ups are HTML since Gradio 5. When Gradio 4.37 goes, delete the condition.
            pop_up = Markup("{}").format(message) if GRADIO_VERSION >= 5 else message
            raise gr.Error(pop_up) from None
        return {**clears, says: markup.problem(message)}

    if inspect.isasyncgenfunction(function):

        async def stream(*args: Any) -> AsyncIterator[Any]:
            try:
                # Closes the handler at once when the page is closed, and not when Python collects the garbage.
                async with aclosing(handler(*args)) as updates:
                    async for update in updates:
                        yield update
            except Exception as error:  # noqa: BLE001 - every error is shown on the page
                yield failed(error)

        wrapped = stream
    elif inspect.isgeneratorfunction(function):

        def steps(*args: Any) -> Iterator[Any]:
            try:
                yield from handler(*args)
            except Exception as error:  # noqa: BLE001 - every error is shown on the page
                yield failed(error)

        wrapped = steps
    else:

        def call(*args: Any) -> Any:
            try:
                return handler(*args)
            except Exception as error:  # noqa: BLE001 - every error is shown on the page
                return failed(error)

        wrapped = call
    # Gradio inspects the name and the signature, and evaluates the annotations, whose names it does not know.
    wrapped.__name__ = getattr(function, "__name__", "handler")
    wrapped.__signature__ = inspect.signature(handler)
    wrapped.__annotations__ = {}
    wrapped.what, wrapped.clears = what, clears
    guarded: Handler = wrapped
    return guarded


def add_handler(
    event: Event | Sequence[Event],
    handler: Handler | None,
    inputs: Any,
    outputs: Any,
    *,
    what: str,
    clears: Mapping[Any, Any] | None = None,
    **options: Any,
) -> Any:
    """Register a handler for one or several events, and return the dependency (for `.then`).

    On an exception, the first output that is HTML shows a message, which `what` begins ("Check" in "Check failed:
    ..."), and `clears` maps outputs to new values, because their old content would be misleading.
    """
    listed = outputs if isinstance(outputs, Iterable) else [outputs]
    says = next((output for output in listed if isinstance(output, gr.HTML)), None)
    wrapped = handler and guard_handler(handler, what, says, clears or {})
    # Gradio 6 has one option for two of earlier versions. When Gradio 4.37 goes, delete the condition.
    hidden = {"api_visibility": "private"} if GRADIO_VERSION >= 6 else {"api_name": False, "show_api": False}
    options = {"show_progress": "hidden", **hidden, **options}
    if inspect.isasyncgenfunction(wrapped):
        # Gradio runs one call of a handler at a time; a stream would keep all other pages waiting.
        options.setdefault("concurrency_limit", None)
    if isinstance(event, Sequence):
        return gr.on(list(event), wrapped, inputs, outputs, **options)
    return event(wrapped, inputs, outputs, **options)


def confirm_click(
    button: gr.Button,
    question: Callable[[Mapping[Any, Any]], str],
    action: Callable[[Mapping[Any, Any]], Mapping[Any, Any]],
    inputs: set[Any],
    outputs: list[Any],
) -> Any:
    """Register the action of a button, which a second click confirms, unless the question is empty."""
    label = button.value
    asked = gr.State(("", 0.0))  # the question on the button, and until when a second click confirms it

    async def on_click(inputs: Mapping[Any, Any]) -> AsyncIterator[dict[Any, Any]]:
        # In threads: removing or counting many files would hold up all pages.
        text, (earlier, until) = await asyncio.to_thread(question, inputs), inputs[asked]
        if text and (earlier != text or time.monotonic() > until):
            yield {button: text, asked: (text, time.monotonic() + CONFIRM_SECONDS)}
            await asyncio.sleep(CONFIRM_SECONDS)
            yield {button: label}
            return
        yield {asked: ("", 0.0)}  # another click meanwhile asks again
        yield {**await asyncio.to_thread(action, inputs), button: label}

    # The second click arrives while the first one still waits.
    options = {"what": label, "trigger_mode": "multiple"}
    return add_handler(button.click, on_click, {*inputs, asked}, [button, asked, *outputs], **options)


def page_load() -> Event:
    """The load event of the page that is being drawn, also when the host made that page."""
    assert Context.root_block is not None
    load: Event = Context.root_block.load
    return load


def refresh_choices(
    event: Event | Sequence[Event],
    menu: gr.Dropdown,
    choices: Callable[[], list[Any]],
    keep: Callable[[Any, list[Any]], Any] = lambda selected, _: selected,
) -> Any:
    """After this event, give the menu new choices; `keep` says what stays selected. Return the dependency."""
    action = f"Refreshing the {menu.label} menu"
    nothing: Any = [] if menu.multiselect else None

    def refill(selected: Any) -> Any:
        new_choices = choices()
        if selected is None:  # Gradio 4.37 sends None for an empty list; delete these two lines with it
            selected = nothing
        return gr.update(choices=new_choices, value=keep(selected, new_choices))

    if GRADIO_VERSION >= 6:
        return add_handler(event, refill, menu, menu, what=action)
    # Gradio 4 and 5 store the selection by index, and new choices shift the indices, so the selection is removed
    # first and put back afterwards. When these versions go, delete all below, and the condition above.
    selection = gr.State()
    cleared = add_handler(
        event, lambda selected: (selected, gr.update(value=nothing)), menu, [selection, menu], what=action
    )
    return add_handler(cleared.then, refill, selection, menu, what=action)
