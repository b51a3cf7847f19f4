"""`script.py push`: upload a LoRA to the Hugging Face Hub."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import SavingError
from ..core.hub_upload import HubUpload
from ..downloads import upload
from ..hosts.standalone import standalone_folders
from ..records.folder import loras, plan_upload
from . import options
from .environment import interpreter
from .options import handle_end_signals, say

RUN_FILES = (
    *("train*", "report.html", "samples.jsonl", "recall.json", "evidence.json", "notes.txt"),
    *("checkpoint-*", "backup*", "Backup-*"),
)
"""Patterns of the files of a run that its folder has besides a whole model; some hold parts of the dataset."""


def run(arguments: Sequence[str]) -> int:
    """Show what would be uploaded, ask for the repository's name, upload, and print the address."""
    args = _parse_args(arguments)
    folders = standalone_folders(options.find_user_data(args.user_data))
    _refuse_whole_model(folders.models / args.name, args)
    folder = loras.find_lora(args.name, folders.loras)
    plan = plan_upload(folder, args.name, args.to, public=args.public, base=args.base_model, also=args.also)
    say("\n".join(plan.lines))
    if not args.yes and not _is_confirmed(plan):
        say("Nothing was uploaded, because the name you typed does not match.")
        return 1
    interpreter.ensure_environment({"train"}, torch_spec=args.torch)
    with handle_end_signals(signal.default_int_handler):
        address = upload.upload_lora(plan)
    say(f"Uploaded {args.name}. Set the license in its README.md on the Hub.")
    print(address)
    return 0


def _refuse_whole_model(folder: Path, args: argparse.Namespace) -> None:
    """Raise SavingError for a fully fine-tuned or merged model, with the command that uploads it."""
    if loras.output_kind(folder) == "model":
        exclusions = " ".join(f'--exclude "{pattern}"' for pattern in RUN_FILES)
        visibility = "" if args.public else " --private"
        raise SavingError(
            f"{args.name} is a full model, but `push` uploads only LoRAs. To upload the model without the other "
            f'files of its run, use this command: hf upload {args.to} "{folder}" .{visibility} {exclusions}'
        )


def _is_confirmed(plan: HubUpload) -> bool:
    """Whether the user types the repository's name; the end of the input counts as no."""
    say(f"To upload these files, type {plan.repository} and press Enter:")
    try:
        return input().strip() == plan.repository
    except EOFError:
        return False


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.make_parser(
        "push", "Upload a LoRA to the Hugging Face Hub: weights, config and a model card."
    )
    parser.add_argument("name", metavar="NAME", help="a LoRA, or a checkpoint (NAME/checkpoint-40)")
    parser.add_argument(
        "--to", required=True, metavar="OWNER/REPO", help="the repository, which is created if it does not exist"
    )
    parser.add_argument("--public", action="store_true", help="make the repository public (default: private)")
    parser.add_argument("--base-model", default="", metavar="OWNER/NAME", help="the base model's name on the Hub")
    also_help = "other files of the run to upload, such as training_log.json (default: none)"
    parser.add_argument("--also", nargs="+", default=[], metavar="FILE", help=also_help)
    parser.add_argument(
        "--yes", action="store_true", help="upload without asking you to type the repository's name"
    )
    return parser.parse_args(arguments)
