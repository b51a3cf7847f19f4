"""In which order examples are learned from: the same for the same seed, and another one each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class Place(NamedTuple):
    """An example by its number; one that `joins` stands in a row with the one before it, and sees it."""

    number: int
    joins: bool = False


def shuffled(numbers: Numbers, seed: int, epoch: int) -> Numbers:
    mixed: Numbers = _chance(seed, epoch).permutation(numbers)
    return mixed


def by_length(numbers: Numbers, lengths: Sequence[int], batch: int, seed: int, epoch: int) -> Numbers:
    """Batches of like length in a shuffled order, the longest first; a batch that is not full comes last."""
    import numpy as np

    chance = _chance(seed, epoch)
    mixed = chance.permutation(numbers)  # those of one length find themselves with others each epoch
    longest_first: Numbers = mixed[np.argsort(-np.asarray(lengths)[mixed], kind="stable")]
    whole, left = divmod(len(numbers), batch)
    if not whole:
        return longest_first
    cut = batch * (int(chance.integers(1, whole + 1)) if left else whole)
    full = np.concatenate([longest_first[:cut], longest_first[cut + left :]]).reshape(whole, batch)
    order = np.concatenate([[0], 1 + chance.permutation(whole - 1)])
    found: Numbers = np.concatenate([full[order].reshape(-1), longest_first[cut : cut + left]])
    return found


def in_pairs(
    numbers: Numbers,
    neighbours: Sequence[int],
    lengths: Sequence[int],
    most: int,
    batch: int,
    seed: int,
    epoch: int,
) -> list[Place]:
    """Neighbours two by two, those of like length together; who has none goes with another such one.

    `neighbours` says of each example which one begins where it ends (-1: none), `most` how many tokens fit
    in a row (0: any number).
    """
    import numpy as np

    paired, alone = pairs(numbers, neighbours, lengths, most)
    couples = [[Place(a), Place(b, joins=True)] for a, b in paired]
    couples += [[Place(a), Place(b)] for a, b in zip(alone[::2], alone[1::2], strict=False)]
    weights = [sum(lengths[place.number] for place in couple) for couple in couples]
    order = by_length(np.arange(len(couples)), weights, batch // 2, seed, epoch)
    rest = [Place(alone[-1])] if len(alone) % 2 else []
    return [place for number in order for place in couples[number]] + rest


def pairs(
    numbers: Numbers, neighbours: Sequence[int], lengths: Sequence[int], most: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Who goes with whom, each one once, from the first on; and who is left."""
    found, alone = [], []
    left = {int(number) for number in numbers}
    for number in sorted(left):
        if number not in left:
            continue
        left.remove(number)
        other = neighbours[number]
        if other in left and (not most or lengths[number] + lengths[other] <= most):
            left.remove(other)
            found.append((number, other))
        else:
            alone.append(number)
    return found, alone


def _chance(seed: int, epoch: int) -> np.random.Generator:
    import numpy as np

    return np.random.Generator(np.random.PCG64([seed, epoch]))
