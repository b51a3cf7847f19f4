"""The Python environment of Training PRO in the user's folder, for a host whose own can't train."""

from __future__ import annotations

import os
from pathlib import Path

from .host import Folders


def own_python(folders: Folders) -> Path | None:
    """The interpreter of the environment; None if there is none, or it is not complete."""
    python = folders.training / "environment" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return python if python.is_file() else None
