"""Column names by which rows are recognized: chats, texts, and pairs of question and answer."""

from __future__ import annotations

from collections.abc import Mapping

CHAT_COLUMNS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns")
TEXT_COLUMNS = ("text", "content", "document", "story", "body")
PAIR_COLUMNS: tuple[tuple[str, str], ...] = (
    ("instruction", "output"),
    ("instruction", "response"),
    ("instruction", "answer"),
    ("instruction", "completion"),
    ("input", "output"),
    ("question", "answer"),
    ("question", "response"),
    ("question", "output"),
    ("query", "answer"),
    ("query", "response"),
    ("prompt", "response"),
    ("prompt", "output"),
    ("prompt", "answer"),
    ("user", "assistant"),
    ("human", "assistant"),
    ("q", "a"),
)
COMPLETION_PAIR = ("prompt", "completion")
CONTEXT_COLUMNS = ("input", "context")


def find_pair(columns: Mapping[str, str]) -> tuple[str, str] | None:
    """The first known pair of question and answer among the columns."""
    return next((pair for pair in (*PAIR_COLUMNS, COMPLETION_PAIR) if set(pair) <= columns.keys()), None)
