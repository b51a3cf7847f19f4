"""A process that slices parts of texts: it reads each from the store and writes its blocks there.

The first line of its input says which encoder to use, each other line which part to slice. It answers each line
with an empty one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from ...chunking import Encoder, SlicingRules
from ..arrow_store import Store
from ..stored_text import StoredText
from ..text import PartJob, slice_part

PROGRAM = __package__.removesuffix(".data.workers")


def serve() -> None:
    """Slice parts until the program that sends them ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the program that started this one
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not get into the replies
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, lines), daemon=True).start()
    encoder = _make_encoder(*json.loads(lines.get()))
    while True:
        slice_part(_read_job(*json.loads(lines.get())), encoder)
        replies.write(b"\n")


def _receive(stream: BinaryIO, lines: SimpleQueue[bytes]) -> None:
    """Pass lines on; end as soon as the program that sends them ends, whatever is being sliced."""
    for line in stream:
        lines.put(line)
    os._exit(0)


def _make_encoder(function: str, argument: str) -> Encoder:
    module, _, name = function.rpartition(".")
    encoder: Encoder = getattr(importlib.import_module(f"{PROGRAM}.{module}"), name)(argument)
    return encoder


def _read_job(
    folder: str, largest: int, text_key: str, rules: dict[str, Any], by_lines: bool, key: str
) -> PartJob:
    if text := StoredText.load(Store(Path(folder), largest), text_key):
        return PartJob(text, SlicingRules(**rules), by_lines, key)
    raise FileNotFoundError(f"the stored text {text_key} is missing from {folder}")
