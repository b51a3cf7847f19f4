"""The LoRAs on disk: which there are, how their runs ended, and their checkpoints."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..core.errors import SavingError
from ..train_utils import checkpoint_step, natural_key

WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
ITSELF = ("adapter_config.json", *WEIGHTS)
WHOLE = ("model.safetensors", "model.safetensors.index.json")
OF_TRAINING = (
    "optimizer.",
    "scheduler.",
    "scaler.",
    "rng_state",
    "trainer_state.",
    "training_args.",
    "run_state.",
)
LOG_FILE = "training_log.json"
STATE_FILE = "run_state.json"
BACKUPS = "backup"

Standing = Literal["nothing", "finished", "stopped", "failed", "cut off", "made elsewhere"]


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, to go on from."""

    step: int
    folder: Path


def listed(loras: Path) -> list[str]:
    """The LoRAs that can be put on, in natural order."""
    if not loras.is_dir():
        return []
    names = [p.name for p in loras.iterdir() if has_lora(p) and not p.name.endswith("-np")]
    return sorted(names, key=natural_key)


def to_try(loras: Path) -> list[str]:
    """Everything that can be put on: the LoRAs, each followed by its checkpoints and backups."""
    if not loras.is_dir():
        return []
    runs = sorted((p for p in loras.iterdir() if p.is_dir() and not p.name.endswith("-np")), key=_by_name)
    places = [place for run in runs for place in (run, *_inside(run))]
    return [place.relative_to(loras).as_posix() for place in places if has_lora(place)]


def _inside(run: Path) -> list[Path]:
    return sorted((*run.glob("checkpoint-*"), *run.glob("backup/checkpoint-*")), key=_by_name)


def _by_name(path: Path) -> list[tuple[int, int, str]]:
    return natural_key(path.name)


def has_lora(folder: Path) -> bool:
    return any((folder / name).is_file() for name in WEIGHTS)


def has_weights(folder: Path) -> bool:
    """A LoRA, or a whole model."""
    return has_lora(folder) or any((folder / name).is_file() for name in WHOLE)


def itself(folder: Path) -> list[Path]:
    """The files of a checkpoint that are the LoRA, or the whole model, and not what training goes on from."""
    if has_lora(folder):
        return [folder / name for name in ITSELF if (folder / name).is_file()]
    return [p for p in folder.iterdir() if p.is_file() and not p.name.startswith(OF_TRAINING)]


def standing(folder: Path) -> Standing:
    """How the run that this folder is from ended."""
    if ended := _ended(folder):
        return ended
    if to_go_on_from(folder):
        return "cut off"
    if has_weights(folder):
        return "made elsewhere"
    return "nothing"


@dataclass(frozen=True)
class Finished:
    """How many steps a finished run took, and how many it was to take: a rule may have ended it before."""

    steps: int
    planned: int


def finished(folder: Path) -> Finished | None:
    """None for a run that is not finished."""
    if standing(folder) != "finished":
        return None
    log = _log(folder)
    steps = int(log.get("current_steps") or 0)
    return Finished(steps, int(log.get("steps") or steps))


def _ended(folder: Path) -> Standing | None:
    ended = _log(folder).get("ended")
    if ended == "finished":
        return "finished"
    if ended == "failed":
        return "failed"
    return "stopped" if ended == "stopped" else None


def _log(folder: Path) -> dict[str, Any]:
    try:
        log = json.loads((folder / LOG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return log if isinstance(log, dict) else {}


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The whole checkpoints of a run, oldest first; a folder only has its name when it is whole."""
    if not folder.is_dir():
        return []
    found = [
        Checkpoint(step, p)
        for p in folder.iterdir()
        if (step := checkpoint_step(p.name)) is not None and (p / STATE_FILE).is_file()
    ]
    return sorted(found, key=lambda c: (c.step, c.folder.name))


def backups(folder: Path) -> list[Checkpoint]:
    """The timed copies of a run, oldest first."""
    return checkpoints(folder / BACKUPS)


def to_go_on_from(folder: Path) -> list[Checkpoint]:
    """Everything that a run can go on from, oldest first."""
    return sorted([*backups(folder), *checkpoints(folder)], key=lambda c: c.step)


def of_step(folder: Path, step: int) -> list[Path]:
    """The folders of this step, whole or slimmed, backups too."""
    found = [*folder.glob(f"checkpoint-{step}*"), *folder.glob(f"{BACKUPS}/checkpoint-{step}*")]
    return [path for path in found if checkpoint_step(path.name) == step]


def with_weights(folder: Path) -> list[Path]:
    """All checkpoints, whole or slimmed, backups too, oldest first."""
    found = [p for p in (*folder.glob("checkpoint-*"), *folder.glob(f"{BACKUPS}/checkpoint-*")) if has_weights(p)]
    return sorted(found, key=lambda path: checkpoint_step(path.name) or 0)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; a kill in between leaves nothing that only looks whole."""
    (checkpoint / STATE_FILE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def slim(checkpoint: Path) -> int:
    """Reduce a checkpoint to the LoRA itself, to load and compare, not to go on from. The bytes that it freed."""
    if not has_weights(checkpoint):
        raise SavingError(f"{checkpoint} holds no LoRA, so nothing would be left of it. Delete it instead.")
    before = size_on_disk(checkpoint)
    # First what makes it whole: a kill in between leaves a LoRA, and nothing that only looks whole.
    (checkpoint / STATE_FILE).unlink(missing_ok=True)
    own = itself(checkpoint)
    for item in [p for p in checkpoint.iterdir() if p not in own]:
        shutil.rmtree(item) if item.is_dir() else item.unlink()
    return before - size_on_disk(checkpoint)


def size_on_disk(folder: Path) -> int:
    """The bytes of all files below a folder; one that goes away meanwhile counts for nothing."""
    return sum(_bytes(file) for file in folder.rglob("*"))


def _bytes(file: Path) -> int:
    try:
        return file.lstat().st_size if not file.is_dir() else 0
    except OSError:
        return 0


def free_name(loras: Path, name: str) -> str:
    """`name`, or with the first number behind it that is not taken."""
    number = 2
    while (loras / f"{name}-{number}").exists():
        number += 1
    return f"{name}-{number}"
