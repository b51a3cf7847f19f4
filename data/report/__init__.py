"""The report of Check: statistics, findings, suggestions, and estimates of memory and disk."""

from __future__ import annotations

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
from .plan_checks import check_plan, evaluation_interval, sample_interval, suggest_settings
from .preview import ExamplePreview, preview_examples
from .report import DatasetReport, LengthHistogram, SourceReport, map_texts, report_run

__all__ = [
    "DatasetReport",
    "ExamplePreview",
    "LengthHistogram",
    "MemoryModel",
    "SourceReport",
    "apply_changes",
    "check_plan",
    "estimate_disk",
    "evaluation_interval",
    "find_remedies",
    "fit_to_memory",
    "has_exact_size",
    "largest_batch",
    "map_texts",
    "preview_examples",
    "report_run",
    "sample_interval",
    "suggest_settings",
    "uses_checkpointing",
]
