"""`script.py runs`: what is on disk, with sizes; what of it may go, and how it comes back."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..core.errors import SavingError, in_words
from ..core.host import Folders
from ..core.launcher import launcher
from ..data import arrow_store
from ..hosts.standalone import folders as folders_of
from ..records.folder import Kept, as_lora, inventory, loras, notes, trash
from ..train_utils import size
from . import options
from .main import nobody_reads
from .options import say

Act = Callable[[argparse.Namespace, Folders], None]


def run(arguments: Sequence[str]) -> int:
    """List, or do the one thing that is asked for; needs no environment."""
    asked = _parsed(arguments)
    folders = folders_of(options.user_data(asked.user_data))
    try:
        _ACTS[_act(asked)](asked, folders)
    except OSError as error:
        if nobody_reads(error):
            raise
        raise SavingError(in_words(error)) from error
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = options.parser("runs", "What is on disk: LoRAs, checkpoints and backups, with sizes.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a LoRA, or NAME/checkpoint-40; without: all")
    acts = parser.add_mutually_exclusive_group()
    acts.add_argument("--delete", action="store_true", help="move it to the trash; --restore brings it back")
    acts.add_argument("--restore", action="store_true", help="bring back what was last deleted under this name")
    acts.add_argument("--empty-trash", action="store_true", help="remove for good what was deleted (of this name)")
    acts.add_argument("--clear-prepared", action="store_true", help="take away data made ready: nothing is lost")
    acts.add_argument(
        "--slim", action="store_true", help="reduce older checkpoints, or this one, to the LoRA itself"
    )
    acts.add_argument("--as", dest="new_name", metavar="NEW", help="make a LoRA NEW of NAME/checkpoint-40")
    acts.add_argument("--note", metavar="TEXT", help="keep a note with it; an empty one removes it")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args(arguments)
    if not asked.name and (wanted := _act(asked)) in _OF_ONE:
        parser.error(f"--{wanted} wants the name of a LoRA.")
    return asked


def _act(asked: argparse.Namespace) -> str:
    if asked.new_name is not None:
        return "as"
    if asked.note is not None:
        return "note"
    return next((name for name in _ACTS if vars(asked).get(name.replace("-", "_"))), "list")


def _list(asked: argparse.Namespace, folders: Folders) -> None:
    found = [inventory.one(_lora(asked.name, folders), folders)] if asked.name else inventory.kept(folders)
    if asked.json:
        print(json.dumps(_as_json(found, folders), indent=2, ensure_ascii=False))
        return
    lines = _one(found[0]) if asked.name else [*_table(found), *_beside(folders)]
    print("\n".join(lines) or f"There are no LoRAs in {folders.loras} yet.")


def _lora(name: str, folders: Folders) -> Path:
    """The run that a name means, or that the checkpoint of this name belongs to."""
    return folders.loras / inventory.named(name, folders).relative_to(folders.loras).parts[0]


def _delete(asked: argparse.Namespace, folders: Folders) -> None:
    name = _name(inventory.named(asked.name, folders), folders)
    gone = trash.throw_away(name, folders)
    say(
        f"{name} is in the trash ({size(gone.size)}). Back: {launcher()} runs {name} --restore. "
        f"For good: {launcher()} runs {name} --empty-trash"
    )


def _restore(asked: argparse.Namespace, folders: Folders) -> None:
    there = trash.thrown(folders)
    found = next((thing for thing in there if thing.name == inventory.as_named(asked.name)), None)
    if found is None:
        listed = ", ".join(dict.fromkeys(thing.name for thing in there)) or "nothing"
        raise SavingError(f"There is no {asked.name!r} in the trash. In it: {listed}.")
    say(f"{_name(trash.restore(found, folders), folders)} is back.")


def _empty_trash(asked: argparse.Namespace, folders: Folders) -> None:
    say(f"{size(trash.empty(folders, inventory.as_named(asked.name or '')))} are free again.")


def _clear_prepared(asked: argparse.Namespace, folders: Folders) -> None:
    say(f"{size(arrow_store.clear(folders))} are free again; the next run makes its data ready anew.")


def _slim(asked: argparse.Namespace, folders: Folders) -> None:
    folder = inventory.named(asked.name, folders)
    trash.refuse_in_use(_name(folder, folders), folders)
    chosen = inventory.to_slim(folder) if folder.parent == folders.loras else [folder]
    freed = {checkpoint: loras.slim(checkpoint) for checkpoint in chosen}
    for checkpoint, count in freed.items():
        say(f"{checkpoint.name}: {size(count)} freed; it is the LoRA itself now, and no run can go on from it.")
    if not freed:
        say("Nothing to slim: the newest checkpoint, the best and those saved by hand stay whole.")


def _as(asked: argparse.Namespace, folders: Folders) -> None:
    made = as_lora(inventory.named(asked.name, folders), asked.new_name, folders)
    say(f"{made.name} is a LoRA of its own now: {made}")


def _note(asked: argparse.Namespace, folders: Folders) -> None:
    notes.leave_note(_lora(asked.name, folders), asked.note)


def _name(folder: Path, folders: Folders) -> str:
    return folder.relative_to(folders.loras).as_posix()


def _as_json(found: Sequence[Kept], folders: Folders) -> Mapping[str, object]:
    gone = [
        {"name": t.name, "when": t.when, "size": t.size, "folder": str(t.folder)} for t in trash.thrown(folders)
    ]
    ready = {"size": arrow_store.size(folders), "folder": str(folders.prepared)}
    return {"loras": [one.as_json() for one in found], "trash": gone, "prepared": ready}


def _table(found: Sequence[Kept]) -> Iterator[str]:
    if not found:
        return
    head = ("name", "standing", "when", "model", "steps", "loss", "checkpoints", "size")
    rows = [head, *(_row(one) for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield f"{len(found)} in all, {size(sum(one.size for one in found))}."


def _row(one: Kept) -> tuple[str, ...]:
    loss = "" if one.loss is None else f"{one.loss:.4f}"
    checkpoints = sum(part.kind in ("checkpoint", "LoRA only") for part in one.parts)
    return (one.name, one.standing, _date(one), one.model, _steps(one), loss, str(checkpoints), size(one.size))


def _date(one: Kept) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(one.when))


def _steps(one: Kept) -> str:
    return f"{one.step} of {one.steps}" if one.steps else str(one.step or "")


def _one(one: Kept) -> Iterator[str]:
    """A LoRA with everything that lies in its folder."""
    yield f"{one.name}: {one.standing}, {_date(one)}, on {one.model or 'a model that is not known'}"
    loss = "" if one.loss is None else f", loss {one.loss:.4f}"
    yield f"{_steps(one) or '0'} steps{loss}, {size(one.size)} in {one.folder}"
    for part in one.parts:
        words = {"checkpoint": "whole", "LoRA only": "the LoRA only", "backup": "timed backup"}
        yield f"  {_inside(one, part.folder)}  {words.get(part.kind, 'what stood here before')}  {size(part.size)}"
    if one.note:
        yield f"Note: {one.note}"


def _inside(one: Kept, folder: Path) -> str:
    return folder.relative_to(one.folder).as_posix()


def _beside(folders: Folders) -> Iterator[str]:
    """What takes room and is no LoRA."""
    if gone := trash.thrown(folders):
        names = ", ".join(dict.fromkeys(thing.name for thing in gone))
        yield f"In the trash: {names}, {size(sum(t.size for t in gone))} ({launcher()} runs --empty-trash)."
    if ready := arrow_store.size(folders):
        yield f"Data made ready: {size(ready)} ({launcher()} runs --clear-prepared; the next run makes them anew)."


_ACTS: Mapping[str, Act] = {
    "list": _list,
    "delete": _delete,
    "restore": _restore,
    "empty-trash": _empty_trash,
    "clear-prepared": _clear_prepared,
    "slim": _slim,
    "as": _as,
    "note": _note,
}
_OF_ONE = ("delete", "restore", "slim", "as", "note")
