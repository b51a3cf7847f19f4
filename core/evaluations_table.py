"""logs/evaluations.csv: the table of perplexities, with the columns of the webui, which shows it too."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SavingError
from .files import write_text

FILE_NAME = "evaluations.csv"
# Spreadsheets evaluate a cell that begins with one of these; a leading apostrophe makes it text
FORMULA_STARTS = ("=", "+", "-", "@", "\t")
MARKED = tuple(f"'{start}" for start in FORMULA_STARTS)
COLUMNS = ("Model", "LoRAs", "Dataset", "Perplexity", "stride", "max_length", "Date", "Comment")


@dataclass(frozen=True)
class EvaluationRow:
    """One perplexity and how it was measured."""

    model: str
    loras: str
    dataset: str
    perplexity: float
    stride: int
    max_length: int
    date: str
    comment: str = ""

    def cells(self) -> dict[str, str | float]:
        """Cells by the webui's column names; all are text except the perplexity itself."""
        values = (self.model, self.loras or "-", self.dataset, self.perplexity)
        numbers = (str(self.stride), str(self.max_length), self.date, self.comment)
        return dict(zip(COLUMNS, (*values, *numbers), strict=True))


def add_row(row: EvaluationRow, logs: Path) -> None:
    """Append a row; columns of other programs are kept."""
    file = logs / FILE_NAME
    existing, columns = _read(file)
    columns = [*columns, *(c for c in COLUMNS if c not in columns)]
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _as_text(cell) for name, cell in each.items()} for each in [*existing, row.cells()])
    write_text(file, buffer.getvalue())


def read_rows(logs: Path) -> list[Mapping[str, str]]:
    """Read the table, oldest row first; each row maps columns to cells."""
    return _read(logs / FILE_NAME)[0]


def _as_text(cell: Any) -> Any:
    """Make a cell a text for spreadsheets where it would be a formula; numbers and a lone dash stay."""
    if not isinstance(cell, str):
        return cell
    cell = cell.replace("\r", " ")  # csv writes it without quotes, and reads a new row from there
    is_number = False
    with suppress(ValueError):
        is_number = cell == cell.strip() and math.isfinite(float(cell))
    is_formula = cell.startswith(FORMULA_STARTS) and cell != "-" and not is_number
    return f"'{cell}" if is_formula else cell


def _read(file: Path) -> tuple[list[Mapping[str, str]], list[str]]:
    if not file.is_file():
        return [], []
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True, restkey="more")
            rows = [
                {name: cell[1:] if str(cell).startswith(MARKED) else cell for name, cell in row.items()}
                for row in reader
            ]
    except (OSError, ValueError, csv.Error) as error:
        raise SavingError(
            f"{file} can't be read as a table: {error}. Move the file to another folder, then try again."
        ) from error
    if any("more" in row for row in rows):
        raise SavingError(
            f"{file} has rows with more cells than columns. Move the file to another folder, then try again."
        )
    return list(rows), list(reader.fieldnames or [])
