"""From files to training examples, and the report of Check."""

__all__ = [
    "arrow_store",
    "cleaning",
    "dataset_index",
    "examples",
    "large_texts",
    "load",
    "prepare",
    "readers",
    "report",
    "rows",
    "text",
]
