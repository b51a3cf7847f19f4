"""Loss on general prose and chats: its rise with a LoRA is what the LoRA made the model forget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import cast

import numpy as np

from ...chunking import Ids
from ...data.dataset_index import DatasetEntry
from ...data.examples import Example, Passage, Source
from ...data.general import CHATS, PROSE
from ...data.load import PrepareContext, load_dataset
from ..tokenizer import WorkingTokenizer
from .eval_loop import EvalLoop, GroupSums, ProgressFn, evaluation_context
from .perplexity_input import PerplexityInput, window_input
from .row_perplexity import row_input

WINDOW = 1024  # tokens, or the model's context if that is shorter
PASSAGES, PASSAGE_TOKENS = 8, 256
GENERAL_TOKENS = PASSAGES * PASSAGE_TOKENS
"""Short passages would say less about forgetting: a model that was trained on prose expects prose sooner."""


def load_general_texts(context: PrepareContext) -> dict[str, PerplexityInput]:
    """The prose in windows, each token counted once, and the replies of the chats."""
    window = min(context.card.context or WINDOW, WINDOW)
    prose = load_dataset(context, DatasetEntry(PROSE.name, PROSE))
    chats = load_dataset(context, DatasetEntry(CHATS.name, CHATS))
    return {
        "prose": window_input("prose", prose.texts, context.tokenizer, window, window - 1),
        "chats": row_input("chats", chats.rows, context, window),
    }


def pick_general_passages(tokenizer: WorkingTokenizer, context: int | None) -> list[Passage]:
    """Pick passages of the prose, evenly along it; the same ones every time."""
    ids = tokenizer.encode([PROSE.read_text(encoding="utf-8")])[0].ids
    start_ids = np.array([] if tokenizer.bos is None else [tokenizer.bos], ids.dtype)
    length = min(PASSAGE_TOKENS, (context or PASSAGE_TOKENS) - len(start_ids))
    starts = np.linspace(0, max(len(ids) - length, 0), PASSAGES).round().astype(int)
    return [_general_passage(np.concatenate([start_ids, ids[start : start + length]])) for start in starts]


def _general_passage(ids: Ids) -> Passage:
    """A passage of which all tokens but the first count."""
    return Passage(Example(ids, np.arange(len(ids)) > 0, cast("Source", None), 0), 1, PROSE.stem)


def measure_losses(
    eval_loop: EvalLoop, texts: Mapping[str, PerplexityInput], report: ProgressFn
) -> dict[str, GroupSums] | None:
    """The sums of each text; None if the measuring was stopped."""
    measured = dict(_measure(eval_loop, texts, report))
    return measured if len(measured) == len(texts) else None


def _measure(
    eval_loop: EvalLoop, texts: Mapping[str, PerplexityInput], report: ProgressFn
) -> Iterator[tuple[str, GroupSums]]:
    for number, (name, text) in enumerate(texts.items()):
        part = partial(_report_part, report, number, len(texts))
        with evaluation_context(eval_loop.model):
            sums = eval_loop.sums(text.examples, text.groups, text.count, part)
        if sums is None:
            return
        yield name, sums


def _report_part(report: ProgressFn, number: int, count: int, share: float) -> None:
    report((number + share) / count)
