"""Loads the project as a package for the benchmarks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def load() -> None:
    """Load script.py the way the webui does, under the name `training_pro`."""
    spec = importlib.util.spec_from_file_location("training_pro", ROOT / "script.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
