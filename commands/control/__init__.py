"""Commands for runs that are in progress in another process."""

from __future__ import annotations

from . import status, tell

__all__ = ["status", "tell"]
