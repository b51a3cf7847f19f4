"""Resuming a run with its own settings, from each place on the page that offers it."""

from __future__ import annotations

from functools import partial

from ...records.folder import PARAMETERS, loras
from ...settings import files
from ...settings.live_settings import LIVE_KEYS
from ...settings.parsing import training_settings
from .page_context import PageContext


def can_resume(context: PageContext, name: str) -> bool:
    """Whether the run was stopped, failed or crashed, and left a complete checkpoint and its settings."""
    folder = context.host.folders.loras / name
    unfinished = name and loras.run_status(folder) in ("stopped", "failed", "cut off")
    return bool(unfinished and (folder / PARAMETERS).is_file() and loras.resumable_checkpoints(folder))


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
