"""Datasets of rows: read a file, choose its row schema, encode it, and collect notes and findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice
from pathlib import Path

from ...core.errors import DataError
from ...core.findings import Finding, advice, problem, texts
from ...settings import columns as naming
from ...settings.columns import Columns
from ...settings.definitions import SETTINGS
from ...train_utils import format_count, plural
from .. import arrow_store
from ..arrow_store import StoreEntry
from ..examples import ROW_ARRAYS, RowSource, label_pairs
from ..readers import Row, Table, is_in_use, json_rows, row_files, shorten, text_files
from . import prompt_formats, row_schema
from .chat_templates import default_system_message
from .conversations import Conversations
from .encoding import PrepareContext, RowEncoder, RowReport
from .preferences import (
    columns_of_data,
    find_preferences,
    needed_columns,
    preference_notes,
    refuse_without_preferences,
    split_preferences,
)
from .text_quality import TextInspector, load_refusal_phrases

FIRST_ROWS = 200  # read to detect the row schema
MAX_LISTED = 10
MAX_NAME = 60  # characters of a column's name in a note
MAX_SYSTEM_CHARS = 200
MAX_SKIPPED_SHARE = 0.1
REJECTED = "rejected_"  # begins the names of the arrays of rejected replies


@dataclass(frozen=True)
class RowDataset:
    """The encoded rows of a file, before truncation."""

    source: RowSource
    report: RowReport
    what: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


def load_or_restore(context: PrepareContext, path: Path, name: str) -> RowDataset:
    """The rows of a file, read now or stored before."""
    rows, text, folders, key = context.settings.rows, context.settings.text, context.folders, ""
    # Nothing is stored for a tokenizer without a fingerprint, for TextGen's own chats, and for a database in use,
    # whose last changes are in other files.
    if context.tokenizer.fingerprint and not path.is_dir() and not is_in_use(path):
        is_plain = rows.format in prompt_formats.PLAIN_FORMATS
        key = arrow_store.cache_key(
            "rows",
            context.tokenizer.fingerprint,
            text_files.file_digest(path, name),
            name,
            repr(replace(rows, too_long="drop")),  # truncation comes after the cache
            rows.too_long == "split",  # but where chats may be divided is found before
            context.settings.preferences.objective,
            (text.add_bos, text.add_eos != "never"),
            {} if is_plain else prompt_formats.load_templates(rows.format, folders),
            load_refusal_phrases(folders),
        )
    if entry := context.store.load(key):
        context.say(f"Using the cached version of {name}", None)
        metadata = entry.metadata
        arrays = dict(entry.arrays)
        rejected = {name: arrays.pop(REJECTED + name) for name in ROW_ARRAYS if REJECTED + name in arrays}
        source = RowSource(**metadata["source"], **arrays, decode=context.tokenizer.decode)
        source = replace(source, contrast=replace(source, **rejected) if rejected else None)
        findings = tuple(Finding(*values) for values in metadata["findings"])
        report = RowReport(**metadata["report"])
        return RowDataset(source, report, metadata["what"], tuple(metadata["notes"]), findings)
    dataset = load_row_dataset(context, path, name)
    # Rows with problems don't train, and their file is about to be changed. Of private chats no copy is kept.
    if not dataset.report.private and not texts(dataset.findings, "problem"):
        source = dataset.source
        metadata = {
            "source": {"name": source.name, "unit": source.unit, "has_conversations": source.has_conversations},
            "report": asdict(dataset.report),
            "what": dataset.what,
            "notes": dataset.notes,
            "findings": list(map(astuple, dataset.findings)),
        }
        arrays = source.arrays()
        if source.contrast is not None:
            arrays |= {REJECTED + name: array for name, array in source.contrast.arrays().items()}
        context.store.save(key, StoreEntry(arrays, metadata))
    return dataset


def load_row_dataset(context: PrepareContext, path: Path, name: str) -> RowDataset:
    """Read and encode the rows of a file; raises DataError where it has none that can be read."""
    settings, objective = context.settings.rows, context.settings.preferences
    requested = naming.parse_columns(settings.columns)
    table, findings = _rename_columns(row_files.read_table(path, name, requested, context.settings), requested)
    rows = _first_rows(table)
    preferences = find_preferences(rows, columns_of_data(requested.names))
    if rows and objective.compares:
        refuse_without_preferences(name, preferences, objective.objective)
    if preferences:
        table = split_preferences(table, preferences)
        rows = _first_rows(table)
    if not rows:
        broken = islice((row for row in table.rows() if row.problem), MAX_LISTED)
        reasons = [f"{name}, {table.unit} {row.number}: {_as_sentence(row.problem)}" for row in broken]
        if not reasons and any(row.without_reply for row in table.rows()):
            lacks = "a reply from the assistant, so there is nothing to train on"
            if objective.compares:
                lacks = "a reply with another version (swiped, or in TextGen regenerated or edited)"
            reasons = [f"{name}: no conversation has {lacks}."]
        raise DataError(
            "\n".join(reasons) or f"{name} has no rows. Add rows to it, or remove it from the dataset."
        )
    decisive = row_schema.decisive_rows(rows, requested.names)
    if settings.format in prompt_formats.PLAIN_FORMATS:
        schema = row_schema.detect_schema(decisive, name, settings.system, settings.format)
    else:
        schema = prompt_formats.load_format_schema(
            settings.format, decisive, context.folders, context.tokenizer, settings.system
        )
    if objective.compares and not schema.has_replies:
        remedy = "Set Data format to auto."
        if settings.format == "auto":
            remedy = f"Its rows need {needed_columns(objective.objective)}."
        raise DataError(f"{name}: the rows are {schema.reason}, so no part of them is a reply. {remedy}")
    used = {column.strip().lower() for column in schema.columns if column}
    conversations = Conversations.find(rows, used)
    inspector = TextInspector(load_refusal_phrases(context.folders))
    encoder = RowEncoder(context, table, schema, inspector, conversations)
    source = encoder.encoded()
    if objective.objective == "kto" and source.contrast is not None:
        source = label_pairs(source)
    notes = [*table.notes, *(preference_notes(preferences, source) if preferences else ())]
    # Chats and templates name theirs themselves: what else a row has is not missed.
    if schema.kind in ("answer", "text", "completion"):
        renamed = [*requested.names.values()]
        ids = [json_rows.PRIVATE_COLUMN, *(conversations.names if conversations else ())]
        used = {column.strip().lower() for column in (*used, *renamed, *requested.names, *ids)}
        existing = dict.fromkeys(str(column) for row in rows for column in row.columns)
        names = [column for column in existing if column.strip().lower() not in used][:MAX_LISTED]
        if names:
            listed = ", ".join(repr(shorten(column, MAX_NAME)) for column in names)
            notes.append(f"{plural(len(names), 'Column')} {listed} {plural(len(names), 'is', 'are')} not used.")
    notes += _notes(encoder)
    notes += [conversations.words()] if conversations else []
    findings = [*_unreadable_rows(encoder), *findings, *inspector.findings(name, "row")]
    what = f"rows ({table.what}): {schema.reason}" if table.what else f"rows: {schema.reason}"
    return RowDataset(source, encoder.report, what, tuple(notes), tuple(findings))


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


def _notes(encoder: RowEncoder) -> Iterator[str]:
    """Yield what was made of the rows, and how many were dropped."""
    schema, report, rows = encoder.schema, encoder.report, encoder.settings.rows
    template = encoder.tokenizer.chat_template
    if schema.kind in ("chat", "answer"):
        yield f"Chats are formatted with {template.origin}."
        if not rows.system and (default := default_system_message(template)):
            yield f"The template adds a system message to chats that have none: {default[:MAX_SYSTEM_CHARS]!r}."
    if count := encoder.renderer.merged_systems:
        yield (
            f"The template does not support system messages, so in {count} {plural(count, 'row')} the system "
            "message is added to the start of the first user message."
        )
    if rows.system and not schema.takes_system:
        yield "The system message is not used because the texts of these rows have no place for it."
    if count := report.without_marker:
        do, were = plural(count, "row does", "rows do"), plural(count, "was", "were")
        yield f"{count} {do} not contain {rows.train_only_after!r} and {were} dropped."
    if count := report.without_reply:
        have, were = plural(count, "row has", "rows have"), plural(count, "was", "were")
        yield f"{count} {have} no reply to train on and {were} dropped."
    if any(encoder.left_out.values()):
        listed = ", ".join(f"{reason} ({count:,})" for reason, count in sorted(encoder.left_out.items()) if count)
        yield f"Dropped from conversations: {listed}."
    if count := encoder.without_parts:
        yield (
            f"{count} {plural(count, 'row does', 'rows do')} not have exactly one reply, so "
            f"{SETTINGS['source_max_len'].label} and {SETTINGS['target_max_len'].label} do not apply to "
            f"{plural(count, 'it', 'them')}."
        )
    if (count := report.unreadable) and rows.bad_rows == "skip":
        yield f"{format_count(count, 'row')} can't be read and {plural(count, 'was', 'were')} skipped."


def _unreadable_rows(encoder: RowEncoder) -> Iterator[Finding]:
    """Yield the first rows that cannot be read, where they are too many to skip."""
    bad, count, table = encoder.bad, encoder.report.rows, encoder.table
    skip = encoder.settings.rows.bad_rows == "skip"
    # More than a tenth: not a few broken rows, but another kind of file than it looks like.
    few = len(bad) <= MAX_SKIPPED_SHARE * count
    if not bad or (skip and few):
        return
    for number, reason in bad[:MAX_LISTED]:
        yield problem("data", f"{table.name}, {table.unit} {number}: {_as_sentence(reason)}")
    if len(bad) > MAX_LISTED:
        yield problem("data", f"{table.name}: {format_count(len(bad) - MAX_LISTED, 'more row')} can't be read.")
    if skip:
        yield problem(
            "data",
            f"{table.name}: {len(bad)} of {count} rows can't be read, which is more than a tenth. Fix these "
            "rows, or choose another Data format.",
        )
    elif few:
        label = SETTINGS["bad_rows"].label
        yield problem(
            "bad_rows", f"{label}: {len(bad)} of {count} rows can't be read. Fix them, or choose to skip them."
        )


def _as_sentence(problem: str) -> str:
    return (
        problem if problem.startswith(("at ", "byte ", "message ", "'", "the content")) else f"the row {problem}"
    )
