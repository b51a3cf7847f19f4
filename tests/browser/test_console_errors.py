"""Which tracebacks on the console of a server are faults of ours, and which are lost streams of Gradio."""

from __future__ import annotations

import pytest
from training_pro.tests.browser.console_errors import unexpected_errors

CANCELLED = """ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "gradio/routes.py", line 1880, in sse_stream
    await asyncio.sleep(check_rate)
asyncio.exceptions.CancelledError: Cancelled via cancel scope 7fca by <Task pending name='Task-561'>
"""
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
QUEUE_GONE = """Traceback (most recent call last):
  File "page_guard.py", line 95, in __call__
    await self._app(scope, body, send)
  File "gradio/routes.py", line 1902, in sse_stream
    del blocks._queue.pending_messages_per_session[session_hash]
KeyError: 'n5fot4vqoz'
"""
PAGE_GONE = """Traceback (most recent call last):
  File "gradio/routes.py", line 1890, in sse_stream
    raise HTTPException(404)
starlette.exceptions.HTTPException: 404: Not Found
"""
STARTED = """Traceback (most recent call last):
  File "starlette/_exception_handler.py", line 55, in wrapped_app
    raise RuntimeError(msg) from exc
RuntimeError: Caught handled exception, but response already started.
"""
OURS = """Traceback (most recent call last):
  File "interface/run/run_view.py", line 12, in draw
    return figures["loss"]
KeyError: 'loss'
"""
TOLD = """Traceback (most recent call last):
  File "interface/base/handlers.py", line 40, in call
    raise gr.Error(sentence)
gradio.exceptions.Error: 'Enter a name.'
"""


@pytest.mark.parametrize(
    "output",
    ["all is well", CANCELLED + DURING + QUEUE_GONE, PAGE_GONE + CAUSED + STARTED, PAGE_GONE, QUEUE_GONE, TOLD],
)
def test_lost_streams_and_messages_are_no_faults(output):
    assert list(unexpected_errors(output)) == []


@pytest.mark.parametrize(
    ("output", "errors"),
    [
        (OURS, ["KeyError: 'loss'"]),
        (OURS + CAUSED + TOLD, ["KeyError: 'loss'"]),
        (PAGE_GONE + "step 1\n" + OURS + QUEUE_GONE, ["KeyError: 'loss'"]),
        (QUEUE_GONE.replace("KeyError: 'n5fot4vqoz'", "TypeError: no JSON"), ["TypeError: no JSON"]),
        (STARTED, ["RuntimeError: Caught handled exception, but response already started."]),
        (OURS + OURS, ["KeyError: 'loss'"] * 2),
    ],
)
def test_other_errors_are_found(output, errors):
    assert list(unexpected_errors(output)) == errors
