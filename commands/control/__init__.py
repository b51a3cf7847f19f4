"""Commands for runs in other processes and on other machines."""

from __future__ import annotations

from . import export, status, tell

__all__ = ["export", "status", "tell"]
