"""Processes that slice the parts of large texts."""

from __future__ import annotations

from .pool import SlicingPool, count_cores

__all__ = ["SlicingPool", "count_cores"]
