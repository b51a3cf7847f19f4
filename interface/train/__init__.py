"""The Train tab: the form and everything around it."""

from __future__ import annotations

from . import data_menu
from .train_tab import TrainTab

__all__ = ["TrainTab", "data_menu"]
