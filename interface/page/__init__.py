"""The whole tab, and the standalone page around it."""

from .page import build_page, draw_tab
from .page_guard import guard_middleware

__all__ = ["build_page", "draw_tab", "guard_middleware"]
