"""`script.py export`: a run as a folder that trains on another machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...data.dataset_index import find_datasets
from ...records.folder import choose_output
from ...records.remote import PortableRun
from .. import options
from ..options import say
from ..train import add_settings, read_settings


def run(arguments: Sequence[str]) -> int:
    """Write the folder, and say where it is."""
    args = _parse_args(arguments)
    host = options.make_host(args)
    settings = read_settings(args, host, args.settings)
    out = choose_output(args.out, host.folders)
    datasets = find_datasets((*settings.what.data, *settings.aside.eval_data), host.folders)
    paths = {dataset.name: dataset.path for dataset in datasets}
    PortableRun(settings, paths, host.card(), host.folders).write(out)
    say(f"{out} contains the settings and the data. Its README.txt explains how to train on another machine.")
    return 0


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.make_parser(
        "export", "Create a folder with everything that another machine needs to do a run."
    )
    options.add_model(parser)
    parser.add_argument("--out", required=True, metavar="FOLDER", help="the new folder")
    add_settings(parser)
    return parser.parse_args(arguments)
