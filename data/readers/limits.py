"""How much reading a file may take: seconds, memory, characters, rows and depth, by the file's size."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...core.errors import DataError, TrainingProError

MB = 1_000_000
# Of CPU time. Dense PDF documents are slowest: a MB of one takes a slow machine some 5 seconds.
SECONDS, SECONDS_PER_MB = 4, 10
# Above the file's size: libraries need some 60 MB, the largest novel as a Word document 150 MB.
MEMORY_BYTES = 400 * MB
# Packed text shrinks to a fifth; only a table that repeats its texts in every row shrinks to a fiftieth.
CHARACTERS, CHARACTERS_PER_BYTE = 20 * MB, 100
ROWS, ROWS_PER_BYTE = 100_000, 1
MAX_MESSAGE = 1000
# Of lists and objects in a row: chats with tools have 8. Deeper ones end in Python's limit of recursion.
MAX_DEPTH = 64

NESTED = (dict, list, tuple)
Limit = Literal["seconds", "memory", "characters", "rows"]


@dataclass(frozen=True)
class Budget:
    """The limits of reading one file, whose name is for messages."""

    name: str
    size: int
    seconds: float
    memory: int
    characters: int
    rows: int

    @staticmethod
    def of(path: Path, name: str) -> Budget:
        """The limits of a file by its size on disk."""
        try:
            size = path.stat().st_size
        except OSError:  # its reader says why it can't be read
            size = 0
        return Budget(
            name,
            size,
            SECONDS + SECONDS_PER_MB * size / MB,
            MEMORY_BYTES + size,
            CHARACTERS + CHARACTERS_PER_BYTE * size,
            ROWS + ROWS_PER_BYTE * size,
        )

    def exceeded(self, limit: Limit) -> DataError:
        """The error of a limit that was reached."""
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

    def check_rows(self, count: int) -> None:
        if count > self.rows:
            raise self.exceeded("rows")


def exceeds_depth(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether lists and objects in a value are nested more deeply."""
    level = [value]
    for _ in range(depth + 1):  # level by level, since recursion would reach Python's own limit
        inner = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, NESTED)]
        if not level:
            return False
    return True


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
        logging.getLogger("training_pro").warning("%s can't be read", name, exc_info=True)
        raise unforeseen(name, error) from error


def shorten(text: str, length: int) -> str:
    """A text of at most this length; names and values in a message may be as long as their file."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def unforeseen(name: str, error: Exception) -> DataError:
    """The sentence for an error that no reader expects."""
    if isinstance(error, MemoryError):
        return DataError(f"{name} needs more memory than is available. Split it into smaller files.")
    if isinstance(error, RecursionError):
        return DataError(f"{name} is nested too deeply. Save its text or rows in another format (.txt, .jsonl).")
    reason = " ".join(str(error).split())[:120].rstrip(".")
    kind = type(error).__name__
    return DataError(
        f"{name} can't be read ({f'{kind}: {reason}' if reason else kind}). It may be damaged. Save it again, or "
        "save its text or rows in another format (.txt, .jsonl). The console has the details."
    )
