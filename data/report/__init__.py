"""The report of Check: statistics, suggestions, and estimates of memory, disk and steps."""

from __future__ import annotations

from . import plan_checks, report_stats
from .disk_estimate import disk_plan
from .hard_cut_hints import cuts
from .known_architectures import is_known
from .memory_estimate import (
    PARTS,
    Expecting,
    changed,
    fitted_to_card,
    largest_batch,
    parts_of,
    remedies,
    weights_as,
)
from .plan_checks import evaluations, sample_rounds
from .preview import Piece, Shown, shown
from .report import DatasetReport, Lengths, RowReport, SourceReport, TextReport, left_out, mixture
from .stop_tokens import said, stops
from .suggestions import padding, suggest_settings

__all__ = [
    "PARTS",
    "DatasetReport",
    "Expecting",
    "Lengths",
    "Piece",
    "RowReport",
    "Shown",
    "SourceReport",
    "TextReport",
    "changed",
    "cuts",
    "disk_plan",
    "evaluations",
    "fitted_to_card",
    "is_known",
    "largest_batch",
    "left_out",
    "mixture",
    "padding",
    "parts_of",
    "plan_checks",
    "remedies",
    "report_stats",
    "said",
    "sample_rounds",
    "shown",
    "stops",
    "suggest_settings",
    "weights_as",
]
