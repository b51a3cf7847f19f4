"""Prompt and reply of a row, and their limits in tokens."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

import numpy as np

from ...chunking import Flags
from .chat_templates import RenderedText
from .row_schema import Chat, FixedText


class PartLimits(NamedTuple):
    """The most tokens that the prompt and the reply of a row may have; 0 for no limit."""

    prompt: int = 0
    reply: int = 0


class RowParts(NamedTuple):
    """Where the prompt's own words end, and where the reply begins and ends.

    What is between the two is of the format, and stays.
    """

    prompt_end: int
    reply: int
    reply_end: int

    def kept(self, count: int, limits: PartLimits, first: int) -> Flags:
        """Mark the tokens of `count` that are kept, of parts in tokens; those before `first` always stay."""
        keep: Flags = np.ones(count, bool)
        if self.is_long_prompt(limits):
            keep[max(first, limits.prompt - (self.reply - self.prompt_end)) : self.prompt_end] = False
        if self.is_long_reply(limits):
            keep[self.reply + limits.reply :] = False
        return keep

    def is_long_prompt(self, limits: PartLimits) -> bool:
        return 0 < limits.prompt < self.reply

    def is_long_reply(self, limits: PartLimits) -> bool:
        return 0 < limits.reply < self.reply_end - self.reply


def find_parts(content: Chat | FixedText, rendered: RenderedText) -> RowParts | None:
    """Find the parts of a row in its text; None where it has no reply, or several."""
    replies = [turn for turn in rendered.turns if turn.reply]
    if len(replies) != 1:
        return None
    reply, reply_end = replies[0].start, replies[0].end
    if isinstance(content, FixedText):
        return RowParts(reply if content.prompt_end is None else content.prompt_end, reply, reply_end)
    before = list(takewhile(lambda message: message.role != "assistant", content.messages))
    words = before[-1].content.strip() if before else ""
    start = rendered.text.rfind(words, 0, reply) if words else -1
    return RowParts(reply if start < 0 else start + len(words), reply, reply_end)
