"""The process that reads files with libraries: started, watched and ended here, and what it runs itself.

A library may loop for hours or fill the memory over a damaged file, and nothing in Python can stop it; a process
can be ended. It is a plain Python that loads this program as a package of its own: `multiprocessing` would load
the program that runs now once more, which may be the webui.

A request is (function, arguments, budget), and each answer (kind, bytes). After each item, True asks for the next
one and False for no more. All of it is in marshal's format, which holds only plain values: nothing that a damaged
file makes the process send can run code here, as a pickle could.
"""

from __future__ import annotations

import importlib
import json
import logging
import marshal
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ...core.errors import DataError, StoppedError, TrainingProError
from .limits import MB, Budget, unforeseen

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
# Above the memory of the budget: libraries reserve some that they never use, Arrow most of all.
SPARE_BYTES, SPARE_BYTES_OF_ARROW = 50 * MB, 150 * MB
MARSHAL_VERSION = 2  # later ones look for equal objects, which is slower and saves nothing here
PLAIN_TYPES = frozenset({bool, int, float, complex, str, bytes})
LOG = logging.getLogger("training_pro")


@dataclass(frozen=True)
class OtherValue:
    """A value of a row that is neither text nor number, such as a date: its type, and the value in words."""

    kind: str
    words: str

    def __str__(self) -> str:
        return self.words


class ReaderProcess:
    """A process that makes the items of one file at a time; it starts with the first one and serves many."""

    def __init__(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self._is_stopped = is_stopped
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._budget: Budget | None = None  # of the file that is read now
        self._verdict: TrainingProError | None = None  # why the process was ended

    def items(self, function: str, budget: Budget, *arguments: Any) -> Iterator[Any]:
        """The items that a function of a reader makes in the process; it makes the next one while one is used."""
        if self._budget:  # another file is not read to its end yet
            other = ReaderProcess(self._is_stopped)
            try:
                yield from other.items(function, budget, *arguments)
            finally:
                other.end()
            return
        if self._process is None or self._process.poll() is not None:
            self._start(budget.name)
        process, self._budget = self._process, budget
        assert process and process.stdout
        threading.Thread(target=self._watch, args=(process, budget), name="Reader watch", daemon=True).start()
        is_asked, is_done, is_first = True, False, True
        self._send((function, arguments, astuple(budget)))
        try:
            while not is_done:
                if not is_asked:
                    self._send(True)
                is_asked = True
                try:
                    kind, data = marshal.load(process.stdout)
                    value = marshal.loads(data)
                except (EOFError, OSError, ValueError, TypeError):  # also cut off within an answer
                    raise self._death(process, budget) from None
                is_done = kind not in ("item", "other item")
                if kind == "failed":
                    value, details = value
                    LOG.warning("%s\n%s", value, details)
                if kind in ("refused", "failed"):
                    raise DataError(value)
                if is_done:
                    return
                is_asked = not is_first  # many want only the first items
                if is_asked:
                    self._send(True)
                is_first = False
                yield _from_plain(value) if kind == "other item" else value
        finally:
            self._budget = None
            if is_asked and not is_done:  # what it is making may never be done
                self.end()
            elif not is_done:
                self._send(False)

    def _send(self, request: Any) -> None:
        """Send a request; that the process has ended shows where its answer is waited for."""
        with suppress(OSError, ValueError, AttributeError):
            marshal.dump(request, self._process.stdin, MARSHAL_VERSION)  # type: ignore[union-attr, arg-type]
            self._process.stdin.flush()  # type: ignore[union-attr]

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
        self._verdict, self._errors = None, tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(
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

    def _watch(self, process: subprocess.Popen[bytes], budget: Budget) -> None:
        """End the process when it is over the limits of its file, or when the user stops the work."""
        meter: Any = None
        with suppress(Exception):  # psutil is missing, or the process has ended
            meter = importlib.import_module("psutil").Process(process.pid)
        begun = sum(meter.cpu_times()[:2]) if meter else 0.0
        while self._budget is budget and process.poll() is None:
            if self._is_stopped():
                self._verdict = StoppedError(f"Stopped while reading {budget.name}.")
            with suppress(Exception):
                if meter and meter.memory_info().rss > budget.memory:
                    self._verdict = budget.exceeded("memory")
                elif meter and sum(meter.cpu_times()[:2]) - begun > budget.seconds + SPARE_SECONDS:
                    self._verdict = budget.exceeded("seconds")
            if self._verdict:
                process.kill()
                return
            time.sleep(WATCH_SECONDS)

    def _death(self, process: subprocess.Popen[bytes], budget: Budget) -> TrainingProError:
        """Why the process ended before its answer."""
        process.kill()
        code = process.wait()
        self._errors.seek(0)
        printed = self._errors.read().decode("utf-8", "replace").strip()
        if self._verdict:
            return self._verdict
        if code == -getattr(signal, "SIGXCPU", 0):  # of `_limit`
            return budget.exceeded("seconds")
        last_line = printed.rpartition("\n")[2][:200]
        reason = f"code {code}: {last_line}" if last_line else f"code {code}"
        LOG.warning("The process that read %s ended with code %s: %s", budget.name, code, printed)
        return DataError(
            f"{budget.name} can't be read: the process that reads it ended unexpectedly ({reason}). The file may "
            "be damaged. Save it again, or save its text or rows in another format (.txt, .jsonl)."
        )


_CURRENT: ContextVar[ReaderProcess | None] = ContextVar("reader_process", default=None)


@contextmanager
def reader_process(is_stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
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
    shared = _CURRENT.get()
    process = shared or ReaderProcess()
    try:
        yield from process.items(function, Budget.of(path, name), str(path), name, *arguments)
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
        with suppress(EOFError, OSError, ValueError):
            while True:
                requests.put(marshal.load(sys.stdin.buffer))
        os._exit(0)  # the program has ended; so does this one, whatever is being read

    threading.Thread(target=receive, daemon=True).start()
    while True:
        function, arguments, limits = requests.get()
        budget = Budget(*limits)
        _limit(budget, SPARE_BYTES_OF_ARROW if str(arguments[0]).lower().endswith(".parquet") else SPARE_BYTES)
        for reply in make_replies(function, arguments, budget):
            marshal.dump(reply, replies, MARSHAL_VERSION)
            replies.flush()
            if reply[0] in ("item", "other item") and not requests.get():
                break


def make_replies(function: str, arguments: Sequence[Any], budget: Budget) -> Iterator[tuple[str, bytes]]:
    """The items that a function of a reader makes, then the end; or why it can't."""
    module, _, name = function.rpartition(".")
    characters = 0
    try:
        for item in getattr(importlib.import_module(f"{__package__}.{module}"), name)(*arguments):
            kind = "item"
            try:
                data = marshal.dumps(item, MARSHAL_VERSION)
            except ValueError:  # it holds something that marshal has no form for
                kind, data = "other item", marshal.dumps(_to_plain(item), MARSHAL_VERSION)
            characters += len(data)
            if characters > budget.characters:
                raise budget.exceeded("characters")
            yield kind, data
        yield "end", marshal.dumps(None)
    except DataError as error:
        yield "refused", marshal.dumps(str(error))
    except MemoryError:
        yield "refused", marshal.dumps(str(budget.exceeded("memory")))
    except Exception as error:  # noqa: BLE001 - whatever a library raises becomes a sentence
        yield "failed", marshal.dumps((str(unforeseen(budget.name, error)), traceback.format_exc()))


def _limit(budget: Budget, spare_bytes: int) -> None:
    """Let the system limit this process, on Linux also its memory: faster than a watch, and without psutil."""
    with suppress(ImportError, OSError, ValueError, IndexError):  # Windows has no such limits
        import resource

        seconds = math.ceil(time.process_time() + budget.seconds + SPARE_SECONDS) + 1
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, most))
        # Linux counts the writable memory against this limit, the sixth number of statm.
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        data = pages * os.sysconf("SC_PAGESIZE") + budget.memory + spare_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (data, most))


def _to_plain(value: Any) -> Any:
    """A value with each date and the like in it as a tuple that begins with `...`, which no row has."""
    if isinstance(value, dict):
        return {_to_plain(key): _to_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_plain(inner) for inner in value)
    if value is None or type(value) in PLAIN_TYPES:
        return value
    return ..., type(value).__name__, str(value)


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_from_plain(key): _from_plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple) and value[:1] == (...,):
        return OtherValue(value[1], value[2])
    return type(value)(map(_from_plain, value)) if isinstance(value, (list, tuple)) else value
