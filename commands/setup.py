"""`script.py setup`: the environment for training processes, in the working folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..core import own_environment
from ..core.jobs import SESSION, console
from ..downloads import virtual_env
from ..records.folder import refuse_while_training
from . import options


def run(arguments: Sequence[str]) -> int:
    """Make, repair or update the environment with the Python that runs this command."""
    parser = options.make_parser("setup")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--plan", action="store_true", help="only say what would be downloaded, and its size")
    task.add_argument("--remove", action="store_true", help="remove the environment from the disk")
    args = parser.parse_args(arguments)
    folders = options.find_folders(args)
    if not args.plan:
        refuse_while_training(folders)
    if args.remove:
        print(own_environment.remove_environment(folders))
        return 0
    work = virtual_env.set_up(folders, partial(refuse_while_training, folders), torch=args.torch, plan=args.plan)
    job = SESSION.start_without_model("environment", "Setting up training", work)
    with options.stop_on_signal(job):
        console.print_events(job, options.say, options.terminal())
    return options.exit_code(job)
