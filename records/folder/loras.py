"""The LoRAs on disk: which there are, how their runs ended, and their checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...core.errors import SavingError
from ...core.files import cleared_away, moved, read_json, safe_paths
from ...train_utils import checkpoint_step, natural_key
from .filenames import LOG, PART, STATE, TIMED, earlier, is_hidden

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
    names = [p.name for p in loras.iterdir() if has_lora(p) and is_ours(p)]
    return sorted(names, key=natural_key)


def to_try(loras: Path) -> list[str]:
    """Everything that can be put on: the LoRAs, each followed by its checkpoints and backups."""
    if not loras.is_dir():
        return []
    runs = sorted((p for p in loras.iterdir() if p.is_dir() and is_ours(p)), key=_by_name)
    places = [place for run in runs for place in (run, *_inside(run))]
    return [p.relative_to(loras).as_posix() for p in places if has_lora(p) and not safe_paths.leads_out(p)]


def is_ours(folder: Path) -> bool:
    """Tell whether a folder among the LoRAs is listed: not one that is hidden, nor a link that leads out."""
    return not is_hidden(folder) and not safe_paths.leads_out(folder)


def _inside(run: Path) -> list[Path]:
    return sorted((*run.glob("checkpoint-*"), *run.glob(f"{TIMED}/checkpoint-*")), key=_by_name)


def _by_name(path: Path) -> list[tuple[int, int, str]]:
    return natural_key(path.name)


def named(name: str, loras: Path) -> Path:
    """Return the folder of a LoRA by its name, or of a checkpoint or backup of it (NAME/checkpoint-40)."""
    plain = name.replace("\\", "/").rstrip("/")
    folder = safe_paths.descendant(loras, plain, "LoRA")
    run = loras / plain.partition("/")[0]
    if not is_hidden(run) and has_lora(folder) and folder in (run, *_inside(run), *earlier(run)):
        return folder
    there = ", ".join(listed(loras)) or "none"
    raise SavingError(f"There is no LoRA {name!r} in {loras}. There are: {there}.")


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


def kind(folder: Path) -> Literal["LoRA", "model"]:
    """What a run makes, or made, in this folder."""
    return "model" if has_weights(folder) and not has_lora(folder) else "LoRA"


def what_stands(folder: Path) -> str:
    """In words: 'a finished LoRA'."""
    what = kind(folder)
    words: dict[Standing, str] = {
        "finished": f"a finished {what}",
        "stopped": f"the {what} of a run that was stopped",
        "failed": f"the {what} of a run that broke down",
        "cut off": "a run that was cut off",
        "made elsewhere": f"a {what} made elsewhere",
        "nothing": "a folder",
    }
    return words[standing(folder)]


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
    log: dict[str, Any] = read_json(folder / LOG, {})
    return log


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The whole checkpoints of a run, oldest first; a folder only has its name when it is whole."""
    if not folder.is_dir():
        return []
    found = [
        Checkpoint(step, p)
        for p in folder.iterdir()
        if (step := checkpoint_step(p.name)) is not None and (p / STATE).is_file()
    ]
    return sorted(found, key=lambda c: (c.step, c.folder.name))


def backups(folder: Path) -> list[Checkpoint]:
    """The timed copies of a run, oldest first."""
    return checkpoints(folder / TIMED)


def to_go_on_from(folder: Path) -> list[Checkpoint]:
    """Everything that a run can go on from, oldest first."""
    return sorted([*backups(folder), *checkpoints(folder)], key=lambda c: c.step)


def of_step(folder: Path, step: int) -> list[Path]:
    """The folders of this step, whole or slimmed, backups too."""
    found = [*folder.glob(f"checkpoint-{step}*"), *folder.glob(f"{TIMED}/checkpoint-{step}*")]
    return [path for path in found if checkpoint_step(path.name) == step]


def with_weights(folder: Path) -> list[Path]:
    """All checkpoints, whole or slimmed, backups too, oldest first."""
    found = [p for p in (*folder.glob("checkpoint-*"), *folder.glob(f"{TIMED}/checkpoint-*")) if has_weights(p)]
    return sorted(found, key=lambda path: checkpoint_step(path.name) or 0)


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint; it loses its name first, so that a kill in between leaves nothing that looks whole."""
    cleared_away(moved(checkpoint, checkpoint.with_name(f".{checkpoint.name}{PART}")))


def slim(checkpoint: Path) -> int:
    """Reduce a checkpoint to the LoRA itself, to load and compare, not to go on from. The bytes that it freed."""
    if not has_weights(checkpoint):
        raise SavingError(f"{checkpoint} holds no LoRA, so nothing would be left of it. Delete it instead.")
    before, state = size_on_disk(checkpoint), checkpoint / STATE
    going = state.with_name(state.name + PART)
    if state.is_file():  # what makes it whole: after a kill in between, its new name says what is to be finished
        moved(state, going)
    for item in [p for p in checkpoint.iterdir() if p != going and p.name.startswith(OF_TRAINING)]:
        item.unlink()
    going.unlink(missing_ok=True)
    return before - size_on_disk(checkpoint)


def finish_going(folder: Path) -> None:
    """Finish what a kill interrupted: a checkpoint half removed or half slimmed."""
    for parent in (folder, folder / TIMED):
        for half in parent.glob(f".checkpoint-*{PART}"):
            cleared_away(half)
        for going in parent.glob(f"checkpoint-*/{STATE}{PART}"):
            slim(going.parent)


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
