"""`script.py runs`: list, delete, restore and shrink what is on disk."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence

from ..core.errors import SavingError
from ..core.host import Folders
from ..core.version import launch_command
from ..data import arrow_store
from ..records.folder import LoraEntry, copy_as_lora, inventory, loras, refuse_in_progress, run_files, trash
from ..train_utils import align_columns, date_and_time, size
from . import options
from .options import say

# The actions, each with the name of its value (if it takes one) and its help.
ACTIONS: Mapping[str, tuple[str, str]] = {
    "--delete": ("", "move NAME to the trash; --restore brings it back"),
    "--restore": ("", "restore NAME from the trash (the last one deleted)"),
    "--empty-trash": ("", "permanently delete everything in the trash, or only NAME"),
    "--clear-prepared": ("", "delete cached datasets; the next run creates them again"),
    "--slim": ("", "delete everything but the LoRA from a run's older checkpoints, or from the named checkpoint"),
    "--as": ("NEW", "copy NAME/checkpoint-40 to a new LoRA called NEW"),
    "--note": ("TEXT", "save a note with the run; an empty TEXT deletes the note"),
}


def run(arguments: Sequence[str]) -> int:
    """List the runs or carry out the chosen action; needs no environment."""
    parser = options.make_parser("runs", json="output one JSON object")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a LoRA, or NAME/checkpoint-40 (default: all)")
    actions = parser.add_mutually_exclusive_group()
    for flag, (metavar, words) in ACTIONS.items():
        if metavar:
            actions.add_argument(flag, dest=flag, metavar=metavar, help=words)
        else:
            actions.add_argument(flag, dest=flag, action="store_const", const="", help=words)
    args = parser.parse_args(arguments)
    if args.name is not None and not inventory.normalize_name(args.name):  # an empty variable of a script
        parser.error(f"{args.name!r} is not the name of a LoRA. To choose all LoRAs, leave the name out.")
    action = next((flag for flag in ACTIONS if vars(args)[flag] is not None), "")
    if not args.name and action not in ("", "--empty-trash", "--clear-prepared"):
        parser.error(f"{action} needs the name of a LoRA.")
    folders = options.find_folders(args)
    if action:
        _act(action, args, folders)
    else:
        _list(args, folders)
    return 0


def _command(args: argparse.Namespace, words: str) -> str:
    """A command to copy, which acts on the same folder."""
    return f"{launch_command()} runs {words}" + (f' --user-data "{args.user_data}"' if args.user_data else "")


def _act(action: str, args: argparse.Namespace, folders: Folders) -> None:
    """Carry out an action on the LoRA or checkpoint with this name, and say what was done."""
    name, value = args.name or "", vars(args)[action]
    if action == "--clear-prepared":
        say(f"{size(arrow_store.clear_store(folders))} freed. The next run creates its cached datasets again.")
    elif action == "--empty-trash":
        say(f"{size(trash.empty_trash(folders, inventory.normalize_name(name)))} freed.")
    elif action == "--restore":
        items = trash.list_trash(folders)
        item = next((item for item in items if item.name == inventory.normalize_name(name)), None)
        if item is None:
            names = ", ".join(dict.fromkeys(item.name for item in items)) or "nothing"
            raise SavingError(f"There is no {name!r} in the trash. It contains: {names}.")
        say(f"{trash.restore_item(item, folders).relative_to(folders.loras).as_posix()} is restored.")
    elif action == "--delete":
        deleted = trash.move_to_trash(name, folders)
        say(
            f"{deleted.name} is in the trash ({size(deleted.size)}).\n"
            f"To restore it, run:  {_command(args, f'{deleted.name} --restore')}\n"
            f"To delete it permanently, run:  {_command(args, f'{deleted.name} --empty-trash')}"
        )
    elif action == "--slim":
        folder = inventory.find_folder(name, folders)
        refuse_in_progress(folder.relative_to(folders.loras).parts[0], folders)
        freed = {found: loras.slim_checkpoint(found) for found in inventory.slimmable_checkpoints(folder)}
        for checkpoint, count in freed.items():
            say(
                f"{checkpoint.name}: {size(count)} freed. It contains only the LoRA now, so a run can't resume "
                "from it."
            )
        if not freed:
            say(
                "There is no checkpoint to make smaller. The newest checkpoint, the best one and those that you "
                "saved by hand stay complete."
            )
    elif action == "--as":
        lora = copy_as_lora(inventory.find_folder(name, folders), value, folders)
        say(f"{lora.name} is now a separate LoRA: {lora}")
    else:
        run_files.write_note(inventory.find_run(name, folders), value)


def _list(args: argparse.Namespace, folders: Folders) -> None:
    """Print all runs in a table, or one run with everything in its folder."""
    if args.name:
        runs = [inventory.read_entry(inventory.find_run(args.name, folders), folders)]
    else:
        runs = inventory.list_entries(folders)
    deleted, cached = trash.list_trash(folders), arrow_store.store_size(folders)
    if args.json:
        record = {
            "loras": [lora.as_json() for lora in runs],
            "trash": [{"name": t.name, "when": t.when, "size": t.size, "folder": str(t.folder)} for t in deleted],
            "prepared": {"size": cached, "folder": str(folders.prepared_data)},
        }
        print(json.dumps(record, indent=2, ensure_ascii=False))
        return
    lines: list[str] = []
    if args.name:
        lora = runs[0]
        loss = "" if lora.loss is None else f", loss {lora.loss:.4f}"
        lines = [
            f"{lora.name}: {lora.status}, {date_and_time(lora.when)}, on {lora.model or 'an unknown model'}",
            f"{_format_steps(lora) or '0'} steps{loss}, {size(lora.size)} in {lora.folder}",
        ]
        labels = {"checkpoint": "full checkpoint", "LoRA only": "the LoRA only", "backup": "timed backup"}
        for part in lora.parts:
            label = labels.get(part.kind, "backup of previous contents")
            lines.append(f"  {part.folder.relative_to(lora.folder).as_posix()}  {label}  {size(part.size)}")
        lines += [f"Note: {lora.note}"] if lora.note else []
    elif runs:
        rows = [("name", "status", "when", "model", "steps", "loss", "checkpoints", "size")]
        for lora in runs:
            loss = "" if lora.loss is None else f"{lora.loss:.4f}"
            checkpoints = sum(part.kind in ("checkpoint", "LoRA only") for part in lora.parts)
            figures = (_format_steps(lora), loss, str(checkpoints), size(lora.size))
            rows.append((lora.name, lora.status, date_and_time(lora.when), lora.model, *figures))
        total = size(sum(lora.size for lora in runs))
        lines = [*align_columns(rows), f"{len(runs)} in total, {total}."]
    if deleted and not args.name:
        names = ", ".join(dict.fromkeys(entry.name for entry in deleted))
        total = size(sum(entry.size for entry in deleted))
        lines.append(f"In the trash: {names}, {total}. To empty the trash: {_command(args, '--empty-trash')}")
    if cached and not args.name:
        command = _command(args, "--clear-prepared")
        lines.append(
            f"Cached datasets: {size(cached)}. To delete them: {command}. The next run creates them again."
        )
    print("\n".join(lines) or f"There are no LoRAs in {folders.loras} yet.")
    for lora in runs:
        for sentence in run_files.describe_damage(lora.damage):
            say(f"{lora.name}: {sentence}")


def _format_steps(lora: LoraEntry) -> str:
    return f"{lora.step} of {lora.steps}" if lora.steps else str(lora.step or "")
