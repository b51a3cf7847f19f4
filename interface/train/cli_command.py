"""The form as a command line for the same run without the page."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import SettingsError, TrainingProError
from ...core.host import Host
from ...core.version import ROOT, python_command
from ...settings import flags
from ...settings.parsing import training_settings
from ..base import markup

EXPLANATION = (
    "This command starts the same run. It includes only the settings that differ from their defaults. It also "
    "loads the model again. If there is not enough memory for two copies, quit this program first."
)
CMD_NOTE = (
    'Run this command in the Command Prompt (cmd), because PowerShell treats ", $ and ` as special characters.'
)
# Arguments that need no quotes: in cmd an ampersand ends a command, in PowerShell a comma ends an argument.
UNQUOTED = re.compile(r"[\w.:/\\=+-]+")


def cli_command_html(values: Mapping[str, Any], host: Host) -> str:
    """The command as HTML to copy, or the problems of the form."""
    try:
        settings = training_settings(values)
    except SettingsError as error:
        return markup.problem(f"The form has problems, so there is no command yet.\n{error}")
    script, user_data = str(ROOT / "script.py"), str(host.folders.user_data)
    words = [
        *(python_command(), script, "train", "--user-data", user_data, *_model_flags(host)),
        *flags.as_arguments(settings.values()),
    ]
    needs_cmd = _is_windows() and re.search('["$`]', "".join(words))
    explanation = f"{EXPLANATION} {CMD_NOTE}" if needs_cmd else EXPLANATION
    return markup.paragraph(explanation, quiet=True) + markup.code(map(_quote, words))


def _model_flags(host: Host) -> Sequence[str]:
    try:
        card = host.card()
    except TrainingProError:
        return "--model", "MODEL"
    in_user_data = host.folders.models == host.folders.user_data / "models"
    name = card.given_name or (card.name if in_user_data else str(host.folders.models / card.name))
    tokenizer = ("--tokenizer", card.tokenizer_name) if card.tokenizer_name else ()
    loading = () if card.loading == "auto" else ("--load", card.loading)
    limits = ("--max-memory", *card.max_memory.split()) if card.max_memory else ()
    return "--model", name, *tokenizer, *loading, *limits


def _quote(word: str) -> str:
    """Quote a word for the console of this system."""
    if not _is_windows():
        return shlex.quote(word)
    if UNQUOTED.fullmatch(word):
        return word
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', word)  # backslashes are doubled only before a quote
    return '"' + re.sub(r"(\\+)\Z", r"\1\1", escaped) + '"'


def _is_windows() -> bool:
    return os.name == "nt"
