"""The form as a command: the same run without the page."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import SettingsError, TrainingProError
from ..core.host import Host
from ..settings import flags
from ..settings.reading import training_settings
from . import wording

SCRIPT = Path(__file__).resolve().parent.parent / "script.py"
EXPLAINED = (
    "The same run on a command line: what differs from the defaults. Close the page first where the memory has no "
    "room for the model twice."
)


def as_command(values: Mapping[str, Any], host: Host) -> str:
    """In words that can be copied, or what is wrong with the form."""
    try:
        settings = training_settings(values)
    except SettingsError as error:
        return wording.problem(f"The form is not ready for a command yet.\n{error}")
    words = [*_program(host), *flags.as_words(settings.values())]
    return wording.paragraph(EXPLAINED, quiet=True) + wording.code(map(_quoted, words))


def _program(host: Host) -> Sequence[str]:
    python = "py" if os.name == "nt" else "python3"
    return python, str(SCRIPT), "train", "--user-data", str(host.folders.user_data), *_model(host)


def _model(host: Host) -> Sequence[str]:
    try:
        card = host.card()
    except TrainingProError:
        return "--model", "MODEL"
    usual = host.folders.models == host.folders.user_data / "models"
    name = card.name if usual else str(host.folders.models / card.name)
    return "--model", name, *(() if card.loading == "auto" else ("--load", card.loading))


def _quoted(word: str) -> str:
    """As the system's own console takes it."""
    return subprocess.list2cmdline([word]) if os.name == "nt" else shlex.quote(word)
