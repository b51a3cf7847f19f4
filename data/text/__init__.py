"""Text to blocks: sentence and line bounds, slicing, and the figures of the slicing."""

from __future__ import annotations

from .boilerplate import Boilerplate, describe_boilerplate, find_boilerplate, load_or_find, remove_boilerplate
from .line_joining import join_wrapped_lines
from .lines import find_wrap_width, is_tagged
from .part_slicing import PartJob, slice_part, slice_parts, store_text
from .sentences import read_stretches
from .slice_map import (
    LOST_REASON,
    Bar,
    SliceMap,
    build_slice_map,
    combine_coverage,
    describe_contents,
    describe_units,
    join_maps,
    unit_name,
)
from .slicing import slice_text, slice_texts
from .text_units import find_bounds

__all__ = [
    "LOST_REASON",
    "Bar",
    "Boilerplate",
    "PartJob",
    "SliceMap",
    "build_slice_map",
    "combine_coverage",
    "describe_boilerplate",
    "describe_contents",
    "describe_units",
    "find_boilerplate",
    "find_bounds",
    "find_wrap_width",
    "is_tagged",
    "join_maps",
    "join_wrapped_lines",
    "load_or_find",
    "read_stretches",
    "remove_boilerplate",
    "slice_part",
    "slice_parts",
    "slice_text",
    "slice_texts",
    "store_text",
    "unit_name",
]
