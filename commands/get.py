"""`script.py get`: download a model from the Hugging Face hub into the models folder."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from ..core.jobs import EventPrinter
from ..downloads import download, hub_models
from ..hosts import known_models
from ..hosts.standalone import standalone_folders
from . import options
from .environment import interpreter
from .options import handle_end_signals, say


def run(arguments: Sequence[str]) -> int:
    """Download the model and print its folder."""
    parser = options.make_parser("get", "Download a model in transformers format from the Hugging Face Hub.")
    parser.add_argument("model", metavar="OWNER/NAME", help="OWNER/NAME, or the URL of the model's page")
    parser.add_argument("--revision", default="", metavar="R", help="a branch, tag or commit (default: main)")
    args = parser.parse_args(arguments)
    model = hub_models.parse_hub_model(args.model, args.revision)
    models = standalone_folders(options.find_user_data(args.user_data)).models
    interpreter.ensure_environment({"train"}, torch_spec=args.torch)
    printer = EventPrinter(say, options.terminal())
    with handle_end_signals(signal.default_int_handler):
        end = download.download_model(model, models, known_models.unknown_type_reason, printer.print_event)
    printer.clear()
    say(end.text)
    if end.folder is None:
        return 1
    say(f"To use the model in other commands, add: --model {end.folder.name}")
    print(end.folder)
    return 0
