"""The Python environment of the commands: finds, makes or repairs it."""

from __future__ import annotations

from . import interpreter
from .interpreter import ROOT, ready, wait_for

__all__ = ["ROOT", "interpreter", "ready", "wait_for"]
