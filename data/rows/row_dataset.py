"""One data set of rows: read, shaped and encoded, with what there is to say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ...core.errors import DataError
from ...core.host import Folders
from ...settings import columns as naming
from ...settings.columns import Columns
from ...settings.definitions import SETTINGS, TrainingSettings
from ...train_utils import plural, several
from .. import arrow_store
from ..examples import RowSource
from ..readers import Row, Table, chat_exports, csv_rows, json_table, jsonl_table, parquet, sqlite_rows
from . import prompt_formats, row_schema
from .chat_templates import own_system
from .encoding import Counts, Learning, RowEncoder, RowTokenizer
from .row_schema import Chats, Completion, Pair, Plain, Shape
from .text_quality import Inspector, refusals

FIRST_ROWS = 200  # looked at to see what the columns mean
MOST_LISTED = 10
MOST_SHOWN = 200
MOST_SKIPPED = 0.1
READERS: dict[str, Callable[[Path, str], Table]] = {
    ".json": json_table,
    ".jsonl": jsonl_table,
    ".ndjson": jsonl_table,
    ".csv": csv_rows.table,
    ".tsv": csv_rows.table,
    ".parquet": parquet.table,
}
JSON = frozenset({".json", ".jsonl", ".ndjson"})
DATABASES = (".db", ".sqlite", ".sqlite3")


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
    return path.suffix.lower() in (*READERS, *DATABASES)


def row_set(
    path: Path,
    name: str,
    settings: TrainingSettings,
    folders: Folders,
    tokenizer: RowTokenizer,
    say: Callable[[int], None],
) -> RowSet:
    """A file's rows; a DataError where it holds none that could be read at all."""
    asked = naming.read(settings.rows.columns)
    table, unnamed = _renamed(_table(path, name, asked), asked)
    shape = _shape(table, settings, folders, tokenizer, asked)
    inspector = Inspector(refusals(folders))
    encoder = RowEncoder(table.unit, shape, tokenizer, _learning(settings), inspector)
    source = encoder.encoded(table, say)
    counts = encoder.counts
    notes = (*table.notes, *_unused(table, shape, asked), *_notes(shape, counts, settings, tokenizer))
    problems = tuple(_problems(table, counts, settings))
    advice = (*unnamed, *inspector.said(name, "row"))
    return RowSet(source, counts, _what(table, shape), notes, problems, advice)


def key(path: Path, name: str, settings: TrainingSettings, folders: Folders, tokenizer: RowTokenizer) -> str:
    """All that the encoded rows of a file follow from; empty where the tokenizer cannot be told from others, and
    where the file is not all of it: a database that is in use has its last changes beside it."""
    if not tokenizer.fingerprint or sqlite_rows.is_in_use(path):
        return ""
    rows = replace(settings.rows, too_long="drop")  # what is done with long rows comes later
    spelled = prompt_formats.texts(rows.format, folders) if _is_spelled(rows.format) else {}
    learning = _learning(settings)
    content = arrow_store.content(path, name)
    return arrow_store.key(
        "rows", tokenizer.fingerprint, content, name, rows, learning, spelled, refusals(folders)
    )


def _what(table: Table, shape: Shape) -> str:
    return f"rows ({table.what}): {shape.reason}" if table.what else f"rows: {shape.reason}"


def _table(path: Path, name: str, asked: Columns) -> Table:
    if path.suffix.lower() in DATABASES:
        return sqlite_rows.table(path, name, asked)
    table = READERS[path.suffix.lower()](path, name)
    return chat_exports.unpacked(table) if path.suffix.lower() in JSON else table


def _renamed(table: Table, asked: Columns) -> tuple[Table, tuple[str, ...]]:
    """The table with its columns under the names that the user gave them; advice where it has none of them."""
    if not asked.names:
        return table, ()
    there = {str(column) for row in _first(table) for column in row.columns}
    missing = [theirs for theirs in asked.names.values() if theirs not in there]
    if len(missing) == len(asked.names):
        return table, (f"{table.name} has no column {', '.join(missing)}: Columns is not used for it.",)
    if missing:
        listed = ", ".join(sorted(there)[:12])
        raise DataError(f"{table.name} has no column {', '.join(missing)} (Columns). It has: {listed}.")

    def rows() -> Iterator[Row]:
        for row in table.rows():
            named = {ours: row.columns[theirs] for ours, theirs in asked.names.items() if theirs in row.columns}
            yield row._replace(columns={**row.columns, **named})

    return replace(table, rows=rows), ()


def _learning(settings: TrainingSettings) -> Learning:
    rows, text = settings.rows, settings.text
    return Learning(rows.train_on, rows.train_only_after, text.add_bos, text.add_eos != "never")


def _shape(
    table: Table, settings: TrainingSettings, folders: Folders, tokenizer: RowTokenizer, columns: Columns
) -> Shape:
    """How the rows are read: as asked, or as their columns say; those that the user named say it first."""
    rows, asked = settings.rows, settings.rows.format
    first = _named(_first(table), columns)
    if not first:
        raise DataError("\n".join(_why_none(table)))
    if _is_spelled(asked):
        return prompt_formats.format_shape(asked, first, folders, marks(tokenizer), rows.system)
    found = row_schema.found(first, table.name, rows.system)
    if asked == "chat":
        return row_schema.as_chat(found, first, table.name, rows.system)
    return row_schema.as_text(found, first, table.name) if asked == "text" else found


def _named(rows: list[Row], columns: Columns) -> list[Row]:
    """Only the columns that the user named, where these mean something alone."""
    bare = [row._replace(columns={k: row.columns[k] for k in columns.names if k in row.columns}) for row in rows]
    return bare if columns.names and row_schema.are_known(bare) else rows


def _is_spelled(format: str) -> bool:
    """Whether a format is a file of templates, or a template."""
    return format not in ("auto", "chat", "text")


def _why_none(table: Table) -> list[str]:
    """What is wrong where no row can be read."""
    bad = [
        f"{table.name}, {table.unit} {row.number}: {_joined(row.problem)}"
        for row in islice((row for row in table.rows() if row.problem), MOST_LISTED)
    ]
    if not bad and any(row.without_reply for row in table.rows()):
        return [f"{table.name}: no conversation has a reply of the assistant. There is nothing to learn from."]
    return bad or [f"{table.name} holds no rows. Put rows into it, or take it out of the data."]


def _first(table: Table) -> list[Row]:
    return list(islice((row for row in table.rows() if not row.problem and not row.without_reply), FIRST_ROWS))


def _unused(table: Table, shape: Shape, asked: Columns) -> Iterator[str]:
    """The columns that nothing is learned from; chats and templates say themselves what they take."""
    if not isinstance(shape, (Pair, Plain, Completion)):
        return
    taken = {getattr(shape, part, "") for part in TAKEN}
    taken = {name.strip().lower() for name in (*taken, *map(asked.names.get, taken), *asked.names) if name}
    there = dict.fromkeys(str(column) for row in _first(table) for column in row.columns)
    unused = [repr(column) for column in there if column.strip().lower() not in taken][:MOST_LISTED]
    if unused:
        yield f"{plural(len(unused), 'Column')} {', '.join(unused)} {plural(len(unused), 'is', 'are')} not used."


TAKEN = ("question", "more", "answer", "own_system", "column", "prompt", "completion")
"""What a shape has the names of columns in."""


def marks(tokenizer: RowTokenizer) -> tuple[Sequence[str], Sequence[str]]:
    """BOS and EOS as they would be spelled."""
    bos, eos = tokenizer.bos, tokenizer.eos
    opening = [tokenizer.decode([bos])] if bos is not None else []
    return opening, [tokenizer.decode([eos])] if eos is not None else []


def _notes(shape: Shape, counts: Counts, settings: TrainingSettings, tokenizer: RowTokenizer) -> list[str]:
    said = []
    if isinstance(shape, (Chats, Pair)):
        said.append(f"Chats are written by {tokenizer.chat_template.origin}.")
        if not settings.rows.system and (own := own_system(tokenizer.chat_template)):
            said.append(f"Where a chat has no system message, the template writes one: {own[:MOST_SHOWN]!r}.")
    if many := counts.merged_systems:
        said.append(
            f"The template takes no system message: in {many} {plural(many, 'row')} it stands before the first "
            "question."
        )
    if isinstance(shape, Plain) and settings.rows.system:
        said.append("The system message is not used: the rows are plain texts.")
    if counts.without_marker:
        said.append(
            f"{counts.without_marker} {plural(counts.without_marker, 'row does', 'rows do')} not hold "
            f"{settings.rows.train_only_after!r}: left out."
        )
    if counts.no_reply:
        has = plural(counts.no_reply, "row has", "rows have")
        said.append(f"{counts.no_reply} {has} no reply to learn from: left out.")
    if any(counts.left_out.values()):
        listed = ", ".join(f"{what} {count:,}" for what, count in sorted(counts.left_out.items()) if count)
        said.append(f"Left out of its conversations: {listed}.")
    if counts.bad and settings.rows.bad_rows == "skip":
        said.append(f"{len(counts.bad)} {plural(len(counts.bad), 'row')} cannot be read: skipped.")
    return said


def _problems(table: Table, counts: Counts, settings: TrainingSettings) -> list[str]:
    """The rows that stand in the way; the first ones by their places."""
    bad = counts.bad
    if not bad or (settings.rows.bad_rows == "skip" and len(bad) <= MOST_SKIPPED * counts.rows):
        return []
    said = [f"{table.name}, {table.unit} {number}: {_joined(what)}" for number, what in bad[:MOST_LISTED]]
    if len(bad) > MOST_LISTED:
        said.append(f"{table.name}: {several(len(bad) - MOST_LISTED, 'more row')} cannot be read.")
    if settings.rows.bad_rows == "skip":
        said.append(
            f"{table.name}: {len(bad)} of {counts.rows} rows cannot be read, more than a tenth. "
            "Mend them, or choose another format."
        )
    elif len(bad) <= MOST_SKIPPED * counts.rows:
        said.append(f"{SETTINGS['bad_rows'].label}: {len(bad)} of {counts.rows}. Mend them, or choose: skip them.")
    return said


def _joined(what: str) -> str:
    return (
        what if what.startswith(("at ", "byte ", "ends ", "message ", "'", "the content")) else f"the row {what}"
    )
