"""The data workshop: look at a dataset, clean it, split it and convert it; what is there is never changed."""

from __future__ import annotations

from .cleaning import DEFAULT, EVERYTHING, Recipe, check_recipe, clean_dataset, look_at, read_recipe
from .records import Dataset
from .splitting import convert_dataset, split_dataset

__all__ = [
    "DEFAULT",
    "EVERYTHING",
    "Dataset",
    "Recipe",
    "check_recipe",
    "clean_dataset",
    "convert_dataset",
    "look_at",
    "read_recipe",
    "split_dataset",
]
