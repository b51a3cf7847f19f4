"""`script.py settings`: every setting, with its default and its values."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..settings import other_names, reference
from . import options


def run(arguments: Sequence[str]) -> int:
    """Print the reference; needs no environment."""
    parser = options.make_parser(
        "settings", "List every setting with its key, label, default, allowed values and help."
    )
    parser.add_argument("--json", action="store_true", help="output a list of JSON objects")
    parser.add_argument(
        "--coming-from", action="store_true", help="list the names that other programs use for these settings"
    )
    args = parser.parse_args(arguments)
    if args.json:
        text = json.dumps(reference.as_json(), indent=2, ensure_ascii=False)
    else:
        text = other_names.render_markdown() if args.coming_from else reference.render_markdown()
    print(text.rstrip())
    return 0
