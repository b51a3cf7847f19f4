"""Which data set an example is of, for losses apart: a folder is one, however many files it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...settings.definitions import TrainingSettings
from . import dataset_share
from .examples import Example, Examples


@dataclass(frozen=True)
class Origins:
    """The data sets of some examples, and which of them each source belongs to."""

    names: tuple[str, ...]
    of_source: dict[int, int]

    def of(self, examples: Sequence[Example]) -> list[int]:
        """The number of each example's data set."""
        return [self.of_source[id(example.source)] for example in examples]

    @property
    def several(self) -> bool:
        return len(self.names) > 1


def origins(examples: Examples, settings: TrainingSettings) -> Origins:
    """The data sets by the names that the user gave them."""
    asked = [
        dataset_share.asked(name).name.rstrip("/\\") for name in (*settings.what.data, *settings.aside.eval_data)
    ]
    names = [_data_set(source.name, asked) for source in examples.sources]
    known = tuple(dict.fromkeys(names))
    numbers = {id(source): known.index(name) for source, name in zip(examples.sources, names, strict=True)}
    return Origins(known, numbers)


def _data_set(name: str, asked: Sequence[str]) -> str:
    """The folder that a file was found in, if a folder was asked for; otherwise the file."""
    folders = [folder for folder in asked if name.startswith(folder + "/")]
    return max(folders, key=len) + "/" if folders else name
