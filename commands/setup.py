"""`script.py setup`: the environment for training processes, in the working folder."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import own_environment
from ..core.errors import TrainingProError
from ..core.jobs import JobEnded, event_file
from . import options
from .environment import interpreter
from .environment.virtual_env import Environment, print_events


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
    lists, modules = own_environment.TRAIN_LISTS, interpreter.NEEDED_MODULES["train"]
    emit = print_events()
    if args.json:
        emit = lambda event: print(event_file.event_line(event), end="", flush=True)  # noqa: E731
    try:
        made = Environment(folders.environment, modules, args.torch, emit).make(lists, plan=args.plan)
    except TrainingProError as error:
        if not args.json:
            raise
        emit(JobEnded(outcome="failed", text=str(error)))
        return 1
    if args.json:
        emit(JobEnded(outcome="finished", text=made))
    else:
        print(made)
    return 0
