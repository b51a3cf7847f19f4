"""The whole tab, and the standalone page around it."""

from .page import build_page as build_page
from .page import draw_tab as draw_tab
from .page_guard import guard_middleware as guard_middleware
