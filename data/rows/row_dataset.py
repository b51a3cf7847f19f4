"""Datasets of rows: read a file, choose its row schema, encode it, and collect notes and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice
from pathlib import Path

from ...core.errors import DataError
from ...core.findings import Finding, advice, problem, texts
from ...core.host import Folders
from ...settings import columns as naming
from ...settings.columns import Columns
from ...settings.definitions import SETTINGS, TrainingSettings
from ...train_utils import format_count, plural
from .. import arrow_store
from ..arrow_store import Store, StoreEntry
from ..examples import RowSource
from ..readers import Row, Table, is_in_use, row_files, shorten, text_files
from . import prompt_formats, row_schema
from .chat_templates import default_system_message
from .conversations import Conversations, find_conversation_columns
from .encoding import LossMaskSpec, RowCounts, RowEncoder, Tokenizer
from .prompt_and_reply import PartLimits
from .row_schema import ChatSchema, CompletionSchema, QuestionAnswerSchema, RowSchema, TextSchema
from .text_quality import TextInspector, load_refusal_phrases

FIRST_ROWS = 200  # read to detect the row schema
MAX_LISTED = 10
MAX_NAME = 60  # characters of a column's name in a note
MAX_SYSTEM_CHARS = 200
MAX_SKIPPED_SHARE = 0.1
ROW_ARRAYS = ("all_ids", "all_trained", "first", "rows", "follows")
Arguments = tuple[Path, str, TrainingSettings, Folders, Tokenizer]
"""What the rows of a file depend on: the file, its name for users, settings, folders and tokenizer."""


@dataclass(frozen=True)
class RowDataset:
    """The encoded rows of a file, before truncation."""

    source: RowSource
    counts: RowCounts
    what: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


def load_or_restore(
    arguments: Arguments, report_progress: Callable[[int], None], store: Store
) -> tuple[RowDataset, bool]:
    """The rows of a file, read now or stored before, and whether they were stored; without problems they are."""
    key = cache_key(*arguments)
    if entry := store.load(key):
        return _restore(entry, arguments[-1]), True
    rows = load_row_dataset(*arguments, report_progress)
    if not texts(rows.findings, "problem"):
        store.save(key, _store_entry(rows))
    return rows, False


def _store_entry(rows: RowDataset) -> StoreEntry:
    source = rows.source
    metadata = {
        "source": {"name": source.name, "unit": source.unit, "has_conversations": source.has_conversations},
        "counts": asdict(rows.counts),
        "what": rows.what,
        "notes": rows.notes,
        "findings": list(map(astuple, rows.findings)),
    }
    return StoreEntry({name: getattr(source, name) for name in ROW_ARRAYS}, metadata)


def _restore(entry: StoreEntry, tokenizer: Tokenizer) -> RowDataset:
    metadata = entry.metadata
    source = RowSource(**metadata["source"], **entry.arrays, decode=tokenizer.decode)
    bad = [(int(number), str(reason)) for number, reason in metadata["counts"]["bad"]]
    counts = RowCounts(**{**metadata["counts"], "bad": bad})
    findings = tuple(Finding(*values) for values in metadata["findings"])
    return RowDataset(source, counts, metadata["what"], tuple(metadata["notes"]), findings)


def load_row_dataset(
    path: Path,
    name: str,
    settings: TrainingSettings,
    folders: Folders,
    tokenizer: Tokenizer,
    report_progress: Callable[[int], None],
) -> RowDataset:
    """Read and encode the rows of a file; raises DataError where it has none that can be read."""
    requested = naming.parse_columns(settings.rows.columns)
    table, column_advice = _rename_columns(row_files.read_table(path, name, requested), requested)
    schema = _choose_schema(table, settings, folders, tokenizer, requested)
    ids = find_conversation_columns(_first_rows(table), _used_columns(schema))
    conversations = Conversations(ids) if ids.names else None
    inspector = TextInspector(load_refusal_phrases(folders))
    limits = PartLimits(settings.rows.source_max_len, settings.rows.target_max_len)
    rules = (_loss_mask_spec(settings), inspector, conversations, settings.rows.split_exchanges, limits)
    encoder = RowEncoder(table.unit, schema, tokenizer, *rules)
    source = encoder.encoded(table, report_progress)
    counts = encoder.counts
    notes = (
        *table.notes,
        *_unused_columns(table, schema, requested, ids.names),
        *_notes(schema, counts, settings, tokenizer),
        *([conversations.words()] if conversations else []),
    )
    findings = (*_unreadable_rows(table, counts, settings), *column_advice, *inspector.findings(name, "row"))
    what = f"rows ({table.what}): {schema.reason}" if table.what else f"rows: {schema.reason}"
    return RowDataset(source, counts, what, notes, findings)


def cache_key(path: Path, name: str, settings: TrainingSettings, folders: Folders, tokenizer: Tokenizer) -> str:
    """Return the cache key of the encoded rows of a file.

    Empty, so that nothing is cached, for a tokenizer without a fingerprint and for a database in use, whose last
    changes are in other files.
    """
    if not tokenizer.fingerprint or is_in_use(path):
        return ""
    rows = repr(replace(settings.rows, too_long="drop"))  # truncation comes after the cache
    format_name = settings.rows.format
    templates = prompt_formats.load_templates(format_name, folders) if _is_prompt_format(format_name) else {}
    spec = _loss_mask_spec(settings)
    content = text_files.file_digest(path, name)
    return arrow_store.cache_key(
        "rows", tokenizer.fingerprint, content, name, rows, spec, templates, load_refusal_phrases(folders)
    )


def _rename_columns(table: Table, requested: Columns) -> tuple[Table, list[Finding]]:
    """Rename columns as the setting Columns says; with advice where the table has none of them."""
    if not requested.names:
        return table, []
    existing = {str(column) for row in _first_rows(table) for column in row.columns}
    missing = [theirs for theirs in requested.names.values() if theirs not in existing]
    if len(missing) == len(requested.names):
        absent = " or ".join(missing)
        unused = f"{table.name} has no column {absent}, so Training PRO ignores 'Column names' for this file."
        return table, [advice("columns", unused)]
    if missing:
        listed = ", ".join(sorted(existing)[:12])
        raise DataError(
            f"{table.name} has no column {' or '.join(missing)}, which you entered under Column names. "
            f"Its columns: {listed}."
        )

    def rows() -> Iterator[Row]:
        for row in table.rows():
            renamed = {
                ours: row.columns[theirs] for ours, theirs in requested.names.items() if theirs in row.columns
            }
            yield row._replace(columns={**row.columns, **renamed})

    return replace(table, rows=rows), []


def _loss_mask_spec(settings: TrainingSettings) -> LossMaskSpec:
    rows, text = settings.rows, settings.text
    return LossMaskSpec(rows.train_on, rows.train_only_after, text.add_bos, text.add_eos != "never")


def _choose_schema(
    table: Table, settings: TrainingSettings, folders: Folders, tokenizer: Tokenizer, columns: Columns
) -> RowSchema:
    """Choose the row schema: by the format setting, otherwise by the columns, those named by the user first."""
    rows, format_name = settings.rows, settings.rows.format
    first_rows = _only_named_columns(_first_rows(table), columns)
    if not first_rows:
        raise DataError("\n".join(_reasons_for_no_rows(table)))
    if _is_prompt_format(format_name):
        return prompt_formats.load_format_schema(
            format_name, first_rows, folders, bos_eos_texts(tokenizer), rows.system
        )
    schema = row_schema.detect_schema(first_rows, table.name, rows.system)
    if format_name == "chat":
        return row_schema.as_chat_schema(schema, first_rows, table.name, rows.system)
    return row_schema.as_text_schema(schema, first_rows, table.name) if format_name == "text" else schema


def _only_named_columns(rows: list[Row], columns: Columns) -> list[Row]:
    """Keep only the columns that the user named, where these have a schema by themselves."""
    reduced = [
        row._replace(columns={k: row.columns[k] for k in columns.names if k in row.columns}) for row in rows
    ]
    return reduced if columns.names and row_schema.has_known_columns(reduced) else rows


def _is_prompt_format(format_name: str) -> bool:
    """Whether a format setting is the name of a prompt format or a template."""
    return format_name not in ("auto", "chat", "text")


def _reasons_for_no_rows(table: Table) -> list[str]:
    """Explain why no row can be read."""
    bad = [
        f"{table.name}, {table.unit} {row.number}: {_as_sentence(row.problem)}"
        for row in islice((row for row in table.rows() if row.problem), MAX_LISTED)
    ]
    if not bad and any(row.without_reply for row in table.rows()):
        return [f"{table.name}: no conversation has a reply from the assistant, so there is nothing to train on."]
    return bad or [f"{table.name} has no rows. Add rows to it, or remove it from the dataset."]


def _first_rows(table: Table) -> list[Row]:
    return list(islice((row for row in table.rows() if not row.problem and not row.without_reply), FIRST_ROWS))


def _used_columns(schema: RowSchema) -> set[str]:
    """The names of the columns that a schema reads, in lower case."""
    values = [getattr(schema, part, "") for part in COLUMN_FIELDS]
    names = (name for value in values for name in ((value,) if isinstance(value, str) else value))
    return {name.strip().lower() for name in names if name}


def _unused_columns(table: Table, schema: RowSchema, requested: Columns, ids: Sequence[str]) -> Iterator[str]:
    """Note the columns that are not used; chats and templates name theirs themselves."""
    if not isinstance(schema, (QuestionAnswerSchema, TextSchema, CompletionSchema)):
        return
    used = {*(getattr(schema, part, "") for part in COLUMN_FIELDS), *ids}
    used = {name.strip().lower() for name in (*used, *map(requested.names.get, used), *requested.names) if name}
    existing = dict.fromkeys(str(column) for row in _first_rows(table) for column in row.columns)
    names = [name for name in existing if name.strip().lower() not in used][:MAX_LISTED]
    unused = [repr(shorten(name, MAX_NAME)) for name in names]
    if unused:
        yield f"{plural(len(unused), 'Column')} {', '.join(unused)} {plural(len(unused), 'is', 'are')} not used."


COLUMN_FIELDS = ("question", "more", "answer", "own_system", "column", "prompt", "completion")
"""Fields of row schemas that hold names of columns."""


def bos_eos_texts(tokenizer: Tokenizer) -> tuple[Sequence[str], Sequence[str]]:
    bos, eos = tokenizer.bos, tokenizer.eos
    opening = [tokenizer.decode([bos])] if bos is not None else []
    return opening, [tokenizer.decode([eos])] if eos is not None else []


def _notes(schema: RowSchema, counts: RowCounts, settings: TrainingSettings, tokenizer: Tokenizer) -> list[str]:
    notes = []
    if isinstance(schema, (ChatSchema, QuestionAnswerSchema)):
        notes.append(f"Chats are formatted with {tokenizer.chat_template.origin}.")
        if not settings.rows.system and (default := default_system_message(tokenizer.chat_template)):
            notes.append(
                f"The template adds a system message to chats that have none: {default[:MAX_SYSTEM_CHARS]!r}."
            )
    if count := counts.merged_systems:
        notes.append(
            f"The template does not support system messages, so in {count} {plural(count, 'row')} the system "
            "message is added to the start of the first user message."
        )
    if isinstance(schema, TextSchema) and settings.rows.system:
        notes.append("The system message is not used because the rows are plain text.")
    if counts.without_marker:
        do, were = plural(counts.without_marker, "row does", "rows do"), _were(counts.without_marker)
        marker = settings.rows.train_only_after
        notes.append(f"{counts.without_marker} {do} not contain {marker!r} and {were} dropped.")
    if counts.no_reply:
        verb = plural(counts.no_reply, "row has", "rows have")
        notes.append(f"{counts.no_reply} {verb} no reply to train on and {_were(counts.no_reply)} dropped.")
    if any(counts.left_out.values()):
        listed = ", ".join(f"{reason} ({count:,})" for reason, count in sorted(counts.left_out.items()) if count)
        notes.append(f"Dropped from conversations: {listed}.")
    if counts.without_parts:
        verb = plural(counts.without_parts, "row does", "rows do")
        notes.append(
            f"{counts.without_parts} {verb} not have exactly one reply, so {SETTINGS['source_max_len'].label} "
            f"and {SETTINGS['target_max_len'].label} do not apply to {plural(counts.without_parts, 'it', 'them')}."
        )
    if counts.bad and settings.rows.bad_rows == "skip":
        count = len(counts.bad)
        notes.append(f"{format_count(count, 'row')} can't be read and {_were(count)} skipped.")
    return notes


def _were(count: int) -> str:
    return plural(count, "was", "were")


def _unreadable_rows(table: Table, counts: RowCounts, settings: TrainingSettings) -> Iterator[Finding]:
    """Yield the first rows that cannot be read, where they are too many to skip."""
    bad, skip = counts.bad, settings.rows.bad_rows == "skip"
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
