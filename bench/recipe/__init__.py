"""What the recipes bench runs, how it measures, and its report."""

from __future__ import annotations

from . import arms, comparison, report, results, runs, texts

__all__ = ["arms", "comparison", "report", "results", "runs", "texts"]
