"""Full checkpoints: written aside, renamed when whole, and read back to go on from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import SavingError
from ...core.files import as_json, moved_when_new, read_json, settle
from ...records.folder import PARAMETERS, STATE, RunFolder, loras
from ...settings import presets
from ...settings.definitions import SETTINGS, TrainingSettings
from ..plan import DATA, Blueprint

TRIES = 2
OF_THE_DATA = frozenset({"what", "text", "rows", "aside"})
ABOUT_THE_RUN = frozenset({"name", "if_exists", "seed"})


def is_about_files(error: Exception) -> bool:
    """Whether it is about writing: torch.save has no error of its own for that."""
    said = str(error)
    return (
        isinstance(error, OSError)
        or "PytorchStreamWriter" in said
        or "irectory" in said
        or "inline_container" in said
    )


@dataclass(frozen=True)
class RunState:
    """What a run knows beside what the Trainer keeps: its curve so far, and what it must not change."""

    step: int = 0
    smoothed: float | None = None
    graph: list[dict[str, Any]] = field(default_factory=list)
    unchangeable: dict[str, Any] = field(default_factory=dict)
    changes: list[Any] = field(default_factory=list)  # when the order changed over, as epoch and examples taken
    steering: dict[str, Any] = field(default_factory=dict)  # live settings, and what the rules remember


def sealed(folder: RunFolder, reason: str, state: RunState) -> Path:
    """The Trainer's checkpoint of this step, made whole and given its name; one folder a step."""
    written = folder.aside / f"checkpoint-{state.step}"
    (written / STATE).write_text(as_json(asdict(state)), encoding="utf-8")
    settle(written)
    target = folder.checkpoint(state.step, reason)
    target.parent.mkdir(parents=True, exist_ok=True)
    for earlier in loras.of_step(folder.path, state.step):
        loras.remove(earlier)
    return moved_when_new(written, target)


def state_of(checkpoint: Path) -> RunState:
    try:
        return RunState(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SavingError(f"{checkpoint} cannot be gone on from: {error}. Choose another checkpoint.") from error


def refuse_changes(state: RunState, run: Blueprint, checkpoint: Path) -> None:
    """A run may only go on as what it was; SavingError names what is different."""
    then = {**_asked_then(run), **state.unchangeable}
    changed = [
        f"{key} ({_what_changed(run)})" if key == DATA else f"{key} ({then.get(key)} then, {value} now)"
        for key, value in run.unchangeable().items()
        if then.get(key) != value
    ]
    if changed:
        raise SavingError(
            f"The run cannot go on from {checkpoint.name}: different are {', '.join(changed)}. "
            "Put them back, or start a new run."
        )


def _asked_then(run: Blueprint) -> dict[str, Any]:
    """What a checkpoint of an older version does not name was as the run was asked for, or as it always was."""
    return {**TrainingSettings().values(), **read_json(run.folder.path / PARAMETERS, {})}


def _what_changed(run: Blueprint) -> str:
    """The settings of the data that are different; where none is, the files are."""
    then, now = read_json(run.folder.path / PARAMETERS, {}), run.settings.values()
    apart = [key for key in presets.apart(then, now) if SETTINGS[key].section in OF_THE_DATA and key in then]
    changes = [
        f"{SETTINGS[key].label} {then[key]} then, {now[key]} now" for key in apart if key not in ABOUT_THE_RUN
    ]
    return "; ".join(changes) or "the files hold something else now"
