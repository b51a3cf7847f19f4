"""Copy a checkpoint to a LoRA of its own, with the settings and records up to its step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import SavingError
from ...core.files import PART_SUFFIX, atomic_write, safe_paths, write_json
from ...core.host import Folders
from ...settings.name_rules import name_problem
from ...train_utils import checkpoint_step
from . import loras
from .filenames import (
    DATA_SAMPLE,
    GRAPH,
    HIDDEN_SUFFIX,
    LOG,
    PARAMETERS,
    SAMPLES,
    TRAINING_PROMPT,
    run_folder_of,
)
from .run_files import log_entry
from .run_records import GraphRecord, read_graph, read_log, read_parameters, read_state

COPIED_RECORDS = (TRAINING_PROMPT, DATA_SAMPLE)
KEPT_ENTRIES = ("kept_step", "kept_because")
JUDGED_ENTRIES = ("verdict", "ended_because", "ended_at", "training_time", "phases", "context_gain")
"""What a log says about the run as a whole, which is not true of its earlier checkpoints."""


def copy_as_lora(checkpoint: Path, name: str, folders: Folders) -> Path:
    """Copy the LoRA of a checkpoint to `loras/NAME`; the checkpoint stays."""
    if problem := name_problem(name):
        raise SavingError(f"Name: {problem}")
    target = safe_paths.child(folders.loras, name, "Name")
    if target.exists():
        raise SavingError(f"Name: {name!r} already exists. Choose another name.")
    if not loras.has_lora(checkpoint):
        raise SavingError(f"{checkpoint} has no LoRA. Choose another checkpoint.")
    hidden = f"{name}{PART_SUFFIX}{HIDDEN_SUFFIX}"  # hidden until it is complete
    try:
        with atomic_write(target, hidden) as partial:
            _copy(checkpoint, partial, name)
    except OSError as error:
        raise SavingError(f"{target} can't be written: {error.strerror or error}.") from error
    return target


def _copy(checkpoint: Path, partial: Path, name: str) -> None:
    has_records = (checkpoint / PARAMETERS).is_file()  # a backup of a whole LoRA has its own
    run = checkpoint if has_records else run_folder_of(checkpoint)
    step = checkpoint_step(checkpoint.name) or (read_log(run).get("current_steps") or 0)
    partial.mkdir()
    files = [checkpoint / name for name in loras.ADAPTER_FILES] + [run / name for name in COPIED_RECORDS]
    for file in filter(Path.is_file, files):
        shutil.copy2(file, partial / file.name)
    entries = read_state(checkpoint).get("graph") or read_graph(run)
    graph = [entry for entry in entries if entry["current_steps"] <= step]
    write_json(partial / LOG, _log_values(checkpoint, run, step, graph))
    if graph:
        write_json(partial / GRAPH, graph)
    if parameters := read_parameters(run):
        write_json(partial / PARAMETERS, {**parameters, "name": name})
    if samples := _samples_until(run / SAMPLES, step):
        (partial / SAMPLES).write_text(samples, encoding="utf-8")


def _log_values(checkpoint: Path, run: Path, step: int, graph: Sequence[GraphRecord]) -> dict[str, Any]:
    """Return the log of the run, if there is one, with the figures of this step."""
    run_log: Mapping[str, Any] = read_log(run)
    is_last = run == checkpoint or step == run_log.get("current_steps")  # the last state of the run
    of_others = (() if run == checkpoint else KEPT_ENTRIES) + (() if is_last else JUDGED_ENTRIES)
    run_log = {key: value for key, value in run_log.items() if key not in of_others}
    if recalls := [recall.as_log() for recall in run_log.get("recall", []) if recall.step <= step]:
        run_log["recall"] = recalls
    else:
        run_log.pop("recall", None)
    last: Mapping[str, Any] = next((entry for entry in reversed(graph) if "loss" in entry), {})
    figures = {key: last[key] for key in ("loss", "smoothed_loss", "learning_rate", "epoch") if key in last}
    ended = run_log.get("ended", "stopped") if is_last else "stopped"
    lora = run.parent if run == checkpoint else run
    origin = f"{lora.name}/{checkpoint.relative_to(lora).as_posix()}"
    return log_entry({**run_log, **figures, "current_steps": step, "ended": ended, "made_from": origin})


def _samples_until(path: Path, step: int) -> str:
    """Return the lines of the samples up to this step."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return "".join(f"{line}\n" for line in lines if line.strip() and int(json.loads(line)["step"]) <= step)
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return ""
