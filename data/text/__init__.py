"""Text to blocks: sentence and line boundaries, slicing, and the figures of how a text was sliced."""

from __future__ import annotations

from .block_bounds import bounds
from .slice_map import Bar, SliceMap, build_slice_map, ends_said, together, unit_said, units_said
from .slicing import slices

__all__ = [
    "Bar",
    "SliceMap",
    "bounds",
    "build_slice_map",
    "ends_said",
    "slices",
    "together",
    "unit_said",
    "units_said",
]
