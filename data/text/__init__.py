"""Text to blocks: sentence and line bounds, slicing, and the figures of the slicing."""

from __future__ import annotations

from .boilerplate import Boilerplate, describe_boilerplate, load_or_find, remove_boilerplate
from .slice_map import (
    LOST_REASON,
    Bar,
    SliceMap,
    build_slice_map,
    combine_coverage,
    describe_ends,
    describe_units,
    unit_name,
)
from .slicing import slice_text, slice_texts
from .text_units import find_bounds, is_tagged

__all__ = [
    "LOST_REASON",
    "Bar",
    "Boilerplate",
    "SliceMap",
    "build_slice_map",
    "combine_coverage",
    "describe_boilerplate",
    "describe_ends",
    "describe_units",
    "find_bounds",
    "is_tagged",
    "load_or_find",
    "remove_boilerplate",
    "slice_text",
    "slice_texts",
    "unit_name",
]
