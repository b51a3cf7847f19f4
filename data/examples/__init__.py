"""Training examples: order, share of a dataset, truncation, and validation split."""

from __future__ import annotations

from . import batch_order
from .batch_order import BatchItem, IndexArray
from .examples import (
    IGNORE_INDEX,
    MIN_PASSAGE_TOKENS,
    Example,
    ExampleDatasets,
    Examples,
    Passage,
    RowSource,
    Source,
    TextSource,
    find_example_datasets,
    group_parts,
    pick_passages,
    reorder_rows,
    truncate_rows,
)
from .split import (
    NGRAM_WORDS,
    choose_parts,
    copied_shares,
    count_runs,
    count_shared_rows,
    find_shared_passages,
    hash_runs,
    pick_examples,
    split_rows,
    split_texts,
)

__all__ = [
    "IGNORE_INDEX",
    "MIN_PASSAGE_TOKENS",
    "NGRAM_WORDS",
    "BatchItem",
    "Example",
    "ExampleDatasets",
    "Examples",
    "IndexArray",
    "Passage",
    "RowSource",
    "Source",
    "TextSource",
    "batch_order",
    "choose_parts",
    "copied_shares",
    "count_runs",
    "count_shared_rows",
    "find_example_datasets",
    "find_shared_passages",
    "group_parts",
    "hash_runs",
    "pick_examples",
    "pick_passages",
    "reorder_rows",
    "split_rows",
    "split_texts",
    "truncate_rows",
]
