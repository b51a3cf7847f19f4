"""The Python environment of the commands: finds, makes or repairs it."""

from . import interpreter
from .interpreter import ROOT, ensure_environment, run_program, say

__all__ = ["ROOT", "ensure_environment", "interpreter", "run_program", "say"]
