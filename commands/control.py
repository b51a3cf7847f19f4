"""`script.py status`, `tell` and `export`: runs in other processes and on other machines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from ..core.files import dump_json
from ..core.jobs import progress_text
from ..data.dataset_index import find_datasets
from ..records.folder import choose_output, inventory, is_in_progress, runs_in_progress
from ..records.remote import REQUESTS, confirm_request, read_progress, send_request, write_portable_run
from . import options
from .environment import interpreter
from .options import say
from .train import add_settings, read_settings

WAIT_SECONDS, LOOK_SECONDS = 10.0, 0.1  # for a run to take a request: it looks between two steps


def run_status(arguments: Sequence[str]) -> int:
    """Print a line, or a JSON object, for each run, in whichever process it is."""
    parser = options.make_parser("status", json="output one JSON object per line")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run (default: all runs in progress)")
    args = parser.parse_args(arguments)
    folders = options.find_folders(args)
    names = [args.name] if args.name else runs_in_progress(folders)
    for name in names:
        if is_in_progress(name, folders):
            progress = read_progress(name, folders)
            record = {"name": name, "status": "in progress", **asdict(progress)}
            words = progress_text(progress)
        else:
            entry = inventory.read_entry(inventory.find_folder(name, folders), folders)
            figures = {"model": entry.model, "step": entry.step, "steps": entry.steps, "smoothed_loss": entry.loss}
            record = {"name": name, "status": entry.status, "at": entry.when, **figures}
            words = f"{entry.status} at step {entry.step} of {entry.steps}" if entry.steps else entry.status
        print(dump_json(record) if args.json else f"{name}: {words}")
    if not names:
        say("No run is in progress.")
    return 0


def run_tell(arguments: Sequence[str]) -> int:
    """Leave a request for a run that is in progress, and wait until the run has taken it."""
    parser = options.make_parser("tell")
    parser.add_argument("name", metavar="NAME", help="name of the run; `status` lists the runs in progress")
    parser.add_argument("request", choices=REQUESTS, metavar="REQUEST", help=", ".join(REQUESTS))
    args = parser.parse_args(arguments)
    folders = options.find_folders(args)
    request = send_request(args.name, args.request, folders)
    # The run deletes the file of a request when it takes it, so a file that is there is a request that waits.
    deadline = time.monotonic() + WAIT_SECONDS
    while request.exists() and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    if request.exists():
        say(
            f"{args.name} has not received the request yet. The request is saved in a file. The run reads "
            "this file as soon as it appears on the computer that trains."
        )
    else:
        say(confirm_request(args.name, args.request, folders))
    return 0


def run_export(arguments: Sequence[str]) -> int:
    """Write a folder that trains on another machine, and say where it is."""
    parser = options.make_parser("export", model=True)
    parser.add_argument("--out", required=True, metavar="FOLDER", help="the new folder")
    add_settings(parser)
    args = parser.parse_args(arguments)
    interpreter.ensure_environment("train", torch_spec=args.torch)
    host = options.make_host(args)
    settings = read_settings(args, host, args.settings)
    out = choose_output(args.out, host.folders)
    datasets = find_datasets(settings.dataset_names, host.folders)
    paths = {dataset.name: dataset.path for dataset in datasets}
    write_portable_run(settings, paths, host.card(), host.folders, out)
    say(f"{out} contains the settings and the data. Its README.txt explains how to train on another machine.")
    return 0
