"""Training PRO: what text-generation-webui looks for, and the command line's front door."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Loaded by path (the webui's user_data/extensions, `python3 script.py`): be a package of our
    # own, so that `data` and `settings` never meet another extension's.
    __package__ = __name__
    __path__ = [str(Path(__file__).resolve().parent)]
    if __spec__ is not None:
        __spec__.submodule_search_locations = __path__

params = {"display_name": "Training PRO", "is_tab": True}


def ui() -> None:
    """Draw the tab; whatever goes wrong becomes a sentence in it, never an error of the host's."""
    from .interface import webui_tab

    webui_tab.draw()


if __name__ == "__main__":
    from .commands.main import main

    sys.exit(main(sys.argv[1:]))
