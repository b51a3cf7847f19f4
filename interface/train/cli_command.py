"""The form as a command: the same run without the page."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import SettingsError, TrainingProError
from ...core.host import Host
from ...core.launcher import python
from ...settings import flags
from ...settings.parsing import training_settings
from ..base import markup

SCRIPT = Path(__file__).resolve().parent.parent.parent / "script.py"
EXPLAINED = (
    "The same run on a command line: what differs from the defaults. Close the page first where the memory has no "
    "room for the model twice."
)
FOR_CMD = 'It is written for the Command Prompt (cmd): PowerShell takes ", $ and ` in a text for signs of its own.'
PLAIN = re.compile(r"[\w.:/\\=+-]+")
"""What neither of the consoles of Windows takes apart: & is the end of a command to one, a comma of a word to the
other."""


def as_command(values: Mapping[str, Any], host: Host) -> str:
    """In words that can be copied, or what is wrong with the form."""
    try:
        settings = training_settings(values)
    except SettingsError as error:
        return markup.problem(f"The form is not ready for a command yet.\n{error}")
    words = [*_program(host), *flags.as_words(settings.values())]
    only_for_cmd = _is_windows() and re.search('["$`]', "".join(words))
    explained = f"{EXPLAINED} {FOR_CMD}" if only_for_cmd else EXPLAINED
    return markup.paragraph(explained, quiet=True) + markup.code(map(_quoted, words))


def _program(host: Host) -> Sequence[str]:
    return python(), str(SCRIPT), "train", "--user-data", str(host.folders.user_data), *_model(host)


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
    if not _is_windows():
        return shlex.quote(word)
    if PLAIN.fullmatch(word):
        return word
    inside = re.sub(r'(\\*)"', r'\1\1\\"', word)  # a backslash counts only before a quote
    return '"' + re.sub(r"(\\+)\Z", r"\1\1", inside) + '"'


def _is_windows() -> bool:
    return os.name == "nt"
