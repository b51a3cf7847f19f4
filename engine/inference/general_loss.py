"""Loss on general prose and chats: its rise with a LoRA is what the LoRA made the model forget."""

from __future__ import annotations

from collections.abc import Iterator

from ...data.dataset_index import DatasetEntry
from ...data.general import CHATS, PROSE
from ...data.load import PrepareContext, load_dataset
from .eval_loop import EvalLoop, GroupSums, evaluation_context
from .perplexity_input import PerplexityInput, window_input
from .row_perplexity import row_input

WINDOW = 1024  # tokens, or the model's context if that is shorter


def load_general_texts(context: PrepareContext) -> dict[str, PerplexityInput]:
    """The prose in windows, each token counted once, and the replies of the chats."""
    window = min(context.card.context or WINDOW, WINDOW)
    prose = load_dataset(context, DatasetEntry(PROSE.name, PROSE))
    chats = load_dataset(context, DatasetEntry(CHATS.name, CHATS))
    return {
        "prose": window_input("prose", prose.texts, context.tokenizer, window, 0),
        "chats": row_input("chats", chats.rows, context, window),
    }


def measure_losses(eval_loop: EvalLoop, texts: dict[str, PerplexityInput]) -> dict[str, GroupSums] | None:
    """The sums of each text; None if the measuring was stopped."""
    measured = dict(_measure(eval_loop, texts))
    return measured if len(measured) == len(texts) else None


def _measure(eval_loop: EvalLoop, texts: dict[str, PerplexityInput]) -> Iterator[tuple[str, GroupSums]]:
    for name, text in texts.items():
        with evaluation_context(eval_loop.model):
            sums = eval_loop.sums(text.examples, text.groups, text.count)
        if sums is None:
            return
        yield name, sums
