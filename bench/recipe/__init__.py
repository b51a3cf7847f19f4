"""What is compared, how it is measured, and what the page says of it. `bench/recipes.py` is its command."""

from __future__ import annotations

from . import differences, page, questions, results, runs, texts

__all__ = ["differences", "page", "questions", "results", "runs", "texts"]
