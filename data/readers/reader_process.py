"""The limits of reading a file, and the process that reads files with libraries: watched here, and what it runs.

A library may loop for hours or fill the memory over a damaged file, and nothing in Python can stop it; a process
can be ended. It is a plain Python that loads this program as a package of its own: `multiprocessing` would load
the program that runs now once more, which may be the webui.

A request [function, arguments] and each answer [kind, value] is a line of JSON, so nothing that a damaged file
makes the process send can run code here. After each item, `true` asks for the next one, and another request ends
the last one.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ...core.errors import DataError, StoppedError, TrainingProError
from ...core.version import install_command

MB = 1_000_000
# Of CPU time. Dense PDF documents are slowest: a MB of one takes a slow machine some 5 seconds.
SECONDS, SECONDS_PER_MB = 4, 10
# Above the file's size: libraries need some 60 MB, the largest novel as a Word document 150 MB.
MEMORY_BYTES = 400 * MB
# Packed text shrinks to a fifth; only a table that repeats its texts in every row shrinks to a fiftieth.
CHARACTERS, CHARACTERS_PER_BYTE = 20 * MB, 100
ROWS, ROWS_PER_BYTE = 100_000, 1
MAX_MESSAGE = 1000

SCRIPT = Path(__file__).resolve().parents[2] / "script.py"
BOOTSTRAP = """
import importlib, importlib.util, json, sys
sys.path[:] = json.loads(sys.argv[1])
spec = importlib.util.spec_from_file_location("training_pro", sys.argv[2])
sys.modules["training_pro"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
importlib.import_module("training_pro.data.readers.reader_process").serve()
"""
WATCH_SECONDS = 0.05
# Above the seconds of the budget: starting Python and loading the program takes some CPU time, too.
SPARE_SECONDS = 1.0
BINARY = "binary data, not text"
LOG = logging.getLogger("training_pro")


class Budget:
    """The limits of reading one file, by its size on disk; its name is for messages."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        try:
            self.size = path.stat().st_size
        except OSError:  # its reader says why it can't be read
            self.size = 0
        self.seconds = SECONDS + SECONDS_PER_MB * self.size / MB
        self.memory = MEMORY_BYTES + self.size
        self.characters = CHARACTERS + CHARACTERS_PER_BYTE * self.size
        self.rows = ROWS + ROWS_PER_BYTE * self.size

    def exceeded(self, limit: str) -> DataError:
        """The error of a limit that was reached: seconds, memory, characters or rows."""
        spent = {
            "seconds": f"takes more than {self.seconds:,.0f} seconds of CPU time to read",
            "memory": f"takes more than {self.memory // MB:,} MB of memory to read",
            "characters": f"expands to more than {self.characters // MB:,} MB when it is read",
            "rows": f"has more than {self.rows:,} rows",
        }[limit]
        size = f"{self.size / MB:.1f} MB" if self.size >= MB / 10 else f"{self.size / 1000:.1f} KB"
        much = "many" if limit == "rows" else "much"
        return DataError(
            f"{self.name} {spent}, which is too {much} for a file of {size}. It may be damaged, or "
            "deliberately made to crash programs. Save its text or rows in another format (.txt, .jsonl), or "
            "remove it from the dataset."
        )


@contextmanager
def as_data_error(name: str) -> Iterator[None]:
    """Turn every error that reading a file leaves into a DataError with its name; the log gets the traceback."""
    try:
        yield
    except DataError as error:
        message = str(error)
        if len(message) <= MAX_MESSAGE:
            raise
        raise DataError("\n".join(shorten(line, MAX_MESSAGE) for line in message.splitlines())) from error
    except TrainingProError:
        raise
    except Exception as error:
        LOG.warning("%s can't be read", name, exc_info=True)
        raise unforeseen(name, error) from error


def shorten(text: str, length: int) -> str:
    """A text of at most this length; names and values in a message may be as long as their file."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def unforeseen(name: str, error: Exception) -> DataError:
    """The sentence for an error that no reader expects."""
    if isinstance(error, MemoryError):
        return DataError(f"{name} needs more memory than is available. Split it into smaller files.")
    if isinstance(error, ImportError):
        package = {"docx": "python-docx"}.get(error.name or "", str(error.name))
        return DataError(f"{name}: reading this file needs the {package} package ({install_command(package)}).")
    if isinstance(error, RecursionError):
        return DataError(f"{name} is nested too deeply. Save its text or rows in another format (.txt, .jsonl).")
    reason = " ".join(str(error).split())[:120].rstrip(".")
    kind = type(error).__name__
    return DataError(
        f"{name} can't be read ({f'{kind}: {reason}' if reason else kind}). It may be damaged. Save it again, or "
        "save its text or rows in another format (.txt, .jsonl). The console has the details."
    )


class ReaderProcess:
    """A process that makes the items of one file at a time; it starts with the first one and serves many."""

    def __init__(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self._is_stopped = is_stopped
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: SimpleQueue[bytes] = SimpleQueue()
        self._errors: Any = None
        self._meter: Any = None
        self._budget: Budget | None = None  # of the file that is read now

    def items(self, function: str, budget: Budget, *arguments: Any) -> Iterator[Any]:
        """The items that a function of a reader makes in the process, each made when it is asked for."""
        if self._process is None or self._process.poll() is not None:
            self._start(budget.name)
        request: Any = [function, arguments]
        self._budget, characters = budget, 0
        begun = 0.0
        with suppress(Exception):  # psutil is missing, or the process has ended
            begun = sum(self._meter.cpu_times()[:2])
        while True:
            with suppress(OSError, ValueError, AttributeError):  # it has ended: the answer says so
                self._process.stdin.write(json.dumps(request).encode() + b"\n")  # type: ignore[union-attr]
                self._process.stdin.flush()  # type: ignore[union-attr]
            answer = self._wait(budget, begun)
            characters += len(answer)
            if characters > budget.characters:
                raise budget.exceeded("characters")
            kind, value = json.loads(answer)
            if kind == "failed":
                value, details = value
                LOG.warning("%s\n%s", value, details)
            if kind in ("refused", "failed"):
                raise DataError(value)
            if kind == "end":
                return
            yield value
            assert self._budget is budget, "files are read one after another"
            request = True

    def _wait(self, budget: Budget, begun: float) -> bytes:
        """The next answer; the process is ended when it is over its limits, or when the user stops the work."""
        while True:
            verdict: TrainingProError | None = None
            if self._is_stopped():
                verdict = StoppedError(f"Stopped while reading {budget.name}.")
            with suppress(Exception):  # as above
                if self._meter.memory_info().rss > budget.memory:
                    verdict = verdict or budget.exceeded("memory")
                elif sum(self._meter.cpu_times()[:2]) - begun > budget.seconds + SPARE_SECONDS:
                    verdict = verdict or budget.exceeded("seconds")
            if verdict:
                self.end()
                raise verdict
            with suppress(Empty):
                if answer := self._answers.get(timeout=WATCH_SECONDS):
                    return answer
                code = self._process.wait() if self._process else None
                self._errors.seek(0)
                printed = self._errors.read().decode("utf-8", "replace").strip()
                self.end()
                LOG.warning("The process that read %s ended with code %s: %s", budget.name, code, printed)
                last_line = printed.rpartition("\n")[2][:200]
                reason = f"code {code}: {last_line}" if last_line else f"code {code}"
                raise DataError(
                    f"{budget.name} can't be read: the process that reads it ended unexpectedly ({reason}). The "
                    "file may be damaged. Save it again, or save its text or rows in another format (.txt, "
                    ".jsonl)."
                )

    def end(self) -> None:
        """End the process immediately, whatever it is doing."""
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self._errors):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def _start(self, name: str) -> None:
        """Start the process; a DataError says why that is not possible."""
        self.end()
        self._errors, answers = tempfile.TemporaryFile(), SimpleQueue[bytes]()  # noqa: SIM115 - closed in `end`
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", BOOTSTRAP, json.dumps(sys.path), str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except (OSError, ValueError, TypeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise DataError(
                f"{name} can't be read: the process that reads it could not be started ({reason}). Allow the "
                f"program {sys.executable} to run, or save the text or the rows of the file in another format "
                "(.txt, .jsonl)."
            ) from error

        def receive() -> None:
            with suppress(OSError, ValueError):  # closed in `end`
                for line in process.stdout or ():
                    answers.put(line)
            answers.put(b"")

        self._process, self._answers, self._meter = process, answers, None
        with suppress(Exception):  # psutil comes with accelerate; without it, reading has no limits
            self._meter = importlib.import_module("psutil").Process(process.pid)
        threading.Thread(target=receive, name="Reader answers", daemon=True).start()


_CURRENT: ContextVar[ReaderProcess | None] = ContextVar("reader_process", default=None)


@contextmanager
def reader_process(is_stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """One process for all files that are read inside, also in another `reader_process`; it ends at the end."""
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
    shared = _CURRENT.get()
    process = shared or ReaderProcess()
    try:
        yield from process.items(function, Budget(path, name), str(path), name, *arguments)
    finally:
        if not shared:
            process.end()


def read_item(function: str, path: Path, name: str, *arguments: Any) -> Any:
    """The only item that a function of a reader makes of a file."""
    [item] = read_items(function, path, name, *arguments)
    return item


# What follows runs in the process.


def serve() -> None:
    """Answer requests until the program that sends them ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the program that started this one
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the replies
    requests: SimpleQueue[Any] = SimpleQueue()

    def receive() -> None:
        for line in sys.stdin.buffer:
            requests.put(json.loads(line))
        os._exit(0)  # the program has ended; so does this one, whatever is being read

    threading.Thread(target=receive, daemon=True).start()
    request = requests.get()
    while True:
        for answer in make_answers(*request):
            replies.write(answer + b"\n")
            replies.flush()
            request = requests.get()
            if request is not True:
                break


def make_answers(function: str, arguments: Sequence[Any]) -> Iterator[bytes]:
    """The items that a function of a reader makes, then the end; or why it can't."""
    module, _, name = function.rpartition(".")

    def to_plain(value: Any) -> Any:  # what JSON has no form for: bytes, dates and the like
        return {BINARY: len(value)} if isinstance(value, bytes) else str(value)

    try:
        for item in getattr(importlib.import_module(f"{__package__}.{module}"), name)(*arguments):
            yield json.dumps(["item", item], default=to_plain).encode()
        answer: list[Any] = ["end", None]
    except DataError as error:
        answer = ["refused", str(error)]
    except Exception as error:  # noqa: BLE001 - whatever a library raises becomes a sentence
        answer = ["failed", [str(unforeseen(arguments[1], error)), traceback.format_exc()]]
    yield json.dumps(answer).encode()
