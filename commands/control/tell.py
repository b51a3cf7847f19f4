"""`script.py tell`: a request to a run that is in progress in another process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from ...hosts.standalone import standalone_folders
from ...records.remote import REQUESTS, is_waiting, send_request
from .. import options
from ..options import say

WAIT_SECONDS, LOOK_SECONDS = 10.0, 0.1


def run(arguments: Sequence[str]) -> int:
    """Leave the request, and wait until the run has taken it."""
    args = _parse_args(arguments)
    folders = standalone_folders(options.find_user_data(args.user_data))
    send_request(args.name, args.request, folders)
    patience = time.monotonic() + WAIT_SECONDS
    while is_waiting(args.name, args.request, folders) and time.monotonic() < patience:
        time.sleep(LOOK_SECONDS)
    if is_waiting(args.name, args.request, folders):
        say(
            f"{args.name} has not received the request yet. The request is saved in a file. The run reads "
            "this file as soon as it appears on the computer that trains."
        )
    else:
        say(f"{args.name} {REQUESTS[args.request].words}.")
    return 0


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.make_parser("tell", "Control a run that was started in another window or program.")
    parser.add_argument("name", metavar="NAME", help="name of the run; `status` lists the runs in progress")
    parser.add_argument("request", choices=REQUESTS, metavar="REQUEST", help=", ".join(REQUESTS))
    return parser.parse_args(arguments)
