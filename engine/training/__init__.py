"""A training run from start to finish."""

from __future__ import annotations

from . import run, step_probe, trainer
from .callback import BetweenSteps
from .html_report import reported

__all__ = ["BetweenSteps", "reported", "run", "step_probe", "trainer"]
