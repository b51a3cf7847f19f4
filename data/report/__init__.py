"""The report of Check: statistics, findings, suggestions, and estimates of memory and disk."""

from __future__ import annotations

from .data_checks import (
    check_leaks,
    check_model,
    check_stops,
    check_windows,
    count_learned_stops,
    suggest_cleaning,
    suggest_windows,
)
from .estimates import (
    DiskEstimate,
    MemoryEstimate,
    MemoryModel,
    apply_changes,
    estimate_disk,
    find_remedies,
    fit_to_memory,
    has_exact_size,
    largest_batch,
    uses_checkpointing,
)
from .hard_cuts import check_page_breaks, suggest_hard_cuts
from .plan_checks import check_plan, count_evaluations, count_sample_rounds, evaluation_interval, sample_interval
from .preview import ExamplePreview, PreviewPiece, preview_examples
from .report import (
    DatasetReport,
    LengthHistogram,
    RowReport,
    SourceReport,
    TextReport,
)
from .report_stats import report_examples, report_source, report_texts
from .suggestions import RunFacts, suggest_settings

__all__ = [
    "DatasetReport",
    "DiskEstimate",
    "ExamplePreview",
    "LengthHistogram",
    "MemoryEstimate",
    "MemoryModel",
    "PreviewPiece",
    "RowReport",
    "RunFacts",
    "SourceReport",
    "TextReport",
    "apply_changes",
    "check_leaks",
    "check_model",
    "check_page_breaks",
    "check_plan",
    "check_stops",
    "check_windows",
    "count_evaluations",
    "count_learned_stops",
    "count_sample_rounds",
    "estimate_disk",
    "evaluation_interval",
    "find_remedies",
    "fit_to_memory",
    "has_exact_size",
    "largest_batch",
    "preview_examples",
    "report_examples",
    "report_source",
    "report_texts",
    "sample_interval",
    "suggest_cleaning",
    "suggest_hard_cuts",
    "suggest_settings",
    "suggest_windows",
    "uses_checkpointing",
]
