"""Split a dataset into training and validation files without a leak, and convert it to the common forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...core.errors import DataError
from ...core.files import new_files
from ..likeness import SIMILARITY, Likeness, exact_key, join_groups
from ..readers import json_rows
from ..rows import BadRowError, read_messages
from ..split import choose_parts
from .cleaning import Cleaned
from .records import HARD_CUT, Dataset, Record, Spot, as_rows, check_ending, is_hard_cut, write_records

DOCUMENT_COLUMNS = ("document_id", "doc_id", "article_id", "book_id", "page_id", "source_id", "url", "source_url")
CONVERSATION_COLUMNS, _, MESSAGE_COLUMNS, PARENT_COLUMNS = json_rows.CONVERSATION_ID_COLUMNS
MIN_PARTS = 10  # a text with fewer sections is split inside them
Form = Literal["messages", "instruction", "text"]


def split_dataset(dataset: Dataset, share: float, seed: int, folder: Path) -> Cleaned:
    """Write the two files. What is nearly the same, or of one conversation or document, is in one of them."""
    if not 0 < share < 1:
        raise DataError(f"The validation part is {share:g}. It must be above 0 and below 1, such as 0.1.")
    result, ending = Cleaned(), ".txt" if dataset.is_text else ".jsonl"  # a run slices no rows
    names = [f"train{ending}", f"validation{ending}"]
    dataset.refuse_mixture()
    with new_files(*(folder / name for name in names)) as (training, validation):
        groups, sizes = _find_groups(dataset, result)
        if len(set(groups)) < 2:
            raise DataError(
                f"{dataset.path.name} can't be split: it is one row, or all of it is nearly the same, or of one "
                "conversation or document."
            )
        # Each group counts once and is never divided, so the share is met as closely as the groups allow.
        held_out = choose_parts(groups, sizes, share, np.random.default_rng(seed))
        for file, is_wanted in ((training, False), (validation, True)):
            write_records(file, names[0], _side(dataset, held_out, is_wanted))
    result.kept = len(groups)
    result.written = dict(zip(names, (len(groups) - len(held_out), len(held_out)), strict=True))
    return result


def _side(dataset: Dataset, held_out: Collection[int], is_wanted: bool) -> Iterator[Record]:
    """The units of a side. Where the one before is on the other side, a hard cut is written."""
    before = True
    for number, unit in enumerate(_units(dataset)):
        is_here = (number in held_out) == is_wanted
        if is_here:
            yield unit if before else unit._replace(gap=None)
        before = is_here


def _units(dataset: Dataset, dropped: Counter[str] | None = None) -> Iterator[Record]:
    """What is never divided: a row, or a section of a text; with few sections, a tenth of all texts."""
    paragraphs = list[Record]()
    for record in dataset.records():
        if record.gap is not None:
            paragraphs.append(record)
        elif not record.problem:
            yield record
        elif dropped is not None:
            dropped["unreadable"] += 1
    gaps = [record.gap for record in paragraphs]
    if sum(map(is_hard_cut, gaps)) < MIN_PARTS:
        size, length = sum(len(record.words) for record in paragraphs) / MIN_PARTS, 0
        for number, record in enumerate(paragraphs):
            if length >= size:
                paragraphs[number], length = record._replace(gap=HARD_CUT), 0
            length += len(record.words)
    starts = [own for own, record in zip(gaps, paragraphs, strict=True) if is_hard_cut(record.gap)]
    for columns, gap in zip(as_rows(paragraphs), starts, strict=True):
        spots = (Spot("text", str(columns["text"]), ("text",)),)
        yield Record("", columns, spots, gap if dataset.is_text else None)


def _find_groups(dataset: Dataset, result: Cleaned) -> tuple[Sequence[int], list[int]]:
    """The group of each unit, which must not be divided, and the size of each unit."""
    likeness = Likeness(SIMILARITY, (unit.words for unit in _units(dataset)))
    same, sizes = list[tuple[object, int]](), list[int]()  # what a unit has in common with earlier ones
    first: dict[object, int] = {}  # the first unit with each text, and with each id
    links = list[tuple[int, int]]()
    for number, unit in enumerate(_units(dataset, result.dropped)):
        columns = {str(name).strip().lower(): value for name, value in unit.columns.items()}
        ids = {name: str(value) for name, value in columns.items() if isinstance(value, (str, int, float))}
        keys: list[object] = [exact_key([unit.words])]
        keys += [(name, ids[name]) for name in (*CONVERSATION_COLUMNS, *DOCUMENT_COLUMNS) if ids.get(name)]
        # Where messages name the one that they reply to, both are of one conversation.
        if any(name in columns for name in PARENT_COLUMNS):
            keys += [ids[name] for name in (*MESSAGE_COLUMNS, *PARENT_COLUMNS) if ids.get(name)]
        for key in keys:
            first.setdefault(key, number)
        same += [(key, number) for key in keys]
        found = likeness.find(unit.words, str(number), unit.said_by("assistant"), keep=True)
        links += [(int(place), number) for place in found]
        sizes.append(len(unit.words) if dataset.is_text else 1)
    # Where all rows are of one conversation or document, nothing else can be meant than to divide it.
    values = Counter(key[0] for key in first if isinstance(key, tuple))
    links += [(first[key], number) for key, number in same if not isinstance(key, tuple) or values[key[0]] > 1]
    result.rows = len(sizes) + result.dropped["unreadable"]
    return join_groups(len(sizes), links), sizes


def convert_dataset(dataset: Dataset, form: Form | None, out: Path) -> Cleaned:
    """Write a dataset as rows of JSON in a common form; without one, in that which fits the dataset."""
    check_ending(out, is_text=dataset.is_text)
    if form is None and dataset.has_replies and dataset.has_texts:
        raise DataError(f"{dataset.path.name} has chats and texts. Choose a form: messages, instruction or text.")
    if dataset.has_preferences:
        lost = "which of two replies is better, or whether one is good, and these forms have no place for that"
        raise DataError(f"{dataset.path.name} says {lost}. Train on it as it is.")
    form, result = form or ("messages" if dataset.has_replies else "text"), Cleaned()

    def converted() -> Iterator[Record]:
        for record in dataset.records():
            result.rows += 1
            try:
                columns = "unreadable" if record.problem else to_form(record, form)
            except BadRowError:
                columns = "unreadable"
            if isinstance(columns, str):
                result.dropped[columns] += 1
            else:
                result.kept += 1
                yield record._replace(columns={**columns, **record.privacy})

    with new_files(out) as (temporary,):
        write_records(temporary, out.name, converted())
        if not result.kept:
            reasons = "; ".join(f"{count:,} {reason}" for reason, count in result.dropped.items())
            raise DataError(f"{dataset.path.name} has no rows of this form ({reasons}).")
    return result


def to_form(record: Record, form: Form) -> Mapping[str, Any] | str:
    """The columns of a record in a form, or why it has none."""
    spots = [spot for spot in record.spots if spot.text.strip()]
    if [spot.role for spot in spots[:2]] == ["system", "system"] and len(spots[0].where) == 1:
        del spots[0]  # of a column: a run takes that of the chat
    said = [(spot.role, spot.text.strip()) for spot in spots]
    texts = Counter(role for role, _ in said)
    if record.gap is not None:
        return record.columns if form == "text" else "without a reply"
    if form == "text":
        return {"text": "\n\n".join(text for _, text in said)}
    if not texts["assistant"]:
        return "without a reply"
    chat = next((name for name in json_rows.CHAT_COLUMNS if isinstance(record.columns.get(name), list)), None)
    if form == "messages" and chat:  # with all that a message has besides its words, such as the call of a tool
        kept = {key: record.columns[key] for key in ("messages", "tools") if key in record.columns}
        if chat != "messages":
            read = read_messages(record.columns, chat)
            kept["messages"] = [{**m.fields, **({} if m.learned is None else {"train": m.learned})} for m in read]
        if said[0][0] == "system" and len(spots[0].where) == 1:
            kept["messages"] = [{"role": "system", "content": said[0][1]}, *kept["messages"]]
        return kept
    if form == "messages":
        # The parts of a question, such as an instruction and its input, are one message.
        messages: list[dict[str, str]] = []
        for role, text in said:
            if messages and messages[-1]["role"] == role == "user":
                messages[-1]["content"] += f"\n\n{text}"
            else:
                messages.append({"role": role, "content": text})
        return {"messages": messages}
    by_role = {role: "\n\n".join(text for own, text in said if own == role) for role, _ in said}
    if texts["assistant"] > 1 or "user" not in by_role:
        return "with other than one question and one reply"
    system = {"system": by_role["system"]} if "system" in by_role else {}
    return {**system, "instruction": by_role["user"], "output": by_role["assistant"]}
