"""The whole tab, and the standalone page around it."""

from __future__ import annotations

from . import tab
from .page import build_page
from .page_guard import guard_middleware

__all__ = ["build_page", "guard_middleware", "tab"]
