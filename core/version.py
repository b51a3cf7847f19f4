"""The program itself: its version, whether its sources are newer than the loaded ones, and how it is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VERSION = "1.0.0"
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "settings", "data", "records", "hosts", "downloads", "engine", "interface", "commands")


def sources() -> list[Path]:
    """Every source file of Training PRO."""
    return [*ROOT.glob("*.py"), *(file for part in PACKAGES for file in (ROOT / part).rglob("*.py"))]


def newest_mtime() -> float:
    """Modification time of the newest source file."""
    return max((source.stat().st_mtime for source in sources()), default=0.0)


LOADED_MTIME = newest_mtime()


def install_command(package: str) -> str:
    """The command that installs a package for this very Python."""
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    return f"{python} -m pip install {package}"


def launch_command() -> str:
    """The command that starts script.py on this system, for messages to the user."""
    # On Windows, python3 often only opens the Microsoft Store.
    return "py script.py" if os.name == "nt" else "python3 script.py"
