"""Conversations of rows, by columns such as conversation_id and turn, or message_id and parent_id.

The rows of a conversation are put together in the order of their turns, so that the pair phase of hybrid batching
pairs a row with the next one of the same conversation. Rows without these columns stay as they are in the file.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...chunking import Flags, Ints
from ...train_utils import format_count, natural_key, plural
from ..readers import Row, json_rows

MAX_ID_CHARS = 200  # a longer value is a text
# Sorts numbers before names, and rows without a turn last.
Turn = tuple[int, float, list[tuple[int, int, str]]]
NO_TURN: Turn = (2, 0.0, [])


class RowPlace(NamedTuple):
    """A row in its conversation, and the examples made of it."""

    conversation: str
    turn: Turn
    message: str
    parent: str
    examples: range
    is_whole: bool  # whether its first and its last example were kept
    unreadable: int  # rows before it whose conversation is not known


@dataclass
class Conversations:
    """The rows of a file in the order of conversations and turns.

    The columns are those that place a row in a conversation, as the file spells them; empty where it has none.
    """

    conversation: str
    turn: str
    message: str
    parent: str
    _places: list[RowPlace] = field(default_factory=list)
    _unreadable: int = 0

    @staticmethod
    def find(rows: Sequence[Row], used: Collection[str]) -> Conversations | None:
        """Find the columns in the first rows of a file; those in `used` hold its texts."""
        names = {str(name).strip().lower(): str(name) for row in rows for name in row.columns}
        found = []
        for known in json_rows.CONVERSATION_ID_COLUMNS:
            found.append("")
            for column in (names[name] for name in known if name in names and name not in used):
                values = [row.columns[column] for row in rows if row.columns.get(column) is not None]
                # Numbers or short names, not texts or lists of messages.
                texts = [value for value in values if isinstance(value, str)]
                are_short = all(len(text) <= MAX_ID_CHARS and "\n" not in text for text in texts)
                if values and are_short and all(isinstance(value, (str, int, float)) for value in values):
                    found[-1] = column
                    break
        conversation, turn, message, parent = found
        if message and parent:
            return Conversations(conversation, turn, message, parent)
        return Conversations(conversation, turn, "", "") if conversation else None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.conversation, self.turn, self.message, self.parent) if name]

    def add(self, row: Row, examples: Sequence[object]) -> None:
        """Add a row with its examples, None for each that was dropped."""
        columns, first = row.columns, self._places[-1].examples.stop if self._places else 0
        if not columns:
            self._unreadable += 1
            return
        turn, key = _to_id(columns.get(self.turn)), NO_TURN
        if turn:
            try:
                key = 0, float(turn), []
            except ValueError:
                key = 1, 0.0, natural_key(turn)
        place = RowPlace(
            _to_id(columns.get(self.conversation)) or f"\n{row.number}",  # a conversation of its own
            key,
            _to_id(columns.get(self.message)),
            _to_id(columns.get(self.parent)),
            range(first, first + sum(example is not None for example in examples)),
            bool(examples) and examples[0] is not None and examples[-1] is not None,
            self._unreadable,
        )
        self._places.append(place)

    def arrange(self, follows: Flags) -> tuple[Ints, Flags]:
        """Return the order of the examples, and for each whether it continues the one before it.

        `follows` says so for the order of the file; between the examples of one row it stays.
        """
        conversations = defaultdict[str, list[RowPlace]](list)
        for place in self._places:
            # By parents, rows without a column of conversations are one forest: each tree is a conversation.
            conversations[place.conversation if self.conversation else ""].append(place)
        in_order = _by_parents if self.parent else _by_turns
        order, continues = list[int](), follows.copy()
        for places in conversations.values():
            for before, place in in_order(places):
                order += place.examples
                # A row that can't be read may be one between the two.
                is_next = before is not None and before.is_whole and before.unreadable == place.unreadable
                continues[place.examples[:1]] = is_next and place.is_whole
        return np.array(order, np.int64), continues[order]

    def words(self) -> str:
        """Describe the conversations for users."""
        if self.conversation:
            count = len({place.conversation for place in self._places})
        else:
            messages = {place.message for place in self._places}
            count = sum(not place.parent or place.parent not in messages for place in self._places)
        columns, names = plural(len(self.names), "column"), ", ".join(map(repr, self.names))
        return (
            f"{format_count(count, 'conversation')}, found by the {columns} {names}. The "
            "pair phase and the measurement of the context gain never combine rows from different conversations."
        )


def _by_turns(places: Sequence[RowPlace]) -> Iterator[tuple[RowPlace | None, RowPlace]]:
    """Yield the rows by their turns; of several with the same turn, none continues another."""
    ordered = sorted(places, key=lambda place: place.turn)
    yield None, ordered[0]
    for before, place in pairwise(ordered):
        continues = before.turn < place.turn or before.turn == place.turn == NO_TURN
        yield before if continues else None, place


def _by_parents(places: Sequence[RowPlace]) -> Iterator[tuple[RowPlace | None, RowPlace]]:
    """Yield each row before those that reply to it, each branch to its end before the next one begins."""
    replies, messages = defaultdict[str, list[RowPlace]](list), {place.message for place in places} - {""}
    for place in sorted(places, key=lambda place: place.turn):
        replies[place.parent if place.parent in messages else ""].append(place)
    before, done = RowPlace("", NO_TURN, "", "", range(0), False, 0), set[int]()
    for root in (*replies[""], *places):  # only parents in a circle are still left of `places`
        pending = [root]
        while pending:
            place = pending.pop()
            if id(place) in done:
                continue
            done.add(id(place))
            yield before if before.message and before.message == place.parent else None, place
            before = place
            pending += reversed(replies[place.message] if place.message else [])


def _to_id(value: Any) -> str:
    """A value as an id: 7, 7.0 and "7 " are the same; empty for none, which is NaN in some tables."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
