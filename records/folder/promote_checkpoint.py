"""A checkpoint made a LoRA of its own: a copy under a new name, with what it was asked for and how far it came."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import SavingError
from ...core.files import read_json, safe_paths, write_json, written_whole
from ...core.host import Folders
from ...settings.name_rules import name_problem
from ...train_utils import checkpoint_step
from . import loras
from .filenames import DATA_SAMPLE, GRAPH, HIDDEN, LOG, PARAMETERS, PART, SAMPLES, STATE, TALKING, run_of
from .training_log import log_entry

ALONG = (TALKING, DATA_SAMPLE)


def as_lora(checkpoint: Path, name: str, folders: Folders) -> Path:
    """Copy the LoRA of a checkpoint to `loras/NAME`; the checkpoint stays."""
    if problem := name_problem(name):
        raise SavingError(f"Name: {problem}")
    target = safe_paths.child(folders.loras, name, "Name")
    if target.exists():
        raise SavingError(f"Name: {name!r} exists already. Choose another one.")
    if not loras.has_lora(checkpoint):
        raise SavingError(f"{checkpoint} holds no LoRA. Choose another checkpoint.")
    hidden = f"{name}{PART}{HIDDEN}"  # listed by nobody until it is whole
    try:
        with written_whole(target, hidden) as aside:
            _copy(checkpoint, aside, name)
    except OSError as error:
        raise SavingError(f"{target} cannot be written: {error.strerror or error}.") from error
    return target


def _copy(checkpoint: Path, aside: Path, name: str) -> None:
    run = _run_of(checkpoint)
    step = checkpoint_step(checkpoint.name) or int(read_json(run / LOG, {}).get("current_steps") or 0)
    aside.mkdir()
    for file in [checkpoint / f for f in loras.ITSELF] + [run / f for f in ALONG]:
        if file.is_file():
            shutil.copy2(file, aside / file.name)
    graph = [e for e in _graph(checkpoint, run) if int(e.get("current_steps") or 0) <= step]
    write_json(aside / LOG, _log(checkpoint, run, step, graph))
    if graph:
        write_json(aside / GRAPH, graph)
    if parameters := read_json(run / PARAMETERS, {}):
        write_json(aside / PARAMETERS, {**parameters, "name": name})
    if samples := _samples(run / SAMPLES, step):
        (aside / SAMPLES).write_text(samples, encoding="utf-8")


def _run_of(checkpoint: Path) -> Path:
    """Where the records of its run lie: with itself, where a whole LoRA was put aside."""
    if (checkpoint / PARAMETERS).is_file():
        return checkpoint
    return run_of(checkpoint)


def _graph(checkpoint: Path, run: Path) -> Sequence[Mapping[str, Any]]:
    """The curve: the checkpoint's own, else the whole run's."""
    found: Sequence[Mapping[str, Any]] = read_json(checkpoint / STATE, {}).get("graph") or read_json(
        run / GRAPH, []
    )
    return found


def _log(checkpoint: Path, run: Path, step: int, graph: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The run's log where there is one, with the figures of this step."""
    known: dict[str, Any] = read_json(run / LOG, {})
    steps = [entry for entry in graph if "loss" in entry]
    last = steps[-1] if steps else {}
    figures = {key: last[key] for key in ("loss", "smoothed_loss", "learning_rate", "epoch") if key in last}
    whole = run == checkpoint or step == known.get("current_steps")  # all that the run made
    ended = known.get("ended", "stopped") if whole else "stopped"
    made = {"current_steps": step, "ended": ended, "made_from": _origin(checkpoint, run)}
    return log_entry({**known, **figures, **made})


def _origin(checkpoint: Path, run: Path) -> str:
    lora = run.parent if run == checkpoint else run
    return f"{lora.name}/{checkpoint.relative_to(lora).as_posix()}"


def _samples(path: Path, step: int) -> str:
    """The answers that were given up to this step."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return "".join(f"{line}\n" for line in lines if line.strip() and int(json.loads(line)["step"]) <= step)
    except (OSError, ValueError, LookupError, TypeError):
        return ""
