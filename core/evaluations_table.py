"""logs/evaluations.csv: the table of perplexities, with the columns of the webui, which shows it too."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import SavingError
from .files import write_text

FILE_NAME = "evaluations.csv"
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
        numbers = (str(self.stride), str(self.max_length), self.date, " ".join(self.comment.split()))
        return dict(zip(COLUMNS, (*values, *numbers), strict=True))


def add_row(row: EvaluationRow, logs: Path) -> None:
    """Append a row; columns of other programs are kept."""
    file = logs / FILE_NAME
    existing, columns = _read(file)
    columns = [*columns, *(c for c in COLUMNS if c not in columns)]
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*existing, row.cells()])
    write_text(file, buffer.getvalue())


def read_rows(logs: Path) -> list[Mapping[str, str]]:
    """Read the table, oldest row first; each row maps columns to cells."""
    return _read(logs / FILE_NAME)[0]


def _read(file: Path) -> tuple[list[Mapping[str, str]], list[str]]:
    if not file.is_file():
        return [], []
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True, restkey="more")
            rows: list[Mapping[str, str]] = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise SavingError(
            f"{file} can't be read as a table: {error}. Move the file to another folder, then try again."
        ) from error
    if any("more" in row for row in rows):
        raise SavingError(
            f"{file} has rows with more cells than columns. Move the file to another folder, then try again."
        )
    return rows, list(reader.fieldnames or [])
