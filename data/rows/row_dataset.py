"""Datasets of rows: read a file, choose its row schema, encode it, and collect notes and findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice
from pathlib import Path

from ...core.errors import DataError
from ...core.findings import Finding, advice, problem, texts
from ...settings import columns as naming
from ...settings.columns import Columns
from ...settings.definitions import SETTINGS, TrainingSettings
from ...train_utils import format_count, plural
from .. import arrow_store
from ..arrow_store import StoreEntry
from ..examples import RowSource
from ..readers import Row, Table, row_files, shorten, sqlite_rows, text_files
from . import prompt_formats, row_schema
from .chat_templates import default_system_message
from .conversations import Conversations, find_conversation_columns
from .encoding import PrepareContext, RowCounts, RowEncoder, Tokenizer
from .row_schema import RowSchema
from .text_quality import TextInspector, load_refusal_phrases

FIRST_ROWS = 200  # read to detect the row schema
MAX_LISTED = 10
MAX_NAME = 60  # characters of a column's name in a note
MAX_SYSTEM_CHARS = 200
MAX_SKIPPED_SHARE = 0.1
PLAIN_FORMATS = ("auto", "chat", "text")  # the values of Data format that are no prompt format
ROW_ARRAYS = ("all_ids", "all_trained", "first", "rows", "follows")


@dataclass(frozen=True)
class RowDataset:
    """The encoded rows of a file, before truncation."""

    source: RowSource
    counts: RowCounts
    what: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


def load_or_restore(context: PrepareContext, path: Path, name: str) -> RowDataset:
    """The rows of a file, read now or stored before."""
    key = _cache_key(context, path, name)
    if entry := context.store.load(key):
        context.say(f"Using the cached version of {name}", None)
        metadata = entry.metadata
        source = RowSource(**metadata["source"], **entry.arrays, decode=context.tokenizer.decode)
        bad = [(int(number), str(reason)) for number, reason in metadata["counts"]["bad"]]
        counts = RowCounts(**{**metadata["counts"], "bad": bad})
        findings = tuple(Finding(*values) for values in metadata["findings"])
        return RowDataset(source, counts, metadata["what"], tuple(metadata["notes"]), findings)
    rows = load_row_dataset(context, path, name)
    # Rows with problems don't train, and their file is about to be changed.
    if not texts(rows.findings, "problem"):
        source = rows.source
        metadata = {
            "source": {"name": source.name, "unit": source.unit, "has_conversations": source.has_conversations},
            "counts": asdict(rows.counts),
            "what": rows.what,
            "notes": rows.notes,
            "findings": list(map(astuple, rows.findings)),
        }
        context.store.save(key, StoreEntry({array: getattr(source, array) for array in ROW_ARRAYS}, metadata))
    return rows


def _cache_key(context: PrepareContext, path: Path, name: str) -> str:
    """Return the cache key of the encoded rows of a file.

    Empty, so that nothing is cached, for a tokenizer without a fingerprint and for a database in use, whose last
    changes are in other files.
    """
    if not context.tokenizer.fingerprint or sqlite_rows.is_in_use(path):
        return ""
    rows, text, folders = context.settings.rows, context.settings.text, context.folders
    templates = {} if rows.format in PLAIN_FORMATS else prompt_formats.load_templates(rows.format, folders)
    return arrow_store.cache_key(
        "rows",
        context.tokenizer.fingerprint,
        text_files.file_digest(path, name),
        name,
        repr(replace(rows, too_long="drop")),  # truncation comes after the cache
        (text.add_bos, text.add_eos != "never"),
        templates,
        load_refusal_phrases(folders),
    )


def load_row_dataset(context: PrepareContext, path: Path, name: str) -> RowDataset:
    """Read and encode the rows of a file; raises DataError where it has none that can be read."""
    settings = context.settings
    requested = naming.parse_columns(settings.rows.columns)
    table, findings = _rename_columns(row_files.read_table(path, name, requested), requested)
    rows = _first_rows(table)
    schema = _choose_schema(context, table, rows, requested)
    used = {column.strip().lower() for column in schema.columns if column}
    ids = find_conversation_columns(rows, used)
    conversations = Conversations(ids) if ids.names else None
    inspector = TextInspector(load_refusal_phrases(context.folders))
    encoder = RowEncoder(context, table, schema, inspector, conversations)
    source = encoder.encoded()
    notes = [*table.notes]
    # Chats and templates name theirs themselves: what else a row has is not missed.
    if schema.kind in ("answer", "text", "completion"):
        used |= {*ids.names, *(requested.names.get(column, "") for column in used), *requested.names}
        used = {column.strip().lower() for column in used}
        existing = dict.fromkeys(str(column) for row in rows for column in row.columns)
        names = [column for column in existing if column.strip().lower() not in used][:MAX_LISTED]
        if names:
            listed = ", ".join(repr(shorten(column, MAX_NAME)) for column in names)
            notes.append(f"{plural(len(names), 'Column')} {listed} {plural(len(names), 'is', 'are')} not used.")
    notes += _notes(schema, encoder.counts, settings, context.tokenizer)
    notes += [conversations.words()] if conversations else []
    findings = [*_unreadable_rows(table, encoder.counts, settings), *findings, *inspector.findings(name, "row")]
    what = f"rows ({table.what}): {schema.reason}" if table.what else f"rows: {schema.reason}"
    return RowDataset(source, encoder.counts, what, tuple(notes), tuple(findings))


def _first_rows(table: Table) -> list[Row]:
    return list(islice((row for row in table.rows() if not row.problem and not row.without_reply), FIRST_ROWS))


def _rename_columns(table: Table, requested: Columns) -> tuple[Table, list[Finding]]:
    """Rename columns as the setting Columns says; with advice where the table has none of them."""
    if not requested.names:
        return table, []
    existing = {str(column) for row in _first_rows(table) for column in row.columns}
    missing = [theirs for theirs in requested.names.values() if theirs not in existing]
    absent = " or ".join(missing)
    if len(missing) == len(requested.names):
        unused = f"{table.name} has no column {absent}, so Training PRO ignores 'Column names' for this file."
        return table, [advice("columns", unused)]
    if missing:
        raise DataError(
            f"{table.name} has no column {absent}, which you entered under Column names. "
            f"Its columns: {', '.join(sorted(existing)[:12])}."
        )

    def rows() -> Iterator[Row]:
        for row in table.rows():
            renamed = {
                ours: row.columns[theirs] for ours, theirs in requested.names.items() if theirs in row.columns
            }
            yield row._replace(columns={**row.columns, **renamed})

    return replace(table, rows=rows), []


def _choose_schema(
    context: PrepareContext, table: Table, first_rows: Sequence[Row], columns: Columns
) -> RowSchema:
    """Choose the row schema: by the format setting, otherwise by the columns, those named by the user first."""
    rows, name = context.settings.rows, table.name
    if not first_rows:
        broken = islice((row for row in table.rows() if row.problem), MAX_LISTED)
        reasons = [f"{name}, {table.unit} {row.number}: {_as_sentence(row.problem)}" for row in broken]
        if not reasons and any(row.without_reply for row in table.rows()):
            reasons = [f"{name}: no conversation has a reply from the assistant, so there is nothing to train on."]
        raise DataError(
            "\n".join(reasons) or f"{name} has no rows. Add rows to it, or remove it from the dataset."
        )
    if columns.names:  # only the columns that the user named, where these have a schema by themselves
        named = [
            row._replace(
                columns={column: row.columns[column] for column in columns.names if column in row.columns}
            )
            for row in first_rows
        ]
        with suppress(DataError):
            row_schema.detect_schema(named, "", "")
            first_rows = named
    if rows.format not in PLAIN_FORMATS:
        marks = bos_eos_texts(context.tokenizer)
        return prompt_formats.load_format_schema(rows.format, first_rows, context.folders, marks, rows.system)
    return row_schema.detect_schema(first_rows, name, rows.system, rows.format)


def bos_eos_texts(tokenizer: Tokenizer) -> tuple[Sequence[str], Sequence[str]]:
    bos, eos = tokenizer.bos, tokenizer.eos
    opening = [tokenizer.decode([bos])] if bos is not None else []
    return opening, [tokenizer.decode([eos])] if eos is not None else []


def _notes(
    schema: RowSchema, counts: RowCounts, settings: TrainingSettings, tokenizer: Tokenizer
) -> Iterator[str]:
    """Yield what was made of the rows, and how many were dropped."""
    if schema.kind in ("chat", "answer"):
        yield f"Chats are formatted with {tokenizer.chat_template.origin}."
        if not settings.rows.system and (default := default_system_message(tokenizer.chat_template)):
            yield f"The template adds a system message to chats that have none: {default[:MAX_SYSTEM_CHARS]!r}."
    if count := counts.merged_systems:
        yield (
            f"The template does not support system messages, so in {count} {plural(count, 'row')} the system "
            "message is added to the start of the first user message."
        )
    if schema.kind == "text" and settings.rows.system:
        yield "The system message is not used because the rows are plain text."
    if count := counts.without_marker:
        do, were = plural(count, "row does", "rows do"), plural(count, "was", "were")
        yield f"{count} {do} not contain {settings.rows.train_only_after!r} and {were} dropped."
    if count := counts.no_reply:
        have, were = plural(count, "row has", "rows have"), plural(count, "was", "were")
        yield f"{count} {have} no reply to train on and {were} dropped."
    if any(counts.left_out.values()):
        listed = ", ".join(f"{reason} ({count:,})" for reason, count in sorted(counts.left_out.items()) if count)
        yield f"Dropped from conversations: {listed}."
    if count := counts.without_parts:
        yield (
            f"{count} {plural(count, 'row does', 'rows do')} not have exactly one reply, so "
            f"{SETTINGS['source_max_len'].label} and {SETTINGS['target_max_len'].label} do not apply to "
            f"{plural(count, 'it', 'them')}."
        )
    if counts.bad and settings.rows.bad_rows == "skip":
        count = len(counts.bad)
        yield f"{format_count(count, 'row')} can't be read and {plural(count, 'was', 'were')} skipped."


def _unreadable_rows(table: Table, counts: RowCounts, settings: TrainingSettings) -> Iterator[Finding]:
    """Yield the first rows that cannot be read, where they are too many to skip."""
    bad, skip = counts.bad, settings.rows.bad_rows == "skip"
    # More than a tenth: not a few broken rows, but another kind of file than it looks like.
    few = len(bad) <= MAX_SKIPPED_SHARE * counts.rows
    if not bad or (skip and few):
        return
    for number, reason in bad[:MAX_LISTED]:
        yield problem("data", f"{table.name}, {table.unit} {number}: {_as_sentence(reason)}")
    if len(bad) > MAX_LISTED:
        yield problem("data", f"{table.name}: {format_count(len(bad) - MAX_LISTED, 'more row')} can't be read.")
    if skip:
        yield problem(
            "data",
            f"{table.name}: {len(bad)} of {counts.rows} rows can't be read, which is more than a tenth. Fix these "
            "rows, or choose another Data format.",
        )
    elif few:
        label = SETTINGS["bad_rows"].label
        yield problem(
            "bad_rows",
            f"{label}: {len(bad)} of {counts.rows} rows can't be read. Fix them, or choose to skip them.",
        )


def _as_sentence(problem: str) -> str:
    return (
        problem if problem.startswith(("at ", "byte ", "message ", "'", "the content")) else f"the row {problem}"
    )
