"""Learned stop tokens: a model without them may not learn to stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from ..examples import RowSource, Source, TextSource
from .report import StopTokenCount

LONG_TEXT_BLOCKS = 20  # blocks


def count_learned_stops(sources: Sequence[Source], ids: Collection[int]) -> StopTokenCount:
    """Count the ends of rows and sections that are learned with a stop token."""
    counts = [_count_rows(s, ids) if isinstance(s, RowSource) else _count_text(s) for s in sources if len(s)]
    return StopTokenCount(sum(s.stopping for s in counts), sum(s.of for s in counts))


def _count_rows(source: RowSource, ids: Collection[int]) -> StopTokenCount:
    import numpy as np

    is_stop = np.isin(source.last_learned_ids, np.array(sorted(ids), np.int64))
    return StopTokenCount(int(is_stop.sum()), len(source))


def _count_text(source: Source) -> StopTokenCount:
    assert isinstance(source, TextSource)
    parts = len(source.sliced.sections) - source.open_end
    rules = source.sliced.rules
    stopping = parts if rules.eos is not None and rules.add_eos != "never" else 0
    return StopTokenCount(stopping, parts)


def stop_token_advice(sources: Sequence[Source], ids: Collection[int]) -> Iterator[str]:
    """Yield advice for sources with few learned stop tokens."""
    for source in sources:
        if isinstance(source, RowSource) and len(source):
            count = _count_rows(source, ids)
            if count.stopping < count.of:
                yield (
                    f"{source.name}: only {count.stopping} of {count.of} examples end in a stop token that is "
                    "learned: the model may not learn to stop."
                )
    texts = [source for source in sources if isinstance(source, TextSource) and source.sliced.rules.closing]
    blocks, parts = Counter[str](), Counter[str]()
    for text in texts:  # the validation split may divide one text into several
        blocks[text.name] += len(text)
        parts[text.name] += len(text.sliced.sections) - text.open_end
    yield from (
        f"{name}: {_FEW_ENDS_ADVICE[parts[name]]}" for name in blocks if _has_few_ends(blocks[name], parts[name])
    )


def _has_few_ends(blocks: int, parts: int) -> bool:
    return blocks >= LONG_TEXT_BLOCKS and parts in _FEW_ENDS_ADVICE


_GOES_ON = "the model learns to go on and on. Put hard cuts where a chapter or scene ends, or choose another."
_FEW_ENDS_ADVICE = {
    0: f"no hard cut was found, and its end is kept aside, so no end token is learned: {_GOES_ON}",
    1: f"no hard cut was found, so an end token stands only at the end of the whole text: {_GOES_ON}",
}
