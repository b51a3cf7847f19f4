"""Full checkpoints: written to a temporary folder, renamed when complete, and read back to resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ...core.errors import SavingError
from ...core.files import Count, dump_json, flush_to_disk, move_new_folder, read_json, read_record
from ...core.jobs import RecallMeasured
from ...records.folder import STATE, RunFolder, loras, run_files
from ...settings import presets
from ...settings.definitions import SETTINGS, TrainingSettings
from ..plan import DATA_KEY, RunPlan, Steering

WRITE_ATTEMPTS = 2
# torch.save has no exception type of its own for a failed write, only these words.
TORCH_SAVE_PHRASES = ("PytorchStreamWriter", "irectory", "inline_container", "iostream error")
# Settings that change which examples there are; a resumed run must have the same ones in the same order.
DATA_SECTIONS = frozenset({"what", "text", "rows", "preferences", "aside"})
RUN_KEYS = frozenset({"name", "if_exists", "seed", "data_seed"})

TRAINER_STATE = "trainer_state.json"


def is_write_error(error: Exception) -> bool:
    """Whether an error is about writing files."""
    return isinstance(error, (OSError, SafetensorError)) or any(
        phrase in str(error) for phrase in TORCH_SAVE_PHRASES
    )


@dataclass(frozen=True)
class RunState:
    """State of a run besides the Trainer's: its loss curve so far, and the values that must stay the same."""

    step: Count = 0
    smoothed: float | None = None
    graph: Sequence[run_files.GraphRecord] = field(default_factory=list)
    unchangeable: dict[str, Any] = field(default_factory=dict)
    changes: Sequence[tuple[Count, ...]] = ()  # when the batch order switched: epoch and examples taken
    steering: Steering | None = None
    recalls: Sequence[RecallMeasured] = ()
    drawn: Sequence[Count] = ()  # the epoch and its examples, where these depend on what the model knows


def finalize_checkpoint(folder: RunFolder, reason: str, state: RunState) -> Path:
    """Complete the Trainer's checkpoint of this step and rename it; only one folder per step remains."""
    temporary = folder.partial_folder / f"checkpoint-{state.step}"
    values = asdict(replace(state, graph=()))
    del values["graph"]  # the longest part: it is written entry by entry, so that no copy takes memory
    with (temporary / STATE).open("w", encoding="utf-8") as file:
        file.write(f'{dump_json(values)[:-1]}, "graph": [')
        for number, entry in enumerate(state.graph):
            file.write(f"{', ' if number else ''}{dump_json(entry)}")
        file.write("]}")
    flush_to_disk(temporary)  # before it is moved: after a power cut, a whole checkpoint lies in the place or none
    folders = loras.folders_of_step(folder.path, state.step)
    if any(each.name.endswith(run_files.MANUAL_SUFFIX) for each in folders):
        reason = "user"  # saved by hand in a pause, it stays protected
    target = folder.checkpoint(state.step, reason)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A checkpoint for another reason at the same step, such as 'best' after 'planned', is the same.
    for earlier in folders:
        loras.remove_checkpoint(earlier)
    return move_new_folder(temporary, target)


def load_run_state(checkpoint: Path) -> RunState:
    """Read the state to resume from; a damaged value is refused, because the run would not be the same."""
    damage: list[str] = []
    state = read_record(checkpoint / STATE, RunState, None, damage)
    # Without a step in its own file, the Trainer would begin at the first one.
    if state is None or "global_step" not in read_json(checkpoint / TRAINER_STATE, {}) or damage:
        reason = damage[0] if damage else f"{STATE} or {TRAINER_STATE} is missing or damaged."
        raise SavingError(f"The run can't resume from {checkpoint}: {reason} Choose another checkpoint.")
    return state


def refuse_changes(state: RunState, run: RunPlan, checkpoint: Path) -> None:
    """Raise SavingError with the differences unless the run is the same as the one of the checkpoint."""
    earlier, changed = earlier_settings(run.folder, state), list[str]()
    for key, value in run.unchangeable().items():
        if earlier.get(key) == value:
            continue
        words = f"was {earlier.get(key)} and is now {value}"
        if key == DATA_KEY:
            # A fingerprint says nothing to a reader, so the data settings that differ are named. If none does, the
            # files do.
            then, now = run_files.read_parameters(run.folder.path), run.settings.values()
            words = "; ".join(
                f"{SETTINGS[each].label} was {then[each]} and is now {now[each]}"
                for each in presets.differing_keys(then, now)
                if SETTINGS[each].section in DATA_SECTIONS and each in then and each not in RUN_KEYS
            )
            decided = "your decisions about pairs, " * run.settings.preferences.compares
            words = words or f"the files, {decided}or how Training PRO prepares them, have changed"
        changed.append(f"{key} ({words})")
    if changed:
        raise SavingError(
            f"The run can't resume from {checkpoint.name}, because something has changed: {', '.join(changed)}. "
            "Undo these changes, or press 'Copy to a new LoRA' in the Runs tab (runs --as) and continue that one."
        )


def earlier_settings(folder: RunFolder, state: RunState) -> dict[str, Any]:
    """Values of the checkpoint; what an older version did not save: from the run's settings, else the defaults."""
    return {**TrainingSettings().values(), **run_files.read_parameters(folder.path), **state.unchangeable}
