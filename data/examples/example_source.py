"""The dataset of each example, for losses by dataset: a folder is one dataset, however many files it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...settings.definitions import TrainingSettings
from ..dataset_index import parse_share
from .examples import Example, Examples


@dataclass(frozen=True)
class ExampleDatasets:
    """The names of the datasets, and the dataset of each source by the source's id()."""

    names: tuple[str, ...]
    of_source: dict[int, int]

    def of(self, examples: Sequence[Example]) -> list[int]:
        """Return the number of each example's dataset."""
        return [self.of_source[id(example.source)] for example in examples]

    @property
    def has_several(self) -> bool:
        return len(self.names) > 1


def find_example_datasets(examples: Examples, settings: TrainingSettings) -> ExampleDatasets:
    """Group the sources by the datasets that the user named."""
    requested = [parse_share(name).name.rstrip("/\\") for name in (*settings.what.data, *settings.aside.eval_data)]
    names = [_dataset_of(source.name, requested) for source in examples.sources]
    datasets = tuple(dict.fromkeys(names))
    numbers = {id(source): datasets.index(name) for source, name in zip(examples.sources, names, strict=True)}
    return ExampleDatasets(datasets, numbers)


def _dataset_of(name: str, requested: Sequence[str]) -> str:
    """Return the folder of a file where the user named that folder, otherwise the file."""
    folders = [folder for folder in requested if name.startswith(folder + "/")]
    return max(folders, key=len) + "/" if folders else name
