"""The report of Check: statistics, suggestions, and estimates of memory, disk and steps."""

from __future__ import annotations

from . import plan_checks, report_stats
from .disk_estimate import DiskEstimate, estimate_disk
from .known_architectures import is_known_architecture
from .memory_estimate import (
    TARGET_CHOICES,
    MemoryModel,
    apply_changes,
    find_remedies,
    fit_to_memory,
    largest_batch,
    target_layers,
    weight_precision,
)
from .plan_checks import count_evaluations, count_sample_rounds
from .preview import ExamplePreview, PreviewPiece, preview_examples
from .report import (
    DatasetReport,
    LengthHistogram,
    RowReport,
    SourceReport,
    TextReport,
    describe_mixture,
    exclusion_counts,
)
from .stop_tokens import count_learned_stops, stop_token_advice
from .suggestions import padding_shares, suggest_hard_cuts, suggest_settings

__all__ = [
    "TARGET_CHOICES",
    "DatasetReport",
    "DiskEstimate",
    "ExamplePreview",
    "LengthHistogram",
    "MemoryModel",
    "PreviewPiece",
    "RowReport",
    "SourceReport",
    "TextReport",
    "apply_changes",
    "count_evaluations",
    "count_learned_stops",
    "count_sample_rounds",
    "describe_mixture",
    "estimate_disk",
    "exclusion_counts",
    "find_remedies",
    "fit_to_memory",
    "is_known_architecture",
    "largest_batch",
    "padding_shares",
    "plan_checks",
    "preview_examples",
    "report_stats",
    "stop_token_advice",
    "suggest_hard_cuts",
    "suggest_settings",
    "target_layers",
    "weight_precision",
]
