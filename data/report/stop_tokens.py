"""Whether the model will learn to stop: which examples end in a stop token that is learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from ..examples import RowSource, Source, TextSource
from .report import Stops

LONG_TEXT = 20  # blocks


def stops(sources: Sequence[Source], ids: Collection[int]) -> Stops:
    """Rows by the last id that is learned, texts by the ends of their parts."""
    found = [_of_rows(s, ids) if isinstance(s, RowSource) else _of_text(s) for s in sources if len(s)]
    return Stops(sum(s.stopping for s in found), sum(s.of for s in found))


def _of_rows(source: RowSource, ids: Collection[int]) -> Stops:
    import numpy as np

    ending = np.isin(source.last_learned, np.array(sorted(ids), np.int64))
    return Stops(int(ending.sum()), len(source))


def _of_text(source: Source) -> Stops:
    assert isinstance(source, TextSource)
    parts = len(source.sliced.sections) - source.open_end
    rules = source.sliced.rules
    ended = parts if rules.eos is not None and rules.add_eos != "never" else 0
    return Stops(ended, parts)


def said(sources: Sequence[Source], ids: Collection[int]) -> Iterator[str]:
    """What is worth saying of it."""
    for source in sources:
        if isinstance(source, RowSource) and len(source):
            found = _of_rows(source, ids)
            if found.stopping < found.of:
                yield (
                    f"{source.name}: only {found.stopping} of {found.of} examples end in a stop token that is "
                    "learned: the model may not learn to stop."
                )
    texts = [source for source in sources if isinstance(source, TextSource) and source.sliced.rules.closing]
    blocks, parts = Counter[str](), Counter[str]()
    for text in texts:  # what is kept aside may divide one text into several
        blocks[text.name] += len(text)
        parts[text.name] += len(text.sliced.sections) - text.open_end
    yield from (f"{name}: {_ENDS[parts[name]]}" for name in blocks if _few_ends(blocks[name], parts[name]))


def _few_ends(blocks: int, parts: int) -> bool:
    return blocks >= LONG_TEXT and parts in _ENDS


_ON_AND_ON = "the model learns to go on and on. Put hard cuts where a chapter or scene ends, or choose another."
_ENDS = {
    0: f"no hard cut was found, and its end is kept aside, so no end token is learned: {_ON_AND_ON}",
    1: f"no hard cut was found, so an end token stands only at the end of the whole text: {_ON_AND_ON}",
}
