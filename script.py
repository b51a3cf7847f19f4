"""Training PRO: the hooks for TextGen, and the entry point of the command line."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

if not __package__:
    # Loaded by path (user_data/extensions of the webui, or `python3 script.py`): become a package, so that `data`
    # and `settings` do not clash with modules of other extensions.
    __package__ = __name__
    __path__ = [str(Path(__file__).resolve().parent)]
    if __spec__ is not None:
        __spec__.submodule_search_locations = __path__

params = {"display_name": "Training PRO", "is_tab": True}


def ui() -> None:
    """Draw the tab; an error is shown as a message in it and never raised into the webui."""
    try:
        from .core.jobs import SESSION, console
        from .engine.process_engine import ENGINE
        from .hosts.webui import WebuiHost
        from .interface.base import PageContext
        from .interface.page import draw_tab

        SESSION.set_observer(console.console_observer(_say))
        host = WebuiHost()
        ENGINE.find_runs(SESSION, host)
        draw_tab(PageContext(host, ENGINE, SESSION))
    except Exception as error:  # noqa: BLE001 - the tab shows it
        from .interface import fallback

        traceback.print_exception(error)
        fallback.show_draw_error(error)


def custom_css() -> str:
    """CSS of the tab; empty after an error, which `ui` reports."""
    try:
        from .interface.base import CSS
    except Exception:  # noqa: BLE001 - the webui would not catch it and would not start
        return ""
    return CSS


def chat_input_modifier(text: str, visible_text: str, state: object) -> tuple[str, str]:
    """Refuse a chat message while a job uses the model; otherwise it would wait for hours without a notice."""
    from .core.jobs import SESSION

    if (job := SESSION.uses_host_model) is not None:
        from .interface import fallback

        raise fallback.busy_error(job.title, text)
    return text, visible_text


def _say(line: str) -> None:
    sys.stderr.write(f"Training PRO  {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # before what an older one can't import
        named = f"This is Python {sys.version.split()[0]} ({sys.executable})."
        sys.exit("Standalone Training PRO needs Python 3.11 or newer. " + named)
    from .commands.main import main

    # Before torch is imported: waiting threads of OpenMP sleep, unless the user chose otherwise. On a machine with
    # other busy programs, a spinning thread keeps a core from the thread that it waits for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main(sys.argv[1:]))
