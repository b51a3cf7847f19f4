"""End of a run: save the LoRA with its records, or restore what was in the folder before."""

from __future__ import annotations

import datetime
import math
import platform
import shutil
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from ...core.files import write_json
from ...core.host import Folders, unwrap_peft
from ...core.jobs import Job, JobEnded, Outcome, Stage, StartedFromQueue, peak_memory_of
from ...core.version import VERSION
from ...records.folder import GRAPH, GRAPH_IMAGE, LOG, PARAMETERS, RunFolder, loras, retention, run_files
from ...records.report import Mark, curve_png, judge_run, number_or_nan, step_entries
from ...schedulers import describe_phases
from ...settings import files
from ...train_utils import checkpoint_step, duration
from ..compute import ModelCapabilities
from ..lora import compute_dtype
from ..plan import RunPlan
from ..saving import WriteFn, save_with_fallbacks, write_record
from .callback import RunCallback


@dataclass(frozen=True)
class TrainingResult:
    """Result of a run segment after its last step; the model itself may already be unloaded."""

    run: RunPlan
    callback: RunCallback
    step: int
    model_info: dict[str, Any]
    divergence: str = ""
    """Why training diverged, if it did."""
    spoiled: bool = False
    """Whether the weights in memory are NaN or infinite; then a checkpoint is saved instead."""


def save_and_record(trained: TrainingResult, write: WriteFn, folders: Folders, job: Job) -> JobEnded:
    """Save the LoRA, which `write` writes into a folder, and the records of its run."""
    noun = "the model" if trained.run.settings.lora.whole_model else "the LoRA"
    job.log.append(Stage(text=f"Saving {noun}"))
    run_folder, best = trained.run.folder, _best_checkpoint(trained)
    # First, as all that follows may fail.
    folder = save_with_fallbacks(run_folder, folders, checkpoint_copier(best.folder) if best else write, job)
    outcome = _outcome(trained)
    log_entry = _log_entry(trained, outcome) | _saved_entries(best) | _event_entries(job)
    if folder is not run_folder:
        _move_records(run_folder, folder, log_entry, job)
    kept_aside = trained.callback.eval_scheduler.kept_aside
    verdict = judge_run(
        trained.callback.course.graph, _checkpoints_by_step(run_folder), kept_aside, best.step if best else 0
    )
    _draw(trained, folder.path, folders, job)
    _write_records(trained, folder, log_entry | {"verdict": verdict.as_log()}, job)
    if outcome == "finished" or not (
        trained.divergence or trained.callback.save_error
    ):  # else only backups are left
        folder.remove_backups()
        with suppress(OSError):  # checkpoints from before a resume are kept until now
            saving = trained.callback.steering.live.saving
            retention.thin_checkpoints(folder.path, saving.keep_checkpoints, trained.callback.steering.best.step)
    messages = (
        trained.divergence,
        _end_message(trained, noun, outcome, folder, best),
        _divergence_warning(trained, best),
        verdict.text,
    )
    text = "\n".join(filter(None, messages))
    time_over = trained.callback.steering.time_over and not trained.divergence
    return JobEnded(outcome=outcome, text=text, folder=folder.path, verdict=verdict.kind, time_over=time_over)


def _end_message(
    trained: TrainingResult, noun: str, outcome: Outcome, folder: RunFolder, best: _Checkpoint | None
) -> str:
    steering, planned = trained.callback.steering, trained.run.plan.steps
    reason = f", since {steering.stopped_by}" if steering.stopped_by else ""
    choice = f": that of step {best.step}, {best.words}" if best else ""
    return (
        f"'{folder.name}' {outcome} at step {trained.step} of {planned}{reason}, smoothed loss "
        f"{trained.callback.course.smoothed:.4f}. {noun[0].upper()}{noun[1:]} is in {folder.path}{choice}"
    )


def _divergence_warning(trained: TrainingResult, best: _Checkpoint | None) -> str:
    """Warn if a diverged run is saved with a higher loss than at its first step."""
    losses = {
        entry["current_steps"]: number_or_nan(entry["loss"])
        for entry in step_entries(trained.callback.course.graph)
    }
    step = best.step if best else trained.step
    first, last = losses.get(1, math.nan), losses.get(step, math.nan)
    if not trained.divergence or not last > first:
        return ""
    return f"The loss was {first:.4f} at step 1 and is {last:.4f} at step {step}: the model is better without."


def _saved_entries(best: _Checkpoint | None) -> dict[str, Any]:
    """Return log entries on the checkpoint that was chosen, and on a picture that could not be drawn."""
    entries = {"kept_step": best.step, "kept_because": best.words} if best else {}
    if curve_png.has_matplotlib():
        return entries
    return entries | {"picture": "not drawn: matplotlib is not installed (pip install matplotlib)"}


def _event_entries(job: Job) -> dict[str, Any]:
    """Return log entries from the events of the job: peak memory, and whether a queue started it."""
    events = job.log.since(0)
    queued = {"from_queue": True} if any(isinstance(event, StartedFromQueue) for event in events) else {}
    return {"memory_at_most": peak_memory_of(events) or None, **queued}


def _move_records(run_folder: RunFolder, destination: RunFolder, entry: dict[str, Any], job: Job) -> None:
    """Move the records to a LoRA that was saved elsewhere; in its own folder the run counts as stopped."""
    write_record(lambda: run_folder.copy_records_to(destination), destination.path, job.log)
    stopped = entry | {"ended": "stopped", "ended_because": f"its end is in {destination.path}"}
    with suppress(OSError):  # the own folder may be unwritable, which is why the LoRA is elsewhere
        write_json(run_folder.path / LOG, run_files.log_entry(stopped))


def _outcome(trained: TrainingResult) -> Outcome:
    if trained.divergence:
        return "failed"
    done = trained.step >= trained.run.plan.steps or trained.callback.steering.stopped_by
    return "finished" if done else "stopped"


def _draw(trained: TrainingResult, path: Path, folders: Folders, job: Job) -> None:
    graph, title, cache = trained.callback.course.graph, _title(trained.run), folders.training / "matplotlib"
    marks = _marks(trained.run.folder)
    write_record(lambda: curve_png.draw_graph(graph, title, path / GRAPH_IMAGE, marks, cache=cache), path, job.log)


def _write_records(trained: TrainingResult, folder: RunFolder, entry: dict[str, Any], job: Job) -> None:
    """Write the records; the log comes last, since its presence means that the run is complete."""
    path = folder.path
    write_record(lambda: write_json(path / GRAPH, trained.callback.course.graph), path, job.log)
    if not (path / PARAMETERS).is_file():  # another folder, or deleted meanwhile
        write_record(lambda: write_json(path / PARAMETERS, files.as_file(trained.run.settings)), path, job.log)
    write_record(lambda: write_json(path / LOG, run_files.log_entry(entry)), path, job.log)


def end_discarded_run(run: RunPlan, step: int) -> JobEnded:
    """Discard the run and restore its folder."""
    folder = run.folder
    folder.discard()
    restored = f" What stood in {folder.path} before is there again." if folder.path.exists() else ""
    return JobEnded(outcome="stopped", text=f"'{folder.name}' is thrown away after step {step}.{restored}")


def checkpoint_copier(checkpoint: Path) -> WriteFn:
    """Return a function that copies the LoRA of a checkpoint into a folder."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in loras.weight_files(checkpoint):
            shutil.copyfile(file, folder / file.name)

    return write


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint that is better than the last step."""

    step: int
    folder: Path
    words: str


def _best_checkpoint(trained: TrainingResult) -> _Checkpoint | None:
    """Return the checkpoint to save instead of the last step, or None."""
    if trained.spoiled:
        newest = loras.checkpoints_with_weights(trained.run.folder.path)[-1]
        return _Checkpoint(
            checkpoint_step(newest.name) or 0, newest, "the last checkpoint whose weights are numbers"
        )
    best = trained.callback.steering.best
    existing = [
        path for path in loras.folders_of_step(trained.run.folder.path, best.step) if loras.has_weights(path)
    ]
    if best.step in (0, trained.step) or not existing:
        return None
    return _Checkpoint(best.step, existing[0], f"the best by {best.measure} ({best.value:.4f})")


def describe_model(run: RunPlan, model: Any, ways: ModelCapabilities) -> dict[str, Any]:
    """Return the log entries on the model, while it is loaded."""
    base = unwrap_peft(model)
    return {
        "base_model_name": run.card.name,
        "base_model_class": type(base).__name__,
        "base_loaded_in_4bit": bool(getattr(base, "is_loaded_in_4bit", False)),
        "base_loaded_in_8bit": bool(getattr(base, "is_loaded_in_8bit", False)),
        "method": run.settings.lora.method,
        "projections": ", ".join(_target_names(model)),
        "computed_in": compute_dtype(base),
        "device": torch.cuda.get_device_name() if base.device.type == "cuda" else platform.processor() or "CPU",
        **ways.as_log(),
    }


def _log_entry(trained: TrainingResult, outcome: Outcome) -> dict[str, Any]:
    run, course, rates = trained.run, trained.callback.course, trained.callback.rates
    report, last_entry = run.data.report, step_entries(course.graph)[-1]
    return {
        **trained.model_info,
        "loss": last_entry["loss"],
        "learning_rate": last_entry["learning_rate"],
        "epoch": last_entry["epoch"],
        "current_steps": last_entry["current_steps"],
        "ended": outcome,
        "ended_because": trained.callback.steering.stopped_by,
        "ended_at": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "smoothed_loss": course.smoothed,
        "steps": run.plan.steps,
        "schedule": f"{run.settings.learning.schedule}: {describe_phases(run.phases)}",
        "learning_rate_factor": rates.factor,
        "loaded_as": run.card.loading,
        "resolved": dict(report.resolved),
        "data": report.as_json(),
        "seed": run.settings.what.seed,
        "data_fingerprint": run.data.examples.digest(),
        **_validation_entries(trained),
        "training_time": duration(sum(e.get("seconds", 0) for e in course.graph)),
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "accelerate")}
        | {"python": platform.python_version(), "training_pro": VERSION},
    }


def _validation_entries(trained: TrainingResult) -> dict[str, Any]:
    """Return log entries on the validation split, with the context gain before and after."""
    testing = trained.callback.eval_scheduler
    if not testing.kept_aside:
        return {}
    gains = [evaluation.context_gain for evaluation in testing.evaluations if evaluation.context_gain is not None]
    gain = {"before": gains[0], "after": gains[-1]} if gains else None
    return {"kept_aside_fingerprint": testing.kept_aside, "context_gain": gain}


def _target_names(model: Any) -> list[str]:
    """Return the short names of the target modules; versions of PEFT give more or less of their paths."""
    if not isinstance(model, PeftModel):
        return ["all of the model"]
    targets = model.peft_config[model.active_adapter].target_modules
    return [targets] if isinstance(targets, str) else sorted({name.rpartition(".")[2] for name in targets})


def _marks(folder: RunFolder) -> list[Mark]:
    """Return the existing checkpoints as marks of the curve."""
    return [Mark(step, name) for step, name in _checkpoints_by_step(folder).items()]


def _checkpoints_by_step(folder: RunFolder) -> dict[int, str]:
    """Return the existing checkpoints by step, slim ones included."""
    if not folder.path.is_dir():
        return {}
    names = [path.name for path in folder.path.iterdir() if loras.has_weights(path)]
    steps = {name: step for name in names if (step := checkpoint_step(name)) is not None}
    return {step: name for name, step in sorted(steps.items(), key=lambda item: item[1])}


def _title(run: RunPlan) -> str:
    lora, learning = run.settings.lora, run.settings.learning
    shape = f"rank {lora.rank}, alpha {lora.alpha:g}, strength {lora.strength:.3g}"
    return (
        f"{run.folder.name} on {run.card.name} - {'whole model' if run.settings.lora.whole_model else shape}, "
        f"learning rate {learning.learning_rate:g} {learning.schedule}, cutoff {run.data.report.cutoff}"
    )
