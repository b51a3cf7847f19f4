"""The Train tab: the form, its menus and panels, and what follows from its values."""

from . import data_menu as data_menu
from .presets_panel import cli_command_html as cli_command_html
from .presets_panel import probe_card as probe_card
from .setup_panel import SetupPanel as SetupPanel
from .train_tab import TrainTab as TrainTab
