"""The tabs Data, Try it, Perplexity, and Runs."""

from __future__ import annotations

from .data_tab import DataTab
from .perplexity_tab import PerplexityTab
from .runs_tab import RunsTab
from .try_tab import TryTab

__all__ = ["DataTab", "PerplexityTab", "RunsTab", "TryTab"]
