"""Passages of the data for a test of recall: a prompt, and the tokens that follow it in the data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...chunking import Flags, Ids
from .examples import Example, Examples, TextSource

PROMPT_TOKENS, TARGET_TOKENS = 32, 32
MIN_TOKENS = 8  # of a prompt and of what follows it
MIN_PASSAGE_TOKENS = 2 * MIN_TOKENS
GOLDEN_RATIO = 0.618034  # multiples of it, without their whole part, are spread evenly
HEADING_CHARS = 60


class Passage(NamedTuple):
    """A prompt and what follows it; only what follows is labelled."""

    example: Example
    prompt_tokens: int
    part: str  # where it comes from: the first words of its section, or the name of its file

    @property
    def target_tokens(self) -> int:
        return len(self.example.ids) - self.prompt_tokens


def pick_passages(examples: Examples, count: int, bos: int | None) -> list[Passage]:
    """Pick up to `count` passages, one from each of as many examples, evenly spaced; the same ones every time.

    `bos` is the start token that the tokenizer adds, if any: a prompt from within a text begins with it, too.
    """
    numbers = np.flatnonzero(np.asarray(examples.learned()) >= MIN_PASSAGE_TOKENS)
    places = np.linspace(0, max(len(numbers) - 1, 0), min(count, len(numbers))).round().astype(int)
    passages = []
    for position, number in enumerate(numbers[places].tolist()):
        example = examples[number]
        span = _find_span(example, position)
        if span is None:
            continue
        start, middle, end = span
        start_token = example.ids[:1][[bos is not None and start > 0 and example.ids[0] == bos]]
        ids: Ids = np.concatenate([start_token, example.ids[start:end]])
        prompt_tokens = len(start_token) + middle - start
        labelled: Flags = np.arange(len(ids)) >= prompt_tokens
        passage = Example(ids, labelled, example.source, example.number)
        passages.append(Passage(passage, prompt_tokens, _heading(example)))
    return passages


def _find_span(example: Example, position: int) -> tuple[int, int, int] | None:
    """Find where a prompt begins, where it ends and the tokens to continue with begin, and where these end.

    In a text it is a place inside it, in a row the beginning of one of its replies.
    """
    mask = np.ones(len(example.ids), bool) if example.loss_mask is None else example.loss_mask
    # Where the mask changes: the start and the end of each run of learned tokens.
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]]).astype(np.int8))).reshape(-1, 2)
    replies = [(start, end) for start, end in edges.tolist() if start >= MIN_TOKENS and end - start >= MIN_TOKENS]
    if replies:
        start, end = replies[position % len(replies)]
        return 0, start, min(end, start + TARGET_TOKENS)
    start, end = max(edges.tolist(), key=lambda run: run[1] - run[0])
    if end - start < MIN_PASSAGE_TOKENS:
        return None
    target = min(TARGET_TOKENS, (end - start) // 2)
    prompt = min(PROMPT_TOKENS, end - start - target)
    # Each time somewhere else, or all passages would come from the beginnings of their examples.
    start += int((end - start - prompt - target) * (position * GOLDEN_RATIO % 1))
    return start, start + prompt, start + prompt + target


def _heading(example: Example) -> str:
    """The first words of the section that an example is from; for a row, the name of its file."""
    source = example.source
    if not isinstance(source, TextSource):
        return source.name
    start = int(source.sliced.sections.start[source.sliced[example.number].section])
    words = " ".join(source.sliced.text[start : start + 3 * HEADING_CHARS].split())
    return words if len(words) <= HEADING_CHARS else f"{words[:HEADING_CHARS].rsplit(' ', 1)[0]} ..."
