"""The process that reads files with libraries: it makes the items that are asked for, one at a time.

A request is ("open", number, function, arguments, budget), ("next", number) or ("close", number). Only "next" has
an answer: (number, kind, CPU seconds of this process, CPU seconds of the stream), then the value in a frame of
its own.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, Literal

from ....core.errors import DataError
from .budget import Budget, unforeseen
from .frames import pack, read_frame, unpack, write_frame

ReplyKind = Literal["item", "end", "refused", "failed"]
READERS_PACKAGE = __package__.rpartition(".")[0]
SPARE_BYTES, SPARE_BYTES_OF_ARROW = 50_000_000, 150_000_000
"""Above the memory of the budget: libraries reserve some that they never use, Arrow most of all."""


@dataclass
class Stream:
    """The items of one file, and what making them has taken."""

    items: Iterator[Any]
    budget: Budget
    seconds: float = 0.0
    characters: int = 0
    most_data: int | None = None  # bytes of this process; None where the system doesn't tell


def serve() -> None:
    """Answer requests until the program that sends them ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the program that started this one
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the replies
    requests: SimpleQueue[Sequence[Any]] = SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, requests), daemon=True).start()
    streams: dict[int, Stream] = {}
    while True:
        operation, number, *rest = requests.get()
        if operation == "open":
            streams[number] = _open(*rest)
        elif operation == "close":
            streams.pop(number, None)
        else:
            for frame in _reply(number, streams[number]):
                write_frame(replies, frame)


def _receive(stream: BinaryIO, requests: SimpleQueue[Sequence[Any]]) -> None:
    """Pass requests on; end as soon as the program that sends them ends, whatever is being read."""
    while (frame := read_frame(stream)) is not None:
        requests.put(unpack(frame))
    os._exit(0)


def _open(function: str, arguments: Sequence[Any], limits: Sequence[Any]) -> Stream:
    module, _, name = function.rpartition(".")
    make_items = getattr(importlib.import_module(f"{READERS_PACKAGE}.{module}"), name)
    budget, data = Budget(*limits), _data_bytes()
    spare = SPARE_BYTES_OF_ARROW if module == "parquet" else SPARE_BYTES
    return Stream(make_items(*arguments), budget, most_data=data and data + budget.memory + spare)


def _data_bytes() -> int | None:
    """Bytes of writable memory, as Linux counts them against its limit."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGESIZE")
    return None


def _reply(number: int, stream: Stream) -> tuple[bytes, bytes]:
    started = time.process_time()
    _limit_process(stream)
    kind, data = _next_item(stream)
    now = time.process_time()
    stream.seconds += now - started
    return pack((number, kind, now, stream.seconds)), data


def _next_item(stream: Stream) -> tuple[ReplyKind, bytes]:
    budget = stream.budget
    try:
        item = next(stream.items, None)
        if item is None:
            return "end", b""
        data = pack(item)
        stream.characters += len(data)
        if stream.characters > budget.characters:
            raise budget.exceeded("characters")
    except DataError as error:
        return "refused", pack(str(error))
    except MemoryError:
        return "refused", pack(str(budget.exceeded("memory")))
    except Exception as error:  # noqa: BLE001 - whatever a library raises becomes a sentence
        return "failed", pack((str(unforeseen(budget.name, error)), traceback.format_exc()))
    return "item", data


def _limit_process(stream: Stream) -> None:
    """Let the system end this process where nothing else can: inside a library that never returns."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limits
        import resource

        seconds = time.process_time() + stream.budget.seconds - stream.seconds
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds) + 1, most))
        if stream.most_data:
            _, most = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (stream.most_data, most))
