"""How script.py is started on this system, for all that tells the user to."""

from __future__ import annotations

import os


def python() -> str:
    """On Windows python3 is, for most, a sign of the Store's that starts nothing."""
    return "py" if os.name == "nt" else "python3"


def launcher() -> str:
    return python() + " script.py"
