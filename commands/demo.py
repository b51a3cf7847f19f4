"""`script.py demo`: from a bare Python to a page with a model and a text in it, ready to train."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import ModelError
from ..hosts.embedded import make_embedded
from ..hosts.standalone import StandaloneHost, folders
from ..hosts.tiny import make_tiny
from . import options, page
from .environment import interpreter
from .options import say

TINY = "tiny-random-llama"


def run(arguments: Sequence[str]) -> int:
    """Environment, model, example data, page."""
    asked = _parsed(arguments)
    interpreter.ready({"train", "page", "demo"}, torch_spec=asked.torch)
    home = folders(options.user_data(asked.user_data))
    model = _model(home.models, tiny=asked.tiny)
    page.serve(StandaloneHost(home, model=model.name), asked, first_look=True)
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.parser("demo", "Everything for a first look: environment, model, example data, the page.")
    parser.add_argument("--tiny", action="store_true", help="a random model made in seconds instead of a real one")
    page.add_serving(parser)
    return parser.parse_args(arguments)


def _model(models: Path, *, tiny: bool) -> Path:
    """The embedded model; a tiny random one where that is asked for or the real one cannot be had."""
    if not tiny:
        try:
            return make_embedded(models, say)
        except ModelError as error:
            say(f"{error}\nGoing on with a tiny random model: it knows nothing, but every button works.")
    if not (models / TINY).exists():
        say("Making a tiny random model ...")
    return make_tiny(models / TINY)
