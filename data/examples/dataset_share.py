"""So much of a data set: the examples to take, spread evenly over it, and chosen by the seed."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ...settings.setting import comma_said

if TYPE_CHECKING:
    import numpy as np

    from ...chunking import Ints
    from .examples import Source

ASKED = re.compile(r"(?P<name>.*[^\s:])\s*:\s*(?P<per_cent>[\d.,]+)\s*%?")
MOST = 10_000


class Share(NamedTuple):
    """A data set's name, and how many per cent of it are asked for."""

    name: str
    per_cent: float = 100.0


EVERYTHING = Share("")


def asked(name: str) -> Share:
    """'notes.md:50' as name and per cent; a ValueError says what is wrong with the number."""
    found = ASKED.fullmatch(name.strip())
    if not found:
        return Share(name)
    try:
        per_cent = float(found["per_cent"])
    except ValueError:
        per_cent = 0.0
    if not 0 < per_cent <= MOST:
        what_to_do = comma_said(found["per_cent"]) or f" Give a number above 0, up to {MOST}."
        raise ValueError(f"{name!r} asks for {found['per_cent']} per cent.{what_to_do}")
    return Share(found["name"], per_cent)


def chance(seed: int, name: str) -> np.random.Generator:
    """The same random numbers for the same seed and data set, whatever else is mixed in."""
    import numpy as np

    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def picks(sources: Sequence[Source], share: Share, seed: int) -> list[Ints | None]:
    """The examples to take of each source of a data set; above 100 per cent they are repeated."""
    if share.per_cent == 100:
        return [None] * len(sources)
    import numpy as np

    sizes = [len(source) for source in sources]
    ends = np.cumsum([0, *sizes])
    chosen = _chosen(int(ends[-1]), share.per_cent / 100, chance(seed, share.name))
    return [chosen[(chosen >= a) & (chosen < b)] - a for a, b in pairwise(ends.tolist())]


def _chosen(count: int, share: float, random: np.random.Generator) -> Ints:
    """All of them as often as they fit whole, and of the rest one at random out of each equal stretch."""
    import numpy as np

    whole, rest = divmod(round(share * count), count) if count else (0, 0)
    if count and not whole:
        rest = max(rest, 1)
    edges = np.linspace(0, count, rest + 1)
    some = (edges[:-1] + random.random(rest) * np.diff(edges)).astype(np.int64)
    return np.concatenate([np.tile(np.arange(count), whole), np.minimum(some, max(count - 1, 0))])
