"""Plain values as frames of bytes, between this program and the process that reads files.

Marshal holds only plain values, so a frame can't run code when it is read. Values that it has no form for
(dates, decimal numbers) become a tuple that begins with `...`, which no row has.
"""

from __future__ import annotations

import datetime
import decimal
import importlib
import marshal
import uuid
from collections.abc import Callable
from typing import Any, BinaryIO

VERSION = 2  # of marshal: later ones look for equal objects, which is slower and saves nothing here
LENGTH_BYTES = 8
MARSHALLED = frozenset({bool, int, float, complex, str, bytes})
DURATION = datetime.timedelta(microseconds=1)
FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "datetime": (lambda value: value.isoformat(), datetime.datetime.fromisoformat),
    "date": (lambda value: value.isoformat(), datetime.date.fromisoformat),
    "time": (lambda value: value.isoformat(), datetime.time.fromisoformat),
    "timedelta": (lambda value: value // DURATION, lambda count: datetime.timedelta(microseconds=count)),
    "Decimal": (str, decimal.Decimal),
    "UUID": (str, uuid.UUID),
    "Timestamp": (
        lambda value: (value.value, value.unit, value.tz and str(value.tz)),
        lambda parts: _pandas().Timestamp(parts[0], tz=parts[2]).as_unit(parts[1]),
    ),
    "Timedelta": (
        lambda value: (value.value, value.unit),
        lambda parts: _pandas().Timedelta(parts[0]).as_unit(parts[1]),
    ),
}


def _pandas() -> Any:
    """Pandas, whose times Arrow gives where it is installed."""
    return importlib.import_module("pandas")


def pack(value: Any) -> bytes:
    try:
        return b"\0" + marshal.dumps(value, VERSION)
    except ValueError:  # it holds something that marshal has no form for
        return b"\1" + marshal.dumps(_to_plain(value), VERSION)


def unpack(data: bytes) -> Any:
    value = marshal.loads(memoryview(data)[1:])
    return _from_plain(value) if data[0] else value


def _to_plain(value: Any) -> Any:
    """A value with the form of everything in it that marshal doesn't know."""
    if isinstance(value, dict):
        return {_to_plain(key): _to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_to_plain(inner) for inner in value]
    if isinstance(value, tuple):
        return tuple(_to_plain(inner) for inner in value)
    kind = type(value).__name__
    if kind in FORMS:
        return ..., kind, FORMS[kind][0](value)
    return value if value is None or type(value) in MARSHALLED else str(value)


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_from_plain(key): _from_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_from_plain(inner) for inner in value]
    if isinstance(value, tuple):
        return FORMS[value[1]][1](value[2]) if value[:1] == (...,) else tuple(map(_from_plain, value))
    return value


def write_frame(stream: BinaryIO, data: bytes) -> None:
    stream.write(len(data).to_bytes(LENGTH_BYTES, "little"))
    stream.write(data)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None where the other side has ended."""
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    data = stream.read(length)
    return data if len(data) == length else None
