"""End of a run: save the LoRA with its records, or restore what was in the folder before."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from ...core.errors import SavingError
from ...core.files import write_json
from ...core.host import Folders, unwrap_peft
from ...core.jobs import (
    Job,
    JobEnded,
    Note,
    Outcome,
    PhaseFigures,
    PhasesMeasured,
    RecallMeasured,
    Stage,
    StartedFromQueue,
    measure_phases,
    peak_memory_of,
)
from ...core.version import VERSION
from ...records.folder import GRAPH, GRAPH_IMAGE, LOG, RunFolder, loras, run_files
from ...records.report import Mark, curve_png, judge_run, measured_speeds, read_evaluations, read_steps
from ...schedulers import describe_phases
from ...train_utils import checkpoint_step, duration
from ..compute import DivergenceError, ModelCapabilities, is_finite_checkpoint
from ..inference import GENERAL_TOKENS
from ..lora import compute_dtype
from ..plan import RunController, RunPlan, StepLog
from ..saving import WriteFn, save_with_fallbacks, write_record


@dataclass(frozen=True)
class TrainingResult:
    """Result of a run segment after its last step; the model itself may already be unloaded."""

    run_plan: RunPlan
    step: int
    step_log: StepLog
    controller: RunController
    last_saved: Path | None
    save_error: str
    model_info: Mapping[str, Any]
    recalls: Sequence[RecallMeasured] = ()
    """The measurements of recall, in order."""
    divergence: DivergenceError | None = None

    @property
    def is_spoiled(self) -> bool:
        """Whether the weights in memory are NaN or infinite; then a checkpoint is saved instead."""
        return self.divergence is not None and self.divergence.spoiled


def save_and_record(trained: TrainingResult, write: WriteFn, folders: Folders, job: Job) -> JobEnded:
    """Save the LoRA, which `write` writes into a folder, and the records of its run.

    If a divergence has spoiled the weights, the last finite checkpoint is saved, or nothing.
    """
    run_plan, controller, run_folder = trained.run_plan, trained.controller, trained.run_plan.folder
    if trained.is_spoiled and not _remove_spoiled_checkpoints(run_folder, job):
        reason = "No checkpoint with valid weights was saved, so nothing from this run is kept."
        text = f"{trained.divergence}\n{reason}{_discard(run_folder)}"
        return JobEnded(outcome="failed", text=text, folder=None)
    noun = "the model" if run_plan.settings.lora.whole_model else "the LoRA"
    job.log.append(Stage(text=f"Saving {noun}"))
    best = _best_checkpoint(trained)
    # First, as all that follows may fail.
    folder = save_with_fallbacks(
        run_folder, folders, partial(loras.copy_weights, best.folder) if best else write, job
    )
    is_done = controller.is_over(trained.step)
    outcome: Outcome = "failed" if trained.divergence else "finished" if is_done else "stopped"
    checkpoints = _checkpoints_by_step(run_folder)
    entry = _log_entry(trained, outcome) | _closing_entries(trained, best, job)
    if folder is not run_folder:
        _move_records(run_folder, folder, entry, job)
    kept_step = best.step if best else 0
    verdict = judge_run(
        trained.step_log.graph,
        checkpoints,
        run_plan.validation_key,
        kept_step,
        recalls=trained.recalls,
        planned=0 if is_done or trained.divergence else run_plan.plan.steps,
    )
    _write_records(trained, folder, checkpoints, entry | {"verdict": verdict.as_log()}, folders, job)
    with suppress(OSError, SavingError):
        folder.recover()
        run_folder.recover()
    if outcome == "finished" or not (trained.divergence or trained.save_error):  # else only backups are left
        folder.remove_backups()
        with suppress(OSError, SavingError):  # checkpoints from before a resume are kept until now
            keep = controller.live.saving.keep_checkpoints
            loras.thin_checkpoints(folder.path, keep, controller.best.step)
    if phases := _phases(trained):
        job.log.append(PhasesMeasured(phases=phases))
    messages = (
        str(trained.divergence or ""),
        _end_message(trained, noun, outcome, folder, best),
        _divergence_warning(trained, best),
        verdict.text,
    )
    text, time_over = "\n".join(filter(None, messages)), controller.time_over and not trained.divergence
    return JobEnded(outcome=outcome, text=text, folder=folder.path, verdict=verdict.kind, time_over=time_over)


def _end_message(
    trained: TrainingResult, noun: str, outcome: Outcome, folder: RunFolder, best: _Checkpoint | None
) -> str:
    controller, planned = trained.controller, trained.run_plan.plan.steps
    reason = f" because {controller.stopped_by}" if controller.stopped_by else ""
    choice = f" from step {best.step}, {best.words}," if best else ""
    return (
        f"'{folder.name}' {outcome} at step {trained.step} of {planned}{reason}. The smoothed loss is "
        f"{trained.step_log.smoothed:.4f}. {noun[0].upper()}{noun[1:]}{choice} is in {folder.path}"
    )


def _divergence_warning(trained: TrainingResult, best: _Checkpoint | None) -> str:
    """Warn if a diverged run is saved with a higher loss than at its first step."""
    losses = {step.step: step.loss for step in read_steps(trained.step_log.graph)}
    step = best.step if best else trained.step
    first, last = losses.get(1, math.nan), losses.get(step, math.nan)
    if not trained.divergence or not last > first:
        return ""
    return (
        f"The loss was {first:.4f} at step 1 and is {last:.4f} at step {step}, so the model is better "
        "without this LoRA."
    )


def _closing_entries(trained: TrainingResult, best: _Checkpoint | None, job: Job) -> dict[str, Any]:
    """Return log entries on the chosen checkpoint, on a missing picture, and from events of the job."""
    events = job.log.since(0)
    entries: dict[str, Any] = {"kept_step": best.step, "kept_because": best.words} if best else {}
    if not curve_png.has_matplotlib():
        entries["picture"] = "not drawn: matplotlib is not installed (pip install matplotlib)"
    report = trained.run_plan.data.report
    evaluated = report.kept_aside.tokens if report.kept_aside else 0
    entries["speeds"] = measured_speeds(events, evaluated, report.recall_tokens + GENERAL_TOKENS)
    entries["memory_at_most"] = peak_memory_of(events) or None
    if any(isinstance(event, StartedFromQueue) for event in events):
        entries["from_queue"] = True
    return entries


def _move_records(run_folder: RunFolder, destination: RunFolder, entry: dict[str, Any], job: Job) -> None:
    """Move the records to a LoRA that was saved elsewhere; in its own folder the run counts as stopped."""
    write_record(lambda: run_folder.copy_records_to(destination), destination.path, job.log)
    stopped = entry | {"ended": "stopped", "ended_because": f"the LoRA was saved in {destination.path} instead"}
    with suppress(OSError):  # the own folder may be unwritable, which is why the LoRA is elsewhere
        write_json(run_folder.path / LOG, run_files.log_entry(stopped))


def _write_records(
    trained: TrainingResult,
    folder: RunFolder,
    checkpoints: dict[int, str],
    entry: dict[str, Any],
    folders: Folders,
    job: Job,
) -> None:
    """Write the records; the log comes last, since its presence means that the run is complete."""
    path, graph, title = folder.path, trained.step_log.graph, _title(trained.run_plan)
    marks, cache = [Mark(step, name) for step, name in checkpoints.items()], folders.training / "matplotlib"
    write_record(lambda: curve_png.draw_graph(graph, title, path / GRAPH_IMAGE, marks, cache=cache), path, job.log)
    write_record(lambda: write_json(path / GRAPH, list(graph)), path, job.log)
    write_record(lambda: folder.write_settings(trained.controller.settings), path, job.log)
    write_record(lambda: write_json(path / LOG, run_files.log_entry(entry)), path, job.log)


def _remove_spoiled_checkpoints(folder: RunFolder, job: Job) -> bool:
    """Remove checkpoints whose weights are not finite; returns whether one with weights is left."""
    for checkpoint in loras.checkpoints_with_weights(folder.path):
        if not is_finite_checkpoint(checkpoint):
            loras.remove_checkpoint(checkpoint)
            job.log.append(
                Note(text=f"{checkpoint.name} contains weights that are NaN or infinite, so it was deleted.")
            )
    return bool(loras.checkpoints_with_weights(folder.path))


def end_discarded_run(folder: RunFolder, step: int) -> JobEnded:
    restored = _discard(folder) if step > folder.start_step else ""  # before its first step it wrote nothing
    text = f"'{folder.name}' was discarded after step {step}.{restored}"
    return JobEnded(outcome="stopped", text=text)


def _discard(folder: RunFolder) -> str:
    """Discard the run and restore its folder; returns a sentence about it."""
    folder.discard()
    return f" The previous contents of {folder.path} were restored." if folder.path.exists() else ""


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint that is better than the last step."""

    step: int
    folder: Path
    words: str


def _best_checkpoint(trained: TrainingResult) -> _Checkpoint | None:
    """Return the checkpoint to save instead of the last step, or None."""
    path, best = trained.run_plan.folder.path, trained.controller.best
    if trained.is_spoiled:
        newest = loras.checkpoints_with_weights(path)[-1]
        step = checkpoint_step(newest.name) or 0
        return _Checkpoint(step, newest, "the last checkpoint with valid weights")
    existing = [folder for folder in loras.folders_of_step(path, best.step) if loras.has_weights(folder)]
    if best.step in (0, trained.step) or not existing:
        return None
    return _Checkpoint(best.step, existing[0], f"the one with the best {best.measure} ({best.value:.4f})")


def describe_model(run_plan: RunPlan, model: Any, ways: ModelCapabilities) -> dict[str, Any]:
    """Return the log entries on the model, while it is loaded."""
    base = unwrap_peft(model)
    return {
        "base_model_name": run_plan.card.name,
        "base_model_class": type(base).__name__,
        "base_loaded_in_4bit": bool(getattr(base, "is_loaded_in_4bit", False)),
        "base_loaded_in_8bit": bool(getattr(base, "is_loaded_in_8bit", False)),
        "method": run_plan.settings.lora.method,
        "projections": ", ".join(_target_names(model)),
        "computed_in": compute_dtype(base),
        "device": torch.cuda.get_device_name() if base.device.type == "cuda" else platform.processor() or "CPU",
        **ways.as_log(),
    }


def _log_entry(trained: TrainingResult, outcome: Outcome) -> dict[str, Any]:
    run_plan, step_log = trained.run_plan, trained.step_log
    report, last = run_plan.data.report, read_steps(step_log.graph)[-1]
    return {
        **trained.model_info,
        "loss": last.loss,
        "learning_rate": last.learning_rate,
        "epoch": last.epoch,
        "current_steps": last.step,
        "ended": outcome,
        "ended_because": trained.controller.stopped_by,
        "ended_at": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "smoothed_loss": step_log.smoothed,
        "steps": run_plan.plan.steps,
        "schedule": f"{run_plan.settings.learning.schedule}: {describe_phases(run_plan.phases)}",
        "live_changes": trained.controller.live_changes,
        "learning_rate_factor": trained.controller.rates.factor,
        "loaded_as": run_plan.card.loading,
        **({"tokenizer": run_plan.card.tokenizer_name} if run_plan.card.tokenizer_name else {}),
        **({"max_memory": run_plan.card.max_memory} if run_plan.card.max_memory else {}),
        "resolved": run_plan.data.resolved.as_json(),
        "data": report.as_json(),
        "seed": run_plan.settings.what.seed,
        "data_seed": run_plan.settings.what.order_seed,
        "data_fingerprint": run_plan.data.examples.digest(),
        **_validation_entries(trained),
        **_phase_entries(trained),
        **_recall_entries(trained),
        "training_time": duration(sum(e.get("seconds", 0) for e in step_log.graph)),
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "accelerate")}
        | {"python": platform.python_version(), "training_pro": VERSION},
    }


def _validation_entries(trained: TrainingResult) -> dict[str, Any]:
    """Return log entries on the validation split, with the context gain before and after."""
    if not (key := trained.run_plan.validation_key):
        return {}
    evaluations = read_evaluations(trained.step_log.graph, key)
    gains = [evaluation.context_gain for evaluation in evaluations if evaluation.context_gain is not None]
    gain = {"before": gains[0], "after": gains[-1]} if gains else None
    return {"kept_aside_fingerprint": key, "context_gain": gain}


def _phases(trained: TrainingResult) -> tuple[PhaseFigures, ...]:
    graph = trained.step_log.graph
    return measure_phases(read_steps(graph), read_evaluations(graph, trained.run_plan.validation_key))


def _phase_entries(trained: TrainingResult) -> dict[str, Any]:
    """Return a log entry on each phase of hybrid batching."""
    phases = _phases(trained)
    return {"phases": [phase.as_log() for phase in phases]} if phases else {}


def _recall_entries(trained: TrainingResult) -> dict[str, Any]:
    """Return a log entry on recall: all measurements, those of chapters only of the last one."""
    if not trained.recalls:
        return {}
    *earlier, last = trained.recalls
    return {"recall": [*(replace(event, parts=()).as_log() for event in earlier), last.as_log()]}


def _target_names(model: Any) -> list[str]:
    """Return the short names of the target modules; versions of PEFT give more or less of their paths."""
    if not isinstance(model, PeftModel):
        return ["all weights of the model"]
    targets = model.peft_config[model.active_adapter].target_modules
    return [targets] if isinstance(targets, str) else sorted({name.rpartition(".")[2] for name in targets})


def _checkpoints_by_step(folder: RunFolder) -> dict[int, str]:
    """Return the existing checkpoints by step, slim ones included."""
    if not folder.path.is_dir():
        return {}
    names = [path.name for path in folder.path.iterdir() if loras.has_weights(path)]
    return dict(sorted((step, name) for name in names if (step := checkpoint_step(name)) is not None))


def _title(run_plan: RunPlan) -> str:
    lora, learning = run_plan.settings.lora, run_plan.settings.learning
    shape = f"rank {lora.rank}, alpha {lora.effective_alpha:g}, scaling {lora.strength:.3g}"
    shape = "whole model" if lora.whole_model else shape
    return (
        f"{run_plan.folder.name} on {run_plan.card.name} - {shape}, "
        f"learning rate {learning.learning_rate:g} {learning.schedule}, cutoff {run_plan.data.resolved.cutoff}"
    )
