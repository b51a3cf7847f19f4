"""A training run from start to finish."""

from __future__ import annotations

from . import run, step_probe, trainer
from .callback import RunCallback
from .html_report import run_with_report

__all__ = ["RunCallback", "run", "run_with_report", "step_probe", "trainer"]
