"""`script.py status`: how far the runs are that are in progress, in whichever process."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from ...core.files import dump_json
from ...core.host import Folders
from ...core.jobs import progress_text
from ...hosts.standalone import standalone_folders
from ...records.folder import inventory, is_in_progress, runs_in_progress
from ...records.remote import read_progress
from .. import options
from ..options import say

IN_PROGRESS = "in progress"


def run(arguments: Sequence[str]) -> int:
    """Print a line, or a JSON object, for each run."""
    args = _parse_args(arguments)
    folders = standalone_folders(options.find_user_data(args.user_data))
    names = [args.name] if args.name else runs_in_progress(folders)
    for name in names:
        print(dump_json(_as_json(name, folders)) if args.json else f"{name}: {_describe(name, folders)}")
    if not names:
        say("No run is in progress.")
    return 0


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.make_parser("status", "Show the progress of current runs.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a run (default: all runs in progress)")
    parser.add_argument("--json", action="store_true", help="output one JSON object per line")
    return parser.parse_args(arguments)


def _as_json(name: str, folders: Folders) -> dict[str, object]:
    if is_in_progress(name, folders):
        return {"name": name, "status": IN_PROGRESS, **asdict(read_progress(name, folders))}
    entry = inventory.read_entry(inventory.find_folder(name, folders), folders)
    figures = {"model": entry.model, "step": entry.step, "steps": entry.steps, "smoothed_loss": entry.loss}
    return {"name": name, "status": entry.status, "at": entry.when, **figures}


def _describe(name: str, folders: Folders) -> str:
    if is_in_progress(name, folders):
        return progress_text(read_progress(name, folders))
    entry = inventory.read_entry(inventory.find_folder(name, folders), folders)
    return f"{entry.status} at step {entry.step} of {entry.steps}" if entry.steps else entry.status
