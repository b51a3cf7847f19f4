"""The results of the recipes: a CSV with one row for each run, appended to when the run ends."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple, get_type_hints


@dataclass(frozen=True)
class Result:
    """What was run, and what came of it. A figure that was not measured is None."""

    experiment: str
    arm: str
    data: str
    text: str
    """The first characters of the hash of the data."""
    model: str
    equal_by: str
    budget: float
    """Planned tokens, or planned passes."""
    seed: int
    outcome: str
    """`finished`, or `diverged`."""
    trained_tokens: int
    passes: float
    steps: int
    rank: int
    seconds: float
    train_loss: float | None
    validation_loss: float | None
    general_loss: float | None
    """The loss of general text, which rises if the model forgets."""
    recall: float | None
    control_recall: float | None
    recall_4: float | None
    recall_8: float | None
    recall_16: float | None
    recall_32: float | None
    closed_book: float | None
    questions: int
    machine: str
    versions: str

    @property
    def key(self) -> Key:
        return Key(*(getattr(self, name) for name in Key._fields))


class Key(NamedTuple):
    """What makes two runs the same one."""

    experiment: str
    arm: str
    data: str
    text: str
    model: str
    equal_by: str
    budget: float
    seed: int


COLUMNS = tuple(field.name for field in fields(Result))
TYPES = get_type_hints(Result)


def append_result(file: Path, result: Result) -> None:
    """Append a row and write it through to the disk; a row that a kill has cut off is replaced."""
    file.parent.mkdir(parents=True, exist_ok=True)
    complete = _complete_lines(file).encode()
    with file.open("r+b" if file.exists() else "wb") as stream:
        stream.truncate(len(complete))
        stream.seek(0, os.SEEK_END)
        stream.write(_as_csv(result, heading=not complete).encode())
        stream.flush()
        os.fsync(stream.fileno())


def _as_csv(result: Result, *, heading: bool) -> str:
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
    if heading:
        writer.writeheader()
    writer.writerow(asdict(result))
    return lines.getvalue()


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
