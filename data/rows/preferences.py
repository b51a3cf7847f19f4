"""Preferences in tables: two replies to one prompt of which one is better, or replies that are good or bad.

Such a row is read as an ordinary row with one reply, once for each of its replies. So all that is known of
columns, chat templates and prompt formats holds for preferences, too:

    prompt, chosen, rejected                    -> prompt, chosen; and the same with the rejected reply as `chosen`
    prompt, completion, label (true or false)   -> prompt, completion; and whether the reply is desirable

Only the replies are learned: what both rows begin with is their prompt, and so is all before a labeled reply.

The user may switch the two replies of a preference, or drop it. A decision is kept by a hash of the content, so it
holds for the same pair after new chats, too, and quotes none of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ...core.errors import DataError
from ...core.files import read_record, write_json
from ...settings.definitions import SETTINGS
from ...train_utils import format_count
from ..examples import RowSource, select_rows, switch_replies
from ..readers import Row, Table, describe_value, json_rows
from .row_schema import Chat, FixedText, Message

# LLaMA-Factory's name, and TRL's. Without one of these columns of replies, a `label` belongs to some other task.
LABEL_COLUMNS, LABELED = ("kto_tag", "label"), {"completion", *json_rows.CHAT_COLUMNS}
TRUTHS = {"true": True, "false": False}
PAIR_COLUMNS = "'chosen' and 'rejected', with the prompt in 'prompt', 'instruction', 'question' or 'conversations'"

Decision: TypeAlias = Literal["switch", "drop"]


class PreferenceColumns(NamedTuple):
    """Which preferences a table has, and the names of the columns, as the file spells them."""

    kind: Literal["pairs", "labels"]
    names: tuple[str, ...]


def columns_of_data(names: Mapping[str, str]) -> list[str]:
    """Columns that the user has named as something else than a label."""
    return [theirs for ours, theirs in names.items() if ours not in LABEL_COLUMNS]


def find_preferences(rows: Sequence[Row], named: Collection[str] = ()) -> PreferenceColumns | None:
    """Find the preferences of a table by its first rows; columns that the user has `named` are no labels."""
    names = {str(name).strip().lower(): str(name) for row in rows for name in row.columns}
    if json_rows.CHOSEN in names and json_rows.REJECTED in names:
        return PreferenceColumns("pairs", (names[json_rows.CHOSEN], names[json_rows.REJECTED]))
    for column in LABEL_COLUMNS[: 1 if LABELED.isdisjoint(names) else 2]:
        own = names.get(column, "")
        if own and own not in named and all(_truth(row.columns.get(own)) is not None for row in rows):
            return PreferenceColumns("labels", (own,))
    return None


def split_preferences(table: Table, columns: PreferenceColumns) -> Table:
    """The same rows with one reply each: beside them the row with the rejected reply, or what their label says."""

    def rows() -> Iterator[Row]:
        for row in table.rows():
            values = dict(row.columns)
            if row.problem or not values:
                yield row
            elif columns.kind == "pairs":
                chosen, rejected = columns.names
                worse = values.pop(rejected, None)
                yield row._replace(columns=values, rejected={**values, chosen: worse})
            else:
                value = values.pop(columns.names[0], None)
                desirable, problem = _truth(value), ""
                if desirable is None:
                    problem = f"has {describe_value(value)} under '{columns.names[0]}'. It must be true or false."
                yield row._replace(columns=values, desirable=desirable, problem=problem)

    return replace(table, rows=rows)


def needed_columns(objective: str) -> str:
    labels = "'prompt', 'completion' and 'label' (true or false), or "
    return labels * (objective == "kto") + PAIR_COLUMNS


def refuse_without_preferences(name: str, columns: PreferenceColumns | None, objective: str) -> None:
    """Raise a DataError where an objective can't learn from a table with these preferences."""
    if columns and (columns.kind == "pairs" or objective == "kto"):
        return
    label, needed = SETTINGS["objective"].choices[objective], needed_columns(objective)
    labels = " It labels single replies, from which only KTO learns." if columns else ""
    raise DataError(
        f"{name} has no preferences that {label} can learn from.{labels} Its rows need the columns "
        f"{needed}. Choose another dataset, or set Objective to {'KTO' if columns else 'Next token'}."
    )


def preference_notes(columns: PreferenceColumns, source: RowSource) -> Iterator[str]:
    """Yield what is learned from the preferences of a table, of which these are the rows."""
    listed = " and ".join(map(repr, columns.names))
    if source.desirable is not None:
        good = int(source.desirable.sum())
        yield (
            f"{format_count(good, 'reply is', 'replies are')} desirable and {len(source) - good:,} undesirable, "
            f"by {listed}. An example has the tokens of its reply, and of another row's reply to the same prompt, "
            "by which KTO measures how far the model has moved."
        )
    elif source.contrast is not None:
        yield f"Pairs, found by {listed}. The tokens of an example are those of both replies, with their prompt."
    elif columns.kind == "pairs":
        yield "The run trains only on 'chosen'. To learn from both replies, set Objective to DPO."
    else:
        yield f"The run trains only on rows with true in {listed}. To learn from all rows, set Objective to KTO."


def hash_preference(row: Row) -> int:
    """A hash of prompt and replies, whatever the file, the tokenizer and the chat template."""
    content = json.dumps([row.columns, row.rejected], default=str)
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], signed=True)


def read_decisions(file: Path) -> dict[str, Decision]:
    return read_record(file, dict[str, Decision], {})


def decide(file: Path, pair: str, decision: Decision) -> None:
    """Switch or drop a preference from now on, or take this decision back."""
    if not str(pair).removeprefix("-").isdecimal():
        raise DataError("Show a pair first.")
    decisions = read_decisions(file)
    if decisions.pop(pair, None) != decision:
        decisions[pair] = decision
    write_json(file, decisions)


def apply_decisions(
    source: RowSource, decisions: Mapping[str, Decision], *, with_dropped: bool
) -> tuple[RowSource, dict[str, Decision]]:
    """The preferences as the user decided, and the decisions that are about them."""
    names = [] if source.pair_ids is None else list(map(str, source.pair_ids.tolist()))
    made = {name: decisions[name] for name in names if name in decisions}
    if not made:
        return source, made
    switched, dropped = (np.array([made.get(name) == what for name in names]) for what in ("switch", "drop"))
    if source.desirable is None:
        source = switch_replies(source, switched)
    else:
        source = replace(source, desirable=source.desirable ^ switched)
    return source if with_dropped else select_rows(source, np.flatnonzero(~dropped)), made


def describe_pairs(source: RowSource, decided: Mapping[str, Decision]) -> Iterator[str]:
    """Yield how many pairs there are, how long and how far apart their replies are, and what the user decided."""
    if source.contrast is not None and source.desirable is None and len(source):
        chosen, rejected = (np.median(side.own_learned) for side in source.sides)
        pairs = ([set(side.labels.tolist()) for side in source.example(n).sides] for n in range(len(source)))
        # Both have the label of what is not learned.
        common = [(len(one & two) - 1) / max(len(one | two) - 1, 1) for one, two in pairs]
        yield (
            f"{format_count(len(source), 'pair')}. Median tokens of a reply: {chosen:.0f} chosen, {rejected:.0f} "
            f"rejected. Of the different tokens of a pair, {np.median(common):.0%} are in both replies."
        )
    if decided:
        dropped = sum(decision == "drop" for decision in decided.values())
        yield f"You switched {len(decided) - dropped:,} and dropped {dropped:,} of the preferences."


def only_last_reply(content: Chat | FixedText) -> Chat | FixedText:
    """A row with a label, of which only the last reply is learned."""
    if isinstance(content, FixedText):
        return content
    replies = [number for number, message in enumerate(content.messages) if message.role == "assistant"]
    return _learn_from(content, replies[-1] if replies else 0)


def compare(
    chosen: Chat | FixedText, rejected: Chat | FixedText
) -> tuple[Chat | FixedText, Chat | FixedText] | Literal["different_prompts", "equal_replies"]:
    """Both rows of a pair, of which only what differs is learned; or why they are no pair."""
    if chosen == rejected:
        return "equal_replies"
    if isinstance(chosen, FixedText) or isinstance(rejected, FixedText):
        texts = [side for side in (chosen, rejected) if isinstance(side, FixedText) and side.reply is not None]
        prompts = {side.text[: side.reply] for side in texts}
        return (chosen, rejected) if len(texts) == 2 and len(prompts) == 1 else "different_prompts"
    both = zip(chosen.messages, rejected.messages, strict=False)
    shared = sum(1 for _ in takewhile(lambda messages: messages[0] == messages[1], both))
    rest = (*chosen.messages[shared:][:1], *rejected.messages[shared:][:1])
    if [message.role for message in rest] != ["assistant", "assistant"]:
        return "different_prompts"
    return _learn_from(chosen, shared), _learn_from(rejected, shared)


def _learn_from(chat: Chat, start: int) -> Chat:
    """The chat, of which no message before this one is learned."""
    before = (Message(message.fields, learned=False) for message in chat.messages[:start])
    return replace(chat, messages=(*before, *chat.messages[start:]))


def _truth(value: object) -> bool | None:
    return TRUTHS.get(str(value).strip().lower())
