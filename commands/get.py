"""`script.py get`: a model brought from the Hugging Face hub into the models folder."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from ..core.jobs import Event, Fetched, Narrator
from ..downloads import download, hub_models
from ..hosts.standalone import folders
from . import options
from .environment import interpreter
from .options import ended_by, say


def run(arguments: Sequence[str]) -> int:
    """The folder of the model on standard output."""
    asked = _parsed(arguments)
    wanted = hub_models.wanted(asked.model, asked.revision)
    home = folders(options.user_data(asked.user_data))
    interpreter.ready({"train"}, torch_spec=asked.torch)
    teller = _Teller()
    with ended_by(signal.default_int_handler):
        end = download.get(wanted, home.models, teller.tell)
    teller.line(end.text)
    if end.folder is None:
        return 1
    say(f"For the other commands: --model {end.folder.name}")
    print(end.folder)
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.parser("get", "A model in transformers format, brought from the Hugging Face hub.")
    parser.add_argument("model", metavar="OWNER/NAME", help="as on its page, or the address of that page")
    parser.add_argument("--revision", default="", metavar="R", help="a branch, tag or commit (default: main)")
    return parser.parse_args(arguments)


class _Teller:
    """Lines on standard error; how far it is stands in one line that is written over, where that can be."""

    def __init__(self) -> None:
        self._narrator = Narrator()
        self._over = sys.stderr.isatty()
        self._unended = 0

    def tell(self, event: Event) -> None:
        if self._over and isinstance(event, Fetched):
            words = f"{event.share:.0%}  {event.words}"
            print(f"\r{words:<{self._unended}}", end="", file=sys.stderr, flush=True)
            self._unended = len(words)
        elif words := self._narrator.line(event):
            self.line(words)

    def line(self, words: str) -> None:
        say(f"\n{words}" if self._unended else words)
        self._unended = 0
