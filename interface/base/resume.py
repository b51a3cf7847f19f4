"""Resuming a run with its own settings, from each place on the page that offers it."""

from __future__ import annotations

from functools import partial

from ...records.folder import PARAMETERS, loras, read_journal
from ...settings import files
from ...settings.live_settings import LIVE_KEYS
from ...settings.parsing import training_settings
from .page_context import PageContext


def can_resume(context: PageContext, name: str) -> bool:
    """Whether the run was stopped, failed or crashed, and left its settings and where to go on from."""
    folder = context.host.folders.loras / name
    if not name or loras.run_status(folder) not in ("stopped", "failed", "cut off"):
        return False
    journal = read_journal(folder)
    goes_on = loras.resumable_checkpoints(folder) or (journal and journal.initial_lora)
    return bool(goes_on and (folder / PARAMETERS).is_file())


def resume_run(context: PageContext, name: str, checkpoint: str = "newest") -> str:
    """Start the run again where it ended; returns a message."""
    context.check_writable()
    folders = context.host.folders
    loaded = files.load_settings(folders.loras / name / PARAMETERS, folders.datasets)
    # The name comes from the folder, because the user may have renamed it.
    settings = training_settings({**loaded.values, "name": name, "if_exists": "continue"})
    context.session.train(
        name, context.host, partial(context.engine.train, settings, context.host, resume=checkpoint)
    )
    context.live_values.update({key: settings.values()[key] for key in LIVE_KEYS})
    return f"Resuming {name}."
