"""The tabs Try it, Perplexity, and Runs."""

from .perplexity_tab import PerplexityTab
from .runs_tab import RunsTab
from .try_tab import TryTab

__all__ = ["PerplexityTab", "RunsTab", "TryTab"]
