"""The command that starts script.py on this system, for messages to the user."""

from __future__ import annotations

import os


def python_command() -> str:
    """Name of the Python command; on Windows, python3 often only opens the Microsoft Store."""
    return "py" if os.name == "nt" else "python3"


def launch_command() -> str:
    return python_command() + " script.py"
