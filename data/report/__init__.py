"""The report of Check: statistics, findings, suggestions, and estimates of memory and disk."""

from __future__ import annotations

from .data_checks import check_examples, check_model, count_learned_stops, suggest_for_data
from .estimates import (
    DiskEstimate,
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
    RunFacts,
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
    RowReport,
    SourceReport,
    TextReport,
    report_examples,
    report_source,
    report_texts,
)

__all__ = [
    "DatasetReport",
    "DiskEstimate",
    "ExamplePreview",
    "LengthHistogram",
    "MemoryModel",
    "PreviewPiece",
    "RowReport",
    "RunFacts",
    "SourceReport",
    "TextReport",
    "apply_changes",
    "check_examples",
    "check_model",
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
    "preview_examples",
    "report_examples",
    "report_source",
    "report_texts",
    "sample_interval",
    "suggest_for_data",
    "suggest_settings",
    "uses_checkpointing",
]
