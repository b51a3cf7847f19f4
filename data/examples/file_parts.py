"""The parts of large texts, grouped by their file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class FilePart(Protocol):
    """A text or its blocks; of a large file only a part."""

    @property
    def name(self) -> str: ...
    @property
    def part(self) -> int: ...


Item = TypeVar("Item", bound=FilePart)


def group_parts(items: Iterable[Item]) -> list[list[Item]]:
    """The parts of each large file together, and everything else by itself."""
    groups: list[list[Item]] = []
    for item in items:
        if item.part and groups and groups[-1][-1].part and groups[-1][-1].name == item.name:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups
