"""From files to training examples, and the report of Check."""

__all__ = [
    "arrow_store",
    "dataset_index",
    "examples",
    "load",
    "prepare",
    "readers",
    "report",
    "resolve",
    "rows",
    "text",
]
