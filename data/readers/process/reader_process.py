"""The process that reads files with libraries, from outside: it is started, asked, watched and ended here.

A library may loop for hours or fill the memory over a damaged file, and nothing in Python can stop it; a process
can be ended.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import astuple
from itertools import count
from pathlib import Path
from typing import Any

from ....core.errors import DataError, StoppedError, TrainingProError
from .budget import Budget
from .frames import pack, read_frame, unpack, write_frame
from .launch import start_python
from .meter import Meter

WATCH_SECONDS = 0.05
SPARE_SECONDS = 0.5  # the process itself is first to notice that its time is over


def _never() -> bool:
    return False


class ReaderProcess:
    """A process that makes the items of files; it starts with the first file and serves many."""

    def __init__(self, is_stopped: Callable[[], bool] = _never) -> None:
        self._is_stopped = is_stopped
        self._numbers = count()
        self._running: _Running | None = None

    def items(self, function: str, budget: Budget, *arguments: Any) -> Iterator[Any]:
        """The items that a function of a reader makes in the process; it makes the next one while one is used."""
        if self._running is None or not self._running.is_alive:
            self._running = _Running(budget.name, self._is_stopped)
        running, number = self._running, next(self._numbers)
        running.send("open", number, function, arguments, astuple(budget))
        is_asked = False
        try:
            for made in count():
                if not is_asked:
                    running.ask(number, budget)
                item = running.receive(number, budget)
                is_asked = False
                if item is None:
                    return
                if made:  # many want only the first items
                    running.ask(number, budget)
                    is_asked = True
                yield item
        finally:
            if is_asked:
                running.end()  # what it is making may never be done
            else:
                running.send("close", number)

    def end(self) -> None:
        if self._running:
            self._running.end()


class _Running:
    """A started process, with a thread that watches over it while it works."""

    def __init__(self, name: str, is_stopped: Callable[[], bool]) -> None:
        self._is_stopped = is_stopped
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = _start(name, self._errors)
        self._replies: dict[int, tuple[Any, ...]] = {}  # of streams that are not the one waited for
        self._working: tuple[Budget, float] | None = None  # on which file, up to how many seconds of the process
        self._total_seconds = 0.0
        self._stream_seconds: dict[int, float] = {}
        self._verdict: TrainingProError | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._watch_over, name="Reader watch", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None and not self._ended.is_set()

    def send(self, *request: Any) -> None:
        """Send a request; that the process has ended is said where its answer is waited for."""
        with suppress(OSError, ValueError):
            write_frame(self._process.stdin, pack(request))  # type: ignore[arg-type]

    def ask(self, number: int, budget: Budget) -> None:
        left = budget.seconds - self._stream_seconds.get(number, 0.0)
        self._working = (budget, self._total_seconds + left + SPARE_SECONDS)
        self.send("next", number)

    def receive(self, number: int, budget: Budget) -> Any:
        """The next item of a stream, None at its end; the error where it has none."""
        while number not in self._replies:
            self._receive(budget)
        self._working = None
        kind, data, self._total_seconds, self._stream_seconds[number] = self._replies.pop(number)
        if self._is_stopped():
            raise stopped_error(budget)
        if kind == "end":
            return None
        value = unpack(data)
        if kind == "failed":
            value, details = value
            logging.getLogger("training_pro").warning("%s\n%s", value, details)
        if kind != "item":
            raise DataError(value)
        return value

    def _receive(self, budget: Budget) -> None:
        """Take one answer in; raise the reason where the process has ended."""
        answer, data = (read_frame(self._process.stdout) for _ in range(2))  # type: ignore[arg-type]
        if answer is None or data is None:
            raise self._death(budget)
        number, kind, total_seconds, stream_seconds = unpack(answer)
        self._replies[number] = (kind, data, total_seconds, stream_seconds)

    def end(self) -> None:
        """End the process immediately, whatever it is doing."""
        self._ended.set()
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def _watch_over(self) -> None:
        """End the process when it is over its limits, the user stops the work, or this program ends."""
        meter = Meter(self._process.pid)
        while not self._ended.wait(WATCH_SECONDS) and self._process.poll() is None:
            self._verdict = self._judge(meter)
            if self._verdict or not threading.main_thread().is_alive():
                self._process.kill()
                return

    def _judge(self, meter: Meter) -> TrainingProError | None:
        working = self._working
        if working is None:
            return None
        budget, seconds = working
        if self._is_stopped():
            return stopped_error(budget)
        if meter.memory() > budget.memory:
            return budget.exceeded("memory")
        return budget.exceeded("seconds") if meter.seconds() > seconds else None

    def _death(self, budget: Budget) -> TrainingProError:
        """Why the process ended before its answer."""
        code = self._process.wait()
        self._errors.seek(0)
        printed = self._errors.read().decode("utf-8", "replace").strip()
        self.end()
        if self._verdict:
            return self._verdict
        if code == -getattr(signal, "SIGXCPU", 0):
            return budget.exceeded("seconds")
        last_line = printed.rpartition("\n")[2][:200]
        reason = f"code {code}: {last_line}" if last_line else f"code {code}"
        logging.getLogger("training_pro").warning(
            "The process that read %s ended with code %s: %s", budget.name, code, printed
        )
        return DataError(
            f"{budget.name} can't be read: the process that reads it ended unexpectedly ({reason}). The file may "
            "be damaged. Save it again, or save its text or rows in another format (.txt, .jsonl)."
        )


def stopped_error(budget: Budget) -> StoppedError:
    return StoppedError(f"Stopped while reading {budget.name}.")


def _start(name: str, errors: Any) -> subprocess.Popen[bytes]:
    """Start the process; a DataError says why that is not possible."""
    try:
        return start_python("data.readers.process.child", errors)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"{name} can't be read: the process that reads it could not be started ({reason}). Allow the program "
            f"{sys.executable} to run, or save the text or the rows of the file in another format (.txt, .jsonl)."
        ) from error


_CURRENT: ContextVar[ReaderProcess | None] = ContextVar("reader_process", default=None)


@contextmanager
def reader_process(is_stopped: Callable[[], bool] = _never) -> Iterator[None]:
    """One process for all files that are read inside; it is ended when the user stops the work, and at the end.

    Inside another `reader_process`, that one's process is used.
    """
    if _CURRENT.get():
        yield
        return
    process = ReaderProcess(is_stopped)
    token = _CURRENT.set(process)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        process.end()


def read_items(function: str, path: Path, name: str, *arguments: Any) -> Iterator[Any]:
    """The items that a function of a reader (`module.function`) makes of a file, in the reader process."""
    process = _CURRENT.get()
    own = None if process else ReaderProcess()
    try:
        yield from (process or own).items(function, Budget.of(path, name), str(path), name, *arguments)  # type: ignore[union-attr]
    finally:
        if own:
            own.end()


def read_item(function: str, path: Path, name: str, *arguments: Any) -> Any:
    """The only item that a function of a reader makes of a file."""
    [item] = read_items(function, path, name, *arguments)
    return item
