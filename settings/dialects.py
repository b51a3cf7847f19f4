"""Settings files of the original Training PRO and of the webui's own tab, in our keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Converted:
    """A file in our keys, and what is worth saying about the conversion."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def converted(values: Mapping[str, object]) -> Converted:
    """The values in our keys: ours as they are, an older tab's converted."""
    return Converted(dict(values))
