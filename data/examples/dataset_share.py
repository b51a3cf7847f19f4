"""The share of a dataset that is used: examples spread evenly over it, chosen by the seed."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ...settings.setting import comma_hint

if TYPE_CHECKING:
    import numpy as np

    from ...chunking import Ints
    from .examples import Source

NAME_AND_PERCENT = re.compile(r"(?P<name>.*[^\s:])\s*:\s*(?P<per_cent>[\d.,]+)\s*%?")
MAX_PERCENT = 10_000


class DatasetShare(NamedTuple):
    """A dataset's name, and the percentage of it to use."""

    name: str
    percent: float = 100.0


WHOLE_DATASET = DatasetShare("")


def parse_share(name: str) -> DatasetShare:
    """Parse an entry such as 'notes.md:50' into name and percentage.

    Raises ValueError with the reason where the number is invalid.
    """
    match = NAME_AND_PERCENT.fullmatch(name.strip())
    if not match:
        return DatasetShare(name)
    try:
        per_cent = float(match["per_cent"])
    except ValueError:
        per_cent = 0.0
    if not 0 < per_cent <= MAX_PERCENT:
        hint = comma_hint(match["per_cent"]) or f" Give a number above 0, up to {MAX_PERCENT}."
        raise ValueError(f"{name!r} asks for {match['per_cent']} per cent.{hint}")
    return DatasetShare(match["name"], per_cent)


def dataset_rng(seed: int, name: str) -> np.random.Generator:
    """Random generator for one dataset: independent of the other datasets of the run."""
    import numpy as np

    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def pick_examples(sources: Sequence[Source], share: DatasetShare, seed: int) -> list[Ints | None]:
    """Choose the examples of each source of a dataset; above 100 percent they repeat.

    None stands for all examples of a source, each once.
    """
    if share.percent == 100:
        return [None] * len(sources)
    import numpy as np

    sizes = [len(source) for source in sources]
    ends = np.cumsum([0, *sizes])
    chosen = _choose(int(ends[-1]), share.percent / 100, dataset_rng(seed, share.name))
    return [chosen[(chosen >= a) & (chosen < b)] - a for a, b in pairwise(ends.tolist())]


def _choose(count: int, share: float, rng: np.random.Generator) -> Ints:
    """Repeat all numbers as often as they fit; draw the rest at random, one from each of equal intervals."""
    import numpy as np

    repeats, remainder = divmod(round(share * count), count) if count else (0, 0)
    if count and not repeats:
        remainder = max(remainder, 1)
    edges = np.linspace(0, count, remainder + 1)
    drawn = (edges[:-1] + rng.random(remainder) * np.diff(edges)).astype(np.int64)
    return np.concatenate([np.tile(np.arange(count), repeats), np.minimum(drawn, max(count - 1, 0))])
