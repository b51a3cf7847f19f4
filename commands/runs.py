"""`script.py runs`: list, delete, restore and shrink what is on disk."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..core.errors import SavingError, error_message
from ..core.host import Folders
from ..core.version import launch_command
from ..data import arrow_store
from ..hosts.standalone import standalone_folders
from ..records.folder import LoraEntry, copy_as_lora, describe_damage, inventory, loras, run_files, trash
from ..train_utils import size
from . import options
from .main import is_broken_pipe
from .options import say


class Action(NamedTuple):
    """An action of the command: with a `metavar` its flag takes a value."""

    run: Callable[[argparse.Namespace, Folders], None]
    help: str
    metavar: str = ""
    needs_name: bool = True


def run(arguments: Sequence[str]) -> int:
    """List the runs or carry out the chosen action; needs no environment."""
    args = _parse_args(arguments)
    folders = standalone_folders(options.find_user_data(args.user_data))
    try:
        (_ACTIONS[args.action].run if args.action else _list)(args, folders)
    except OSError as error:
        if is_broken_pipe(error):
            raise
        raise SavingError(error_message(error)) from error
    return 0


def _parse_args(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.make_parser("runs", "List LoRAs, checkpoints and backups with their sizes.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a LoRA, or NAME/checkpoint-40 (default: all)")
    actions = parser.add_mutually_exclusive_group()
    for flag, action in _ACTIONS.items():
        if action.metavar:
            actions.add_argument(flag, dest=flag, metavar=action.metavar, help=action.help)
        else:
            actions.add_argument(flag, dest=flag, action="store_const", const="", help=action.help)
    parser.add_argument("--json", action="store_true", help="output one JSON object")
    args = parser.parse_args(arguments)
    if args.name is not None and not inventory.normalize_name(args.name):  # an empty variable of a script
        parser.error(f"{args.name!r} is not the name of a LoRA. To choose all LoRAs, leave the name out.")
    args.action = next((flag for flag in _ACTIONS if vars(args)[flag] is not None), "")
    if not args.name and args.action and _ACTIONS[args.action].needs_name:
        parser.error(f"{args.action} needs the name of a LoRA.")
    return args


def _list(args: argparse.Namespace, folders: Folders) -> None:
    if args.name:
        runs = [inventory.read_entry(_run_folder(args.name, folders), folders)]
    else:
        runs = inventory.list_entries(folders)
    if args.json:
        print(json.dumps(_as_json(runs, folders), indent=2, ensure_ascii=False))
        return
    lines = _format_run(runs[0]) if args.name else [*_format_table(runs), *_format_other(folders)]
    options.warn_about_names(folders)
    print("\n".join(lines) or f"There are no LoRAs in {folders.loras} yet.")
    for lora in runs:
        for sentence in describe_damage(lora.damage):
            say(f"{lora.name}: {sentence}")


def _run_folder(name: str, folders: Folders) -> Path:
    """Folder of the run with this name, or of the run that owns the checkpoint with this name."""
    return folders.loras / inventory.find_folder(name, folders).relative_to(folders.loras).parts[0]


def _delete(args: argparse.Namespace, folders: Folders) -> None:
    name = _name_of(inventory.find_folder(args.name, folders), folders)
    deleted = trash.move_to_trash(name, folders)
    say(
        f"{name} is in the trash ({size(deleted.size)}).\n"
        f"To restore it, run:  {launch_command()} runs {name} --restore\n"
        f"To delete it permanently, run:  {launch_command()} runs {name} --empty-trash"
    )


def _restore(args: argparse.Namespace, folders: Folders) -> None:
    items = trash.list_trash(folders)
    item = next((item for item in items if item.name == inventory.normalize_name(args.name)), None)
    if item is None:
        names = ", ".join(dict.fromkeys(item.name for item in items)) or "nothing"
        raise SavingError(f"There is no {args.name!r} in the trash. It contains: {names}.")
    say(f"{_name_of(trash.restore_item(item, folders), folders)} is restored.")


def _empty_trash(args: argparse.Namespace, folders: Folders) -> None:
    say(f"{size(trash.empty_trash(folders, inventory.normalize_name(args.name or '')))} freed.")


def _clear_prepared(args: argparse.Namespace, folders: Folders) -> None:
    say(f"{size(arrow_store.clear_store(folders))} freed. The next run creates its cached datasets again.")


def _slim(args: argparse.Namespace, folders: Folders) -> None:
    folder = inventory.find_folder(args.name, folders)
    trash.refuse_in_use(_name_of(folder, folders), folders)
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


def _promote(args: argparse.Namespace, folders: Folders) -> None:
    lora = copy_as_lora(inventory.find_folder(args.name, folders), vars(args)["--as"], folders)
    say(f"{lora.name} is now a separate LoRA: {lora}")


def _note(args: argparse.Namespace, folders: Folders) -> None:
    run_files.write_note(_run_folder(args.name, folders), vars(args)["--note"])


def _name_of(folder: Path, folders: Folders) -> str:
    return folder.relative_to(folders.loras).as_posix()


def _as_json(runs: Sequence[LoraEntry], folders: Folders) -> Mapping[str, object]:
    deleted = [
        {"name": t.name, "when": t.when, "size": t.size, "folder": str(t.folder)}
        for t in trash.list_trash(folders)
    ]
    prepared = {"size": arrow_store.store_size(folders), "folder": str(folders.prepared_data)}
    return {"loras": [lora.as_json() for lora in runs], "trash": deleted, "prepared": prepared}


def _format_table(runs: Sequence[LoraEntry]) -> Iterator[str]:
    if not runs:
        return
    heading = ("name", "status", "when", "model", "steps", "loss", "checkpoints", "size")
    rows = [heading, *(_table_row(lora) for lora in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield f"{len(runs)} in total, {size(sum(lora.size for lora in runs))}."


def _table_row(lora: LoraEntry) -> tuple[str, ...]:
    loss = "" if lora.loss is None else f"{lora.loss:.4f}"
    checkpoints = sum(part.kind in ("checkpoint", "LoRA only") for part in lora.parts)
    figures = (_format_steps(lora), loss, str(checkpoints), size(lora.size))
    return (lora.name, lora.status, _format_date(lora), lora.model, *figures)


def _format_date(lora: LoraEntry) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(lora.when))


def _format_steps(lora: LoraEntry) -> str:
    return f"{lora.step} of {lora.steps}" if lora.steps else str(lora.step or "")


def _format_run(lora: LoraEntry) -> Iterator[str]:
    """Format a LoRA with everything in its folder."""
    yield f"{lora.name}: {lora.status}, {_format_date(lora)}, on {lora.model or 'an unknown model'}"
    loss = "" if lora.loss is None else f", loss {lora.loss:.4f}"
    yield f"{_format_steps(lora) or '0'} steps{loss}, {size(lora.size)} in {lora.folder}"
    labels = {"checkpoint": "full checkpoint", "LoRA only": "the LoRA only", "backup": "timed backup"}
    for part in lora.parts:
        label = labels.get(part.kind, "backup of previous contents")
        yield f"  {part.folder.relative_to(lora.folder).as_posix()}  {label}  {size(part.size)}"
    if lora.note:
        yield f"Note: {lora.note}"


def _format_other(folders: Folders) -> Iterator[str]:
    """Format the disk use of the trash and of prepared data."""
    if deleted := trash.list_trash(folders):
        names = ", ".join(dict.fromkeys(entry.name for entry in deleted))
        total = size(sum(entry.size for entry in deleted))
        yield f"In the trash: {names}, {total}. To empty the trash: {launch_command()} runs --empty-trash"
    if cached := arrow_store.store_size(folders):
        command = f"{launch_command()} runs --clear-prepared"
        yield f"Cached datasets: {size(cached)}. To delete them: {command}. The next run creates them again."


_ACTIONS: Mapping[str, Action] = {
    "--delete": Action(_delete, "move NAME to the trash; --restore brings it back"),
    "--restore": Action(_restore, "restore NAME from the trash (the last one deleted)"),
    "--empty-trash": Action(
        _empty_trash, "permanently delete everything in the trash, or only NAME", needs_name=False
    ),
    "--clear-prepared": Action(
        _clear_prepared, "delete cached datasets; the next run creates them again", needs_name=False
    ),
    "--slim": Action(
        _slim, "delete everything but the LoRA from a run's older checkpoints, or from the named checkpoint"
    ),
    "--as": Action(_promote, "copy NAME/checkpoint-40 to a new LoRA called NEW", "NEW"),
    "--note": Action(_note, "save a note with the run; an empty TEXT deletes the note", "TEXT"),
}
