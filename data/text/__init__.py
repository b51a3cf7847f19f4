"""Text to blocks: cleaning, sentence and line bounds, slicing, and the figures of the slicing."""

from __future__ import annotations

from .cleaning import (
    Boilerplate,
    clean,
    describe_boilerplate,
    find_boilerplate,
    join_wrapped_lines,
    load_or_find,
    mark,
    remove_boilerplate,
)
from .lines import find_wrap_width, is_tagged
from .sentences import find_stop_ends, read_stretches
from .slice_map import LOST_REASON, SliceMap, build_slice_map
from .slicing import slice_parts, slice_text, slice_texts, store_text
from .text_units import find_bounds

__all__ = [
    "LOST_REASON",
    "Boilerplate",
    "SliceMap",
    "build_slice_map",
    "clean",
    "describe_boilerplate",
    "find_boilerplate",
    "find_bounds",
    "find_stop_ends",
    "find_wrap_width",
    "is_tagged",
    "join_wrapped_lines",
    "load_or_find",
    "mark",
    "read_stretches",
    "remove_boilerplate",
    "slice_parts",
    "slice_text",
    "slice_texts",
    "store_text",
]
