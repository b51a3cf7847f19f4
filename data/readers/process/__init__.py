"""Reading within limits: in a process of its own what a library parses, and the limits of every reader."""

from .budget import MAX_DEPTH, Budget, as_data_error, exceeds_depth, shorten
from .launch import start_python
from .reader_process import read_item, read_items, reader_process

__all__ = [
    "MAX_DEPTH",
    "Budget",
    "as_data_error",
    "exceeds_depth",
    "read_item",
    "read_items",
    "reader_process",
    "shorten",
    "start_python",
]
