"""One data set of rows: read, shaped and encoded, with what there is to say about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..core.host import Folders
from ..settings.declared import TrainingSettings
from . import format_files, shapes
from .encoding import Counts, Learning, RowEncoder, RowTokenizer
from .examples import RowSource
from .inspection import Inspector, refusals
from .rows import Row, Table, json_table, jsonl_table
from .shapes import Chats, Pair, Plain, Shape

FIRST_ROWS = 200  # looked at to see what the columns mean
MOST_LISTED = 10
MOST_SKIPPED = 0.1
READERS: dict[str, Callable[[Path, str], Table]] = {
    ".json": json_table,
    ".jsonl": jsonl_table,
    ".ndjson": jsonl_table,
}


@dataclass(frozen=True)
class RowSet:
    """The encoded rows of a file, before anything is cut."""

    source: RowSource
    counts: Counts
    what: str
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    advice: tuple[str, ...] = ()


def is_rows(path: Path) -> bool:
    return path.suffix.lower() in READERS


def row_set(
    path: Path,
    name: str,
    settings: TrainingSettings,
    folders: Folders,
    tokenizer: RowTokenizer,
    say: Callable[[int], None],
) -> RowSet:
    """A file's rows; a DataError where it holds none that could be read at all."""
    table = READERS[path.suffix.lower()](path, name)
    shape = _shape(table, settings, folders, tokenizer)
    inspector = Inspector(refusals(folders))
    encoder = RowEncoder(table.unit, shape, tokenizer, _learning(settings), inspector)
    source = encoder.encoded(table, say)
    counts = encoder.counts
    notes = (*table.notes, *_notes(shape, counts, settings, tokenizer))
    problems = tuple(_problems(table, counts, settings))
    advice = tuple(inspector.said(name, "row"))
    return RowSet(source, counts, f"rows: {shape.reason}", notes, problems, advice)


def _learning(settings: TrainingSettings) -> Learning:
    rows, text = settings.rows, settings.text
    return Learning(rows.train_on, rows.train_only_after, text.add_bos, text.add_eos != "never")


def _shape(table: Table, settings: TrainingSettings, folders: Folders, tokenizer: RowTokenizer) -> Shape:
    """How the rows are read: as asked, or as their columns say."""
    rows, asked = settings.rows, settings.rows.format
    first = _first(table)
    if asked not in ("auto", "chat", "text"):
        return format_files.format_shape(asked, first, folders, _marks(tokenizer), rows.system)
    found = shapes.found(first, table.name, rows.system)
    if asked == "chat":
        return shapes.as_chat(found, first, table.name, rows.system)
    return shapes.as_text(found, first, table.name) if asked == "text" else found


def _first(table: Table) -> list[Row]:
    return list(islice((row for row in table.rows() if not row.problem), FIRST_ROWS))


def _marks(tokenizer: RowTokenizer) -> tuple[Sequence[str], Sequence[str]]:
    """BOS and EOS as they would be spelled."""
    bos, eos = tokenizer.bos, tokenizer.eos
    opening = [tokenizer.decode([bos])] if bos is not None else []
    return opening, [tokenizer.decode([eos])] if eos is not None else []


def _notes(shape: Shape, counts: Counts, settings: TrainingSettings, tokenizer: RowTokenizer) -> list[str]:
    said = []
    if isinstance(shape, (Chats, Pair)):
        said.append(f"Chats are written by {tokenizer.chat_template.origin}.")
    if counts.merged_systems:
        said.append(
            f"The template takes no system message: in {counts.merged_systems} rows it stands before the "
            "first question."
        )
    if isinstance(shape, Plain) and settings.rows.system:
        said.append("The system message is not used: the rows are plain texts.")
    if counts.without_marker:
        said.append(
            f"{counts.without_marker} rows do not hold {settings.rows.train_only_after!r} and are left out."
        )
    if counts.no_reply:
        said.append(f"{counts.no_reply} rows have no reply to learn from and are left out.")
    if counts.bad and settings.rows.bad_rows == "skip":
        said.append(f"{len(counts.bad)} rows cannot be read and are skipped.")
    return said


def _problems(table: Table, counts: Counts, settings: TrainingSettings) -> list[str]:
    """The rows that stand in the way; the first ones by their places."""
    bad = counts.bad
    if not bad or (settings.rows.bad_rows == "skip" and len(bad) <= MOST_SKIPPED * counts.rows):
        return []
    said = [f"{table.name}, {table.unit} {number}: {_joined(what)}" for number, what in bad[:MOST_LISTED]]
    if len(bad) > MOST_LISTED:
        said.append(f"{table.name}: {len(bad) - MOST_LISTED} more rows cannot be read.")
    if settings.rows.bad_rows == "skip":
        said.append(
            f"{table.name}: {len(bad)} of {counts.rows} rows cannot be read, more than a tenth. "
            "Mend them, or choose another format."
        )
    return said


def _joined(what: str) -> str:
    return what if what.startswith(("at ", "byte ", "ends ")) else f"the row {what}"
