"""The Python environment that the commands run in: found, made or repaired."""

from __future__ import annotations

from . import interpreter
from .interpreter import ROOT, ready, wait_for

__all__ = ["ROOT", "interpreter", "ready", "wait_for"]
