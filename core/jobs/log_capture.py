"""What libraries say while a job runs goes into the job's log, never from its thread to a console.

On Windows a click into the console blocks every thread that writes to it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from .events import EventLog, LibraryMessage

_LIBRARIES = ("transformers", "peft", "accelerate", "bitsandbytes", "torch", "huggingface_hub", "py.warnings")


class _IntoLog(logging.Handler):
    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.append(LibraryMessage(source=record.name, text=record.getMessage().strip()))


class _OurEar(list[logging.Handler]):
    """The handlers of a logger during a job; one that a library adds while it is imported has to wait."""

    def __init__(self, log: EventLog) -> None:
        super().__init__([_IntoLog(log)])
        self.waiting: list[logging.Handler] = []

    def append(self, handler: logging.Handler) -> None:
        self.waiting.append(handler)


@contextmanager
def spoken_into(log: EventLog) -> Iterator[None]:
    """Loggers and warnings of the libraries speak into `log`; as they were afterwards."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    ears = [_OurEar(log) for _ in loggers]
    shown_by = warnings.showwarning
    logging.captureWarnings(True)
    for logger, ear in zip(loggers, ears, strict=True):
        logger.handlers, logger.propagate = ear, False
    try:
        yield
    finally:
        if warnings.showwarning is not shown_by:  # else the host captures them itself, and goes on doing so
            logging.captureWarnings(False)
        for (logger, handlers, propagate), ear in zip(before, ears, strict=True):
            logger.handlers, logger.propagate = [*handlers, *ear.waiting], propagate
