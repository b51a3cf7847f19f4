"""A training run from start to finish."""

from __future__ import annotations

from . import run, step_probe, trainer
from .callback import RunCallback
from .finalize import run_with_report
from .outside import prevent_sleep

__all__ = ["RunCallback", "prevent_sleep", "run", "run_with_report", "step_probe", "trainer"]
