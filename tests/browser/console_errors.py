"""Errors in the console output of a server, as a test has to know them."""

from __future__ import annotations

import re
from collections.abc import Iterator

CHAINED = "\x00"
CHAIN = re.compile(
    r"\n\n(?:During handling of the above exception, another exception occurred|"
    r"The above exception was the direct cause of the following exception):\n\n"
)
ERROR_LINE = re.compile(r"^[\w.]+(?:Error|Exception)\b.*", re.M)
LOST_STREAM = re.compile(r"\S*(?:HTTPException: 404|CancelledError)|KeyError: '\w+'$|RuntimeError: Caught handled")
"""What Gradio 6 raises in its stream to a page that was closed during an event, or that opened a second stream:
the page is gone (404), its queue is (KeyError), and the other task of the stream is cancelled."""


def unexpected_errors(output: str) -> Iterator[str]:
    """Errors in handlers, as the last lines of their tracebacks, without `gradio.Error` and lost streams."""
    for chain in re.split(rf"(?<!{CHAINED})Traceback \(", CHAIN.sub(CHAINED, output))[1:]:
        errors = [match[0] for part in chain.split(CHAINED) if (match := ERROR_LINE.search(part))]
        if "in sse_stream\n" in chain and all(map(LOST_STREAM.match, errors)):
            continue
        yield from (error for error in errors if not error.startswith("gradio.exceptions.Error"))
