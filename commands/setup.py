"""`script.py setup`: the environment for training processes, in the working folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..core import own_environment
from ..core.errors import TrainingProError
from ..core.jobs import Event, JobEnded, console, event_file
from . import options
from .environment import interpreter


def run(arguments: Sequence[str]) -> int:
    """Make, repair or update the environment with the Python that runs this command."""
    parser = options.make_parser("setup", json="output one JSON object per line, with all progress")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--plan", action="store_true", help="only say what would be downloaded, and its size")
    task.add_argument("--remove", action="store_true", help="remove the environment from the disk")
    args = parser.parse_args(arguments)
    folders = options.find_folders(args)
    if args.remove:
        print(own_environment.remove_environment(folders))
        return 0
    printer = console.EventPrinter(options.say, options.terminal())
    emit = print_event if args.json else printer.print_event
    try:
        made = interpreter.make_own_environment(folders.environment, emit, torch_spec=args.torch, plan=args.plan)
        end = JobEnded(outcome="finished", text=made)
    except TrainingProError as error:
        end = JobEnded(outcome="failed", text=str(error))
    printer.clear()
    if args.json:
        print_event(end)
    else:
        print(end.text, file=sys.stderr if end.outcome == "failed" else sys.stdout)
    return 1 if end.outcome == "failed" else 0


def print_event(event: Event) -> None:
    """Write an event for `own_environment.set_up`, which reads it."""
    print(event_file.event_line(event), end="", flush=True)
