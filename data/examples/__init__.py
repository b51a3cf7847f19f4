"""Training examples: order, share of a dataset, truncation, and validation split."""

from __future__ import annotations

from . import batch_order, dataset_share, truncation
from .batch_order import Numbers, Place
from .dataset_share import EVERYTHING, Share
from .example_source import Origins, origins
from .examples import IGNORED, Example, Examples, RowSource, Source, TextSource
from .split import RUN_WORDS, Stretch, divided, divided_rows, shared_rows, shared_runs, whole
from .truncation import Fitted

__all__ = [
    "EVERYTHING",
    "IGNORED",
    "RUN_WORDS",
    "Example",
    "Examples",
    "Fitted",
    "Numbers",
    "Origins",
    "Place",
    "RowSource",
    "Share",
    "Source",
    "Stretch",
    "TextSource",
    "batch_order",
    "dataset_share",
    "divided",
    "divided_rows",
    "origins",
    "shared_rows",
    "shared_runs",
    "truncation",
    "whole",
]
