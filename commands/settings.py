"""`script.py settings`: every setting, with its default and its values."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from ..core.errors import SettingsError
from ..settings import flags, parsing
from ..settings.definitions import SETTINGS
from . import options


def run(arguments: Sequence[str]) -> int:
    """Print the reference; needs no environment."""
    parser = options.make_parser("settings", json="output a list of JSON objects")
    parser.add_argument("keys", nargs="*", metavar="KEY", help="a setting to show in full (default: all settings)")
    args = parser.parse_args(arguments)
    keys = [key.lstrip("-").replace("-", "_") for key in args.keys]
    if problems := [problem for key in keys if (problem := parsing.unknown_key_problem(key))]:
        raise SettingsError(problems)
    chosen = [setting for key, setting in SETTINGS.items() if not keys or key in keys]
    if args.json:
        text = json.dumps(flags.as_json(chosen), indent=2, ensure_ascii=False)
    elif keys:
        text = "\n\n".join(map(flags.describe, chosen))
    else:  # a table of Markdown is for a file
        text = flags.render_lines() if sys.stdout.isatty() else flags.render_markdown()
    print(text.rstrip())
    return 0
