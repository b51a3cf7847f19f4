"""The tabs Data, Try it, Perplexity, and Runs."""

from .data_tab import DataTab as DataTab
from .perplexity_tab import PerplexityTab as PerplexityTab
from .runs_tab import RunsTab as RunsTab
from .try_tab import TryTab as TryTab
