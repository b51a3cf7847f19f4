"""What runs have left on disk: LoRAs, checkpoints and backups, how each run ended, how much room they take."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ...core.errors import SavingError
from ...core.files import read_json, safe_paths
from ...core.host import Folders
from ...train_utils import checkpoint_step, natural_key
from . import loras, retention
from .filenames import BEST, EARLIER, HIDDEN, LOG, PARAMETERS, STATE, TIMED
from .loras import Standing
from .notes import note
from .run_lock import is_in_progress

Kind = Literal["checkpoint", "LoRA only", "backup", "earlier"]


@dataclass(frozen=True)
class Part:
    """A folder inside a LoRA's: a whole checkpoint, one slimmed to the LoRA, a timed backup, what stood before."""

    name: str
    kind: Kind
    step: int | None
    size: int
    folder: Path


@dataclass(frozen=True)
class Kept:
    """A LoRA's folder: what it is, and what lies in it."""

    name: str
    folder: Path
    standing: Standing | Literal["in progress"]
    model: str
    step: int
    steps: int
    loss: float | None
    when: float
    size: int
    parts: tuple[Part, ...]
    note: str

    @property
    def names(self) -> list[str]:
        """Itself and each part of it, as `named` takes them."""
        inside = [part.folder.relative_to(self.folder).as_posix() for part in self.parts]
        return [self.name, *(f"{self.name}/{part}" for part in inside)]

    def as_json(self) -> dict[str, Any]:
        """Plain values, for other programs."""
        parts = [{**asdict(part), "folder": str(part.folder)} for part in self.parts]
        return {**asdict(self), "folder": str(self.folder), "when": _iso(self.when), "parts": parts}


def kept(folders: Folders) -> list[Kept]:
    """Every LoRA and unfinished run, in natural order."""
    if not folders.loras.is_dir():
        return []
    found = [p for p in folders.loras.iterdir() if p.is_dir() and loras.is_ours(p) and _is_a_run(p)]
    return [one(p, folders) for p in sorted(found, key=lambda p: natural_key(p.name))]


def one(folder: Path, folders: Folders) -> Kept:
    """A LoRA's folder, looked at."""
    log, state = read_json(folder / LOG, {}), _newest_state(folder)
    known = log or state
    return Kept(
        name=folder.name,
        folder=folder,
        standing="in progress" if is_in_progress(folder.name, folders) else loras.standing(folder),
        model=str(log.get("base_model_name") or _base_of(folder)),
        step=int(known.get("current_steps") or known.get("step") or 0),
        steps=int(log.get("steps") or 0),
        loss=_number(known.get("smoothed_loss", known.get("smoothed", known.get("loss")))),
        when=_when(folder, log),
        size=loras.size_on_disk(folder),
        parts=tuple(_parts(folder)),
        note=note(folder),
    )


def as_named(typed: str) -> str:
    """A name as it may be typed, with what a console puts between and behind folders."""
    return typed.replace("\\", "/").rstrip("/")


def named(name: str, folders: Folders) -> Path:
    """The folder that 'story' or 'story/checkpoint-40' means; a SavingError names near ones."""
    lora, _, part = as_named(name).partition("/")
    there = [p.name for p in folders.loras.iterdir() if p.is_dir()] if folders.loras.is_dir() else []
    if lora not in [name for name in there if not name.endswith(HIDDEN)]:
        raise SavingError(f"There is no LoRA {lora!r} in {folders.loras}.{_near(lora, there)}")
    folder = safe_paths.child(folders.loras, lora, "LoRA")
    if not part:
        return folder
    inside = {p.folder.relative_to(folder).as_posix(): p.folder for p in _parts(folder)}
    if part not in inside:
        listed = f" There are: {', '.join(inside)}." if inside else " It has none."
        raise SavingError(f"There is no checkpoint {part!r} of {lora!r}.{listed}")
    return inside[part]


def to_slim(folder: Path) -> list[Path]:
    """The whole checkpoints that a run can do without."""
    whole = loras.checkpoints(folder)
    best = next((c.step for c in whole if c.folder.name.endswith(BEST)), 0)
    return [c.folder for c in retention.too_many(whole, keep=1, best=best)]


def _is_a_run(folder: Path) -> bool:
    return loras.has_lora(folder) or (folder / PARAMETERS).is_file() or any(_parts(folder))


def _parts(folder: Path) -> Iterator[Part]:
    """By their steps, then backups, then what stood here before."""
    inside = _folders_in(folder)
    timed = folder / TIMED
    inside += _folders_in(timed) if timed in inside else []
    found = [Part(p.name, kind, checkpoint_step(p.name), 0, p) for p in inside if (kind := _kind(p))]
    order = ("checkpoint", "LoRA only", "backup", "earlier")
    for part in sorted(found, key=lambda p: (order.index(p.kind) // 2, p.step or 0, natural_key(p.name))):
        yield Part(part.name, part.kind, part.step, loras.size_on_disk(part.folder), part.folder)


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and not safe_paths.leads_out(path)]


def _kind(folder: Path) -> Kind | None:
    if folder.name.startswith(EARLIER):
        return "earlier"
    if checkpoint_step(folder.name) is None:
        return None
    if (folder / STATE).is_file():
        return "backup" if folder.parent.name == TIMED else "checkpoint"
    return "LoRA only" if loras.has_lora(folder) else None


def _newest_state(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint or backup knows of a run that left no log."""
    whole = loras.to_go_on_from(folder)
    return read_json(whole[-1].folder / STATE, {}) if whole else {}


def _base_of(folder: Path) -> str:
    """The name of the model that a LoRA, or a checkpoint of it, was made on."""
    for place in (folder, *(part.folder for part in _parts(folder))):
        if path := read_json(place / "adapter_config.json", {}).get("base_model_name_or_path"):
            return str(path).replace("\\", "/").rstrip("/").rpartition("/")[2]
    return ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _when(folder: Path, log: Mapping[str, Any]) -> float:
    """When the run ended, else when something was last written here."""
    try:
        return datetime.datetime.fromisoformat(str(log.get("ended_at"))).timestamp()
    except ValueError:
        return max((p.stat().st_mtime for p in (folder, *folder.iterdir())), default=0.0)


def _iso(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment).astimezone().isoformat(timespec="seconds")


def _near(name: str, there: list[str]) -> str:
    near = difflib.get_close_matches(name, [n for n in there if not n.endswith(HIDDEN)], n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
