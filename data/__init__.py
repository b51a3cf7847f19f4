"""From files to training examples, and the report of Check."""

__all__ = [
    "arrow_store",
    "batch_order",
    "dataset_index",
    "examples",
    "general",
    "large_texts",
    "load",
    "prepare",
    "readers",
    "report",
    "rows",
    "split",
    "text",
    "workshop",
]
