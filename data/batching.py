"""In which order examples are learned from: the same for the same seed, and another one each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]


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


def _chance(seed: int, epoch: int) -> np.random.Generator:
    import numpy as np

    return np.random.Generator(np.random.PCG64([seed, epoch]))
