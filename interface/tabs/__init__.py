"""The tabs Try it, Perplexity, and Runs."""

from .perplexity_tab import PerplexityTab as PerplexityTab
from .runs_tab import RunsTab as RunsTab
from .try_tab import TryTab as TryTab
