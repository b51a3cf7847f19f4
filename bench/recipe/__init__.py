"""What is compared, how it is measured, and what the page says of it. `bench/recipes.py` is its command.

`runs` is imported where a run is made: it needs torch, which the report does without.
"""

from __future__ import annotations

from . import differences, page, questions, results, texts

__all__ = ["differences", "page", "questions", "results", "texts"]
