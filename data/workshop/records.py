"""A dataset as a stream of records, rows or paragraphs of a text, and its way back into a file.

Nothing but the record at hand is in memory, so a dataset may be read as often as a step needs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import DataError
from ...settings.columns import Columns, parse_columns
from ...settings.definitions import TextSettings, TrainingSettings
from .. import dataset_index
from ..load import read_texts
from ..readers import LoadedText, Row, Table, as_data_error, json_rows, reader_process, row_files
from ..rows import ROLES, RowSchema, columns_of_data, decisive_rows, detect_schema, find_preferences, parse_list

REPORT_EVERY = 1000  # records
FIRST_ROWS = 200  # read to detect what the columns mean
HARD_CUT = "\n\n\n"
LINE_ENDINGS = tuple(".!?…:;\"'”’»)]。！？」』")
PARAGRAPH_GAP, LINE_GAP = re.compile(r"\n(?:[ \t]*\n)+"), re.compile(r"\n(?:[ \t]*\n)*")
TEXT_ENDINGS, ROW_ENDINGS = (".txt", ".md"), (".jsonl",)


class Spot(NamedTuple):
    """A text in a record: whose words it is, and where it stands in the columns."""

    role: str  # system, user, assistant or tool; "text" for what is no chat
    text: str
    where: tuple[str | int, ...]

    @property
    def is_learned(self) -> bool:
        return self.role in ("assistant", "text")


class Record(NamedTuple):
    """A row or a paragraph: its place for users, its columns, and the texts in them."""

    place: str
    columns: Mapping[str, Any]  # of a paragraph: {"text": ...}
    spots: Sequence[Spot] = ()
    gap: str | None = None  # the line breaks before a paragraph; None for a row
    problem: str = ""  # why it can't be read

    @property
    def words(self) -> str:
        """Its texts without system messages, which many rows share."""
        return "\n".join(spot.text for spot in self.spots if spot.role != "system")

    @property
    def rejected(self) -> str:
        """The worse reply of a pair, which may be the end of a chat."""
        named = {str(name).strip().lower(): value for name, value in self.columns.items()}
        reply = named.get(json_rows.REJECTED)
        reply = reply[-1] if reply and isinstance(reply, list) else reply
        return str(reply.get("content", reply.get("value")) if isinstance(reply, Mapping) else reply or "")

    @property
    def privacy(self) -> Mapping[str, bool]:
        """The column that marks a row of private chats, for a row that is made of it."""
        return {json_rows.PRIVATE_COLUMN: True} if self.columns.get(json_rows.PRIVATE_COLUMN) is True else {}

    def said_by(self, role: str) -> str:
        return "\n".join(spot.text.strip() for spot in self.spots if spot.role == role and spot.text.strip())

    def with_text(self, spot: Spot, text: str) -> Record:
        """The record with another text in this place."""

        def put(holder: Any, where: tuple[str | int, ...]) -> Any:
            if not where:
                return text
            # Only what holds the text is copied: the rest of a long chat is shared.
            copied: Any = list(holder) if isinstance(holder, list) else dict(holder)
            copied[where[0]] = put(copied[where[0]], where[1:])
            return copied

        spots = [each._replace(text=text) if each.where == spot.where else each for each in self.spots]
        return self._replace(columns=put(self.columns, spot.where), spots=spots)


@dataclass(frozen=True)
class Dataset:
    """A file or a folder, to be read again and again."""

    path: Path
    settings: TrainingSettings = row_files.DEFAULTS  # those that say how rows are read
    drop_boilerplate: bool = False
    report: Callable[[int], object] = bool  # called now and then with the number of records read so far

    @cached_property
    def _columns(self) -> Columns:
        return parse_columns(self.settings.rows.columns)

    @cached_property
    def _row_files(self) -> list[Path]:
        if dataset_index.is_chats(self.path):  # read as one, with its character
            return [self.path]
        return [file for file in dataset_index.dataset_files(self.path) if row_files.is_row_file(file)]

    @cached_property
    def texts(self) -> list[LoadedText]:
        # A single file is what its reader says; of a folder, only the files of text are.
        files = dataset_index.dataset_files(self.path, dataset_index.TEXT_SUFFIXES)
        if set(files) <= set(self._row_files):
            return []
        settings = replace(TextSettings(), drop_boilerplate=self.drop_boilerplate)
        return read_texts(self.path, HARD_CUT, settings=settings)

    @cached_property
    def _tables(self) -> list[tuple[Table, RowSchema | None]]:
        """Each file of rows with what its columns mean; None where nothing fits them."""
        found = []
        for file in self._row_files:
            name = file.relative_to(self.path).as_posix() if file != self.path else file.name
            with as_data_error(name):
                table = row_files.read_table(file, name, self._columns, self.settings)
                first = self._first_rows(table)
                try:
                    schema = detect_schema(decisive_rows(first, self._columns.names), name, "") if first else None
                except DataError:
                    schema = None
            found.append((table, schema))
        return found

    def _first_rows(self, table: Table) -> list[Row]:
        return [self._rename(row) for row in islice(table.rows(), FIRST_ROWS) if not row.problem]

    def refuse_mixture(self) -> None:
        """A DataError where a run could not read all of it in one file, which has rows of one kind."""
        kinds = {"text"} if self.texts else set()
        for table, schema in self._tables:
            if schema:  # without the columns that a row need not have
                columns = schema.columns[:3:2] if schema.kind == "answer" else schema.columns
                kinds.add(f"{schema.kind} in {' and '.join(columns)}")
            elif self._first_rows(table):
                kinds.add("unknown columns")
        if len(kinds) > 1:
            found = ", ".join(sorted(kinds))
            text = f"{self.path.name} has several kinds of rows ({found}), which a run can't read in one file."
            raise DataError(f"{text} Take its files one by one.")

    @property
    def has_preferences(self) -> bool:
        """Whether rows have chosen and rejected replies, or labels."""
        named = columns_of_data(self._columns.names)
        firsts = (self._first_rows(table) for table, _ in self._tables)
        return any(rows and find_preferences(rows, named) for rows in firsts)

    @property
    def has_replies(self) -> bool:
        return any(schema and schema.kind not in ("text", "format") for _, schema in self._tables)

    @property
    def has_texts(self) -> bool:
        return bool(self.texts) or any(schema and schema.kind in ("text", "format") for _, schema in self._tables)

    @property
    def is_text(self) -> bool:
        return not self._row_files

    @property
    def notes(self) -> Iterator[str]:
        """What the dataset is, file by file, and what its readers say of it."""
        for table, schema in self._tables:
            yield f"{table.name}: {schema.reason if schema else 'rows with unknown columns: all texts are read'}"
            yield from table.notes
        for text in self.texts:
            yield f"{text.name}: text, read by paragraphs"
            yield from text.notes
            if text.boilerplate:
                yield f"{text.name} has {text.boilerplate}"

    def records(self) -> Iterator[Record]:
        """All rows, then all texts by paragraphs."""
        for number, record in enumerate(self._read(), start=1):
            if number % REPORT_EVERY == 0:
                self.report(number)
            yield record

    def _read(self) -> Iterator[Record]:
        with reader_process():
            for table, schema in self._tables:
                prefix = f"{table.name}, " if len(self._tables) > 1 else ""
                with as_data_error(table.name):
                    for row in table.rows():
                        place = f"{prefix}{table.unit} {row.number}"
                        if row.problem or row.without_reply:
                            yield Record(place, {}, problem=row.problem or "has no reply")
                        else:
                            columns = self._rename(row).columns
                            columns = {key: _listed(key, value) for key, value in columns.items()}
                            columns |= {json_rows.PRIVATE_COLUMN: True} if table.private else {}
                            yield Record(place, columns, tuple(find_spots(columns, schema)))
            for text in self.texts:
                prefix = f"{text.name}, " if len(self.texts) > 1 else ""
                content = str(text.text).strip("\n")
                breaks = find_breaks(content)
                gap, start = HARD_CUT, 0  # another text does not go on where the one before ended
                for number, end in enumerate([*breaks.finditer(content), None], start=1):
                    paragraph = content[start : end.start() if end else None]
                    spots = (Spot("text", paragraph, ("text",)),)
                    yield Record(f"{prefix}paragraph {number}", {"text": paragraph}, spots, gap)
                    gap, start = (end[0], end.end()) if end else ("", 0)

    def _rename(self, row: Row) -> Row:
        """The row with the columns that the user named under our names."""
        names = self._columns.names
        named = {ours: row.columns[theirs] for ours, theirs in names.items() if theirs in row.columns}
        rest = {key: value for key, value in row.columns.items() if str(key) not in names.values()}
        return row._replace(columns={**rest, **named})


def find_breaks(text: str) -> re.Pattern[str]:
    """What stands between the paragraphs of a text: blank lines, unless its lines end where sentences do.

    The lines of a text without blank lines, such as a log, stand for themselves.
    """
    followed = [line for line, after in pairwise(text.split("\n")) if line.strip() and after.strip()]
    ended = sum(line.rstrip().endswith(LINE_ENDINGS) for line in followed)
    return LINE_GAP if 2 * ended > len(followed) or not PARAGRAPH_GAP.search(text) else PARAGRAPH_GAP


def find_spots(columns: Mapping[str, Any], schema: RowSchema | None) -> Iterator[Spot]:
    """The texts of a row with their roles; of unknown columns all texts but ids."""
    by_name = {str(key).strip().lower(): key for key in columns}
    if schema is None or schema.kind in ("text", "format"):
        names = [name for name in by_name if name not in json_rows.ID_COLUMNS]
        names = names if schema is None else [name.strip().lower() for name in schema.columns]
        roles = dict.fromkeys(names, "text")
    elif schema.kind == "answer":
        question, more, answer, system = (name.strip().lower() for name in schema.columns)
        roles = {system: "system", question: "user", more: "user", answer: "assistant"}
    else:  # completions, and chats in one column or two
        roles = {"system": "system", **dict(zip(schema.columns, ("user", "assistant"), strict=False))}
    for name, role in roles.items():
        key = by_name.get(name)
        value = columns.get(key) if key is not None else None
        value = json_rows.number_text(value) or value if role in ("user", "assistant") else value
        if isinstance(value, str):
            yield Spot(role, value, (str(key),))
        for number, message in enumerate(value if isinstance(value, list) else ()):
            if not isinstance(message, Mapping):
                continue
            field = "content" if "content" in message else "value"
            said, own = message.get(field), str(message.get("role", message.get("from"))).strip().lower()
            where = (str(key), number, field)
            if isinstance(said, str):
                yield Spot(ROLES.get(own, role), said, where)
            for part, item in enumerate(said if isinstance(said, list) else ()):
                if isinstance(item, Mapping) and isinstance(item.get("text"), str):
                    yield Spot(ROLES.get(own, role), item["text"], (*where, part, "text"))


def _listed(key: str, value: Any) -> Any:
    """A list of messages that a table holds as text, as a list."""
    return parse_list(value) if str(key).strip().lower() in json_rows.CHAT_COLUMNS else value


def write_records(path: Path, name: str, records: Iterable[Record]) -> None:
    """Write records to a file whose final name tells how: rows of JSON, or a text."""
    with path.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
        if Path(name).suffix.lower() in ROW_ENDINGS:
            for columns in as_rows(records):
                file.write(json.dumps(columns, ensure_ascii=False) + "\n")
            return
        for number, record in enumerate(records):
            file.write((record.gap or HARD_CUT if number else "") + str(record.columns["text"]))
        file.write("\n")


def is_hard_cut(gap: str | None) -> bool:
    return gap is not None and gap.count("\n") >= len(HARD_CUT)


def as_rows(records: Iterable[Record]) -> Iterator[Mapping[str, Any]]:
    """The columns of rows, and the sections of texts, whose paragraphs are put together again."""
    section: list[str] = []
    for record in records:
        if record.gap is None:
            yield record.columns
            continue
        if section and is_hard_cut(record.gap):
            yield {"text": "".join(section)}
            section = []
        section += [record.gap if section else "", str(record.columns["text"])]
    if section:
        yield {"text": "".join(section)}


def check_ending(path: Path, *, is_text: bool) -> None:
    """A DataError where the name of the output does not fit what is written."""
    allowed = (*TEXT_ENDINGS, *ROW_ENDINGS) if is_text else ROW_ENDINGS
    if path.suffix.lower() not in allowed:
        what = "a text" if is_text else "rows"
        raise DataError(f"{path.name}: {what} can be written as {' or '.join(allowed)}. Choose such a name.")
