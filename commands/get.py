"""`script.py get`: download a model from the Hugging Face hub into the models folder."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from ..core.jobs import DownloadProgress, Event, EventFormatter, event_text
from ..downloads import download, hub_models
from ..hosts import known_models
from ..hosts.standalone import standalone_folders
from . import options
from .environment import interpreter
from .options import handle_end_signals, say


def run(arguments: Sequence[str]) -> int:
    """Download the model and print its folder."""
    args = _parse_args(arguments)
    model = hub_models.parse_hub_model(args.model, args.revision)
    models = standalone_folders(options.find_user_data(args.user_data)).models
    interpreter.ensure_environment({"train"}, torch_spec=args.torch)
    printer = _ProgressPrinter()
    with handle_end_signals(signal.default_int_handler):
        end = download.download_model(model, models, known_models.unknown_type_reason, printer.print_event)
    printer.print_line(end.text)
    if end.folder is None:
        return 1
    say(f"To use the model in other commands, add: --model {end.folder.name}")
    print(end.folder)
    return 0


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.make_parser("get", "Download a model in transformers format from the Hugging Face Hub.")
    parser.add_argument("model", metavar="OWNER/NAME", help="OWNER/NAME, or the URL of the model's page")
    parser.add_argument("--revision", default="", metavar="R", help="a branch, tag or commit (default: main)")
    return parser.parse_args(arguments)


class _ProgressPrinter:
    """Writes events to standard error; on a terminal, the progress overwrites its own line."""

    def __init__(self) -> None:
        self._formatter = EventFormatter()
        self._can_overwrite = sys.stderr.isatty()
        self._open_line_length = 0

    def print_event(self, event: Event) -> None:
        if self._can_overwrite and isinstance(event, DownloadProgress):
            line = event_text(event)
            print(f"\r{line:<{self._open_line_length}}", end="", file=sys.stderr, flush=True)
            self._open_line_length = len(line)
        elif line := self._formatter.line(event):
            self.print_line(line)

    def print_line(self, text: str) -> None:
        say(f"\n{text}" if self._open_line_length else text)
        self._open_line_length = 0
