"""Text to blocks: cleaning, sentence and line bounds, slicing, and the figures of the slicing."""

from .cleaning import FRONT_MATTER as FRONT_MATTER
from .cleaning import Boilerplate as Boilerplate
from .cleaning import clean as clean
from .cleaning import describe_boilerplate as describe_boilerplate
from .cleaning import find_boilerplate as find_boilerplate
from .cleaning import join_wrapped_lines as join_wrapped_lines
from .cleaning import load_or_find as load_or_find
from .cleaning import mark as mark
from .cleaning import remove_boilerplate as remove_boilerplate
from .lines import find_wrap_width as find_wrap_width
from .lines import is_tagged as is_tagged
from .sentences import find_stop_ends as find_stop_ends
from .sentences import read_stretches as read_stretches
from .slice_map import SliceMap as SliceMap
from .slice_map import build_slice_map as build_slice_map
from .slicing import find_bounds as find_bounds
from .slicing import slice_parts as slice_parts
from .slicing import slice_text as slice_text
from .slicing import slice_texts as slice_texts
from .slicing import store_text as store_text
