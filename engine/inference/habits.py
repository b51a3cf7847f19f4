"""Habits of a model in chat: whether its replies end, follow short instructions, and say the same name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_REPLY_TOKENS, MAX_EXCERPT_CHARS = 64, 100
NAME_QUESTION = "What is your name?"
Check = Callable[[str], bool]


def _is_one_of(*words: str) -> Check:
    return lambda reply: reply.strip(" .!\n\"'").lower() in words


def _contains(pattern: str) -> Check:
    return lambda reply: re.search(pattern, reply, re.IGNORECASE) is not None


def _has_lines(count: int) -> Check:
    return lambda reply: len([line for line in reply.splitlines() if line.strip()]) == count


def _is_one_sentence(reply: str) -> bool:
    return len(re.findall(r"[.!?](?:\s|$)", reply.strip())) == 1 and "\n" not in reply.strip()


INSTRUCTIONS: Mapping[str, Check] = {
    "Is ice cold? Answer with one word: yes or no.": _is_one_of("yes", "no"),
    "Is fire cold? Answer with one word: yes or no.": _is_one_of("yes", "no"),
    "What is 2 + 2? Answer with a number only.": _is_one_of("4"),
    "Count from 1 to 5. Put commas between the numbers.": _contains(r"\b1, ?2, ?3, ?4,? ?(?:and )?5\b"),
    "Reply with only the word OK.": _is_one_of("ok"),
    "Name three fruits, one per line, and write nothing else.": _has_lines(3),
    "Repeat this sentence: The door is open.": _contains(r"the door is open"),
    "Write one sentence about the sea.": _is_one_sentence,
    "Write the word blue in capital letters.": lambda reply: "BLUE" in reply,
    "What is the capital of France?": _contains(r"\bparis\b"),
}
"""Messages, each with a rule that says whether a reply follows it."""


@dataclass(frozen=True)
class Reply:
    """A reply, and whether it ended by itself."""

    text: str
    ended: bool


@dataclass(frozen=True)
class HabitScores:
    """How many replies end and follow their instruction, and the reply to the question for the name."""

    stops: int
    follows: int
    name: str


MESSAGES = (*INSTRUCTIONS, NAME_QUESTION)


def score_replies(replies: Mapping[str, Reply]) -> HabitScores:
    """Score the replies to `MESSAGES`."""
    return HabitScores(
        stops=sum(reply.ended for reply in replies.values()),
        follows=sum(follows(replies[message].text) for message, follows in INSTRUCTIONS.items()),
        name=_excerpt(replies[NAME_QUESTION].text),
    )


def _excerpt(reply: str) -> str:
    """The beginning of a reply, on one line and printable."""
    line = " ".join("".join(char if char.isprintable() else " " for char in reply).split())
    return line if len(line) <= MAX_EXCERPT_CHARS else f"{line[:MAX_EXCERPT_CHARS]}\u2026"
