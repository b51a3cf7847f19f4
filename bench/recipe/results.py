"""The results: a CSV with one row for each run, appended to when the run ends."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast, get_type_hints

from ...core.files import lock
from .questions import Key
from .texts import TextName


@dataclass(frozen=True)
class Result:
    """What was run, and what came of it. A figure that was not measured is None."""

    text: str
    digest: str
    """The first characters of the hash of the text."""
    model: str
    recipe: str
    """The settings that differ from the base, as JSON."""
    rate: float
    tokens: int
    """Planned tokens; 0 is the untrained model."""
    seed: int
    outcome: str
    """`finished`, or `diverged`."""
    examples: int
    trained_tokens: int
    passes: float
    steps: int
    rank: int
    seconds: float
    seconds_measured: float
    train_loss: float | None
    recall: float | None
    control_recall: float | None
    inside_recall: float | None
    """Of passages that begin in the middle of sentences, where no way's examples begin; None for chats."""
    general_loss: float | None
    """The loss of general text, which rises if the model forgets."""
    unseen_loss: float | None
    """The loss of unseen text by the same author."""
    copied: float | None
    """The share of 8-word runs in freely written text that stand in the training text."""
    closed_book: float | None
    machine: str
    versions: str

    @property
    def key(self) -> Key:
        return Key(
            cast(TextName, self.text), self.digest, self.model, self.recipe, self.rate, self.tokens, self.seed
        )


COLUMNS = tuple(field.name for field in fields(Result))
TYPES = get_type_hints(Result)


def append_result(file: Path, result: Result) -> None:
    """Append a row and write it through to the disk; a row that a kill has cut off is replaced."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
    with lock(file.with_suffix(".lock"), patience=60.0) as is_mine:  # several processes may share the work
        if not is_mine:
            raise SystemExit(f"{file} is locked by another process.")
        complete = _complete_lines(file).encode()
        if not complete:
            writer.writeheader()
        writer.writerow(asdict(result))
        with file.open("r+b" if file.exists() else "wb") as stream:
            stream.truncate(len(complete))
            stream.seek(0, os.SEEK_END)
            stream.write(lines.getvalue().encode())
            stream.flush()
            os.fsync(stream.fileno())


def _complete_lines(file: Path) -> str:
    """The text up to the last line break; no cell holds one."""
    text = file.read_bytes().decode("utf-8", "replace") if file.is_file() else ""
    return text[: text.rfind("\n") + 1]


def read_results(file: Path) -> list[Result]:
    """Read the rows, without one that a kill has cut off."""
    reader = csv.DictReader(io.StringIO(_complete_lines(file), newline=""))
    if reader.fieldnames and (missing := set(COLUMNS) - set(reader.fieldnames)):
        raise SystemExit(f"{file} has no column {', '.join(sorted(missing))}. Choose another file for --results.")
    return [_parse(row) for row in reader]


def _parse(row: Mapping[str, str]) -> Result:
    return Result(**{column: _parse_cell(row[column], TYPES[column]) for column in COLUMNS})


def _parse_cell(cell: str, kind: object) -> object:
    if kind is str:
        return cell
    if kind is int:
        return int(cell)
    return float(cell) if cell else None
