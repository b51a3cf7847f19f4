"""Capture of library messages into the log of a job, so that its thread never writes to a console.

On Windows, a click into the console blocks every thread that writes to it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from .events import EventLog, LibraryMessage

_LIBRARIES = ("transformers", "peft", "accelerate", "bitsandbytes", "torch", "huggingface_hub", "py.warnings")


class _EventLogHandler(logging.Handler):
    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.append(LibraryMessage(source=record.name, text=record.getMessage().strip()))


class _CapturedHandlers(list[logging.Handler]):
    """Handlers of a logger during a job; a handler that a library adds meanwhile is kept for afterwards."""

    def __init__(self, log: EventLog) -> None:
        super().__init__([_EventLogHandler(log)])
        self.waiting: list[logging.Handler] = []

    def append(self, handler: logging.Handler) -> None:
        self.waiting.append(handler)


@contextmanager
def capture_library_logs(log: EventLog) -> Iterator[None]:
    """Send log records and warnings of libraries to `log`; restores the loggers afterwards."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    previous = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    captured = [_CapturedHandlers(log) for _ in loggers]
    showwarning = warnings.showwarning
    logging.captureWarnings(True)
    for logger, captured_handlers in zip(loggers, captured, strict=True):
        logger.handlers, logger.propagate = captured_handlers, False
    try:
        yield
    finally:
        if warnings.showwarning is not showwarning:  # otherwise the host captures them too and keeps doing so
            logging.captureWarnings(False)
        for (logger, handlers, propagate), captured_handlers in zip(previous, captured, strict=True):
            logger.handlers, logger.propagate = [*handlers, *captured_handlers.waiting], propagate
