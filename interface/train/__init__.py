"""The Train tab: the form, its menus and panels, and what follows from its values."""

from . import data_menu
from .presets_panel import cli_command_html, probe_card
from .setup_panel import SetupPanel
from .train_tab import TrainTab

__all__ = ["SetupPanel", "TrainTab", "cli_command_html", "data_menu", "probe_card"]
