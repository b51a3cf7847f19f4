"""Text to blocks: sentence and line bounds, slicing, and the figures of the slicing."""

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
