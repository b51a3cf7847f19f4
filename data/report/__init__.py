"""The report of Check: statistics, findings, suggestions, and estimates of memory and disk."""

from __future__ import annotations

from ..rows import RowReport
from .data_checks import check_examples, count_learned_stops
from .estimates import (
    MemoryModel,
    apply_changes,
    estimate_disk,
    find_remedies,
    fit_to_memory,
    has_exact_size,
    largest_batch,
    uses_checkpointing,
)
from .plan_checks import (
    check_plan,
    count_evaluations,
    count_sample_rounds,
    evaluation_interval,
    sample_interval,
    suggest_settings,
)
from .preview import ExamplePreview, PreviewPiece, preview_examples
from .report import (
    DatasetReport,
    LengthHistogram,
    SourceReport,
    StopTokenCount,
    TextReport,
    ValidationSplit,
    padding_shares,
)

__all__ = [
    "DatasetReport",
    "ExamplePreview",
    "LengthHistogram",
    "MemoryModel",
    "PreviewPiece",
    "RowReport",
    "SourceReport",
    "StopTokenCount",
    "TextReport",
    "ValidationSplit",
    "apply_changes",
    "check_examples",
    "check_plan",
    "count_evaluations",
    "count_learned_stops",
    "count_sample_rounds",
    "estimate_disk",
    "evaluation_interval",
    "find_remedies",
    "fit_to_memory",
    "has_exact_size",
    "largest_batch",
    "padding_shares",
    "preview_examples",
    "sample_interval",
    "suggest_settings",
    "uses_checkpointing",
]
