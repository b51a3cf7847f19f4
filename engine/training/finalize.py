"""End of a run: save the LoRA with its records, or restore what was in the folder before; and its report."""

from __future__ import annotations

import datetime
import hashlib
import math
import platform
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from ...core import dist_env, gguf_header
from ...core.engine import GgufRequest
from ...core.errors import SavingError, TrainingProError
from ...core.files import read_json, write_json
from ...core.host import Folders, Host, unwrap_peft
from ...core.jobs import (
    Advice,
    ExamAsked,
    Job,
    JobEnded,
    Note,
    PhasesMeasured,
    RecallMeasured,
    RunPlanned,
    Stage,
    StartedFromQueue,
    Step,
    events,
    measure_phases,
    peak_memory_of,
)
from ...core.version import VERSION, install_command
from ...records.folder import LOG, REPORT, RunFolder, loras, run_files
from ...records.report import Mark, charts, graph_entry, graph_file, judge_run, write_report
from ...schedulers import describe_phases
from ...settings.definitions import FULL_FINETUNE
from ...train_utils import checkpoint_step, duration
from ..compute import ModelCapabilities, failures
from ..inference import GENERAL_TOKENS
from ..lora import adapter, compute_dtype
from ..plan import RunController, RunPlan, StepLog
from ..saving import gguf_export, safe_save


@dataclass(frozen=True)
class TrainingResult:
    """Result of a pass through the Trainer; without references to the model, which may be unloaded by then."""

    run_plan: RunPlan
    step: int
    step_log: StepLog
    controller: RunController
    last_saved: Path | None
    save_error: str
    model_info: Mapping[str, Any]
    recalls: Sequence[RecallMeasured] = ()  # in order
    divergence: failures.DivergenceError | None = None


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint that is better than the last step."""

    step: int
    folder: Path
    words: str


def save_and_record(trained: TrainingResult, write: safe_save.WriteFn, host: Host, job: Job) -> JobEnded:
    """Save the LoRA, which `write` writes into a folder, and the records of its run."""
    run_plan, controller, run_folder = trained.run_plan, trained.controller, trained.run_plan.folder
    divergence, step_log = trained.divergence, trained.step_log
    if divergence and divergence.spoiled:  # the last finite checkpoint is saved, or nothing
        for checkpoint in loras.checkpoints_with_weights(run_folder.path):
            if not failures.is_finite_checkpoint(checkpoint):
                loras.remove_checkpoint(checkpoint)
                text = f"{checkpoint.name} contains weights that are NaN or infinite, so it was deleted."
                job.log.append(Note(text=text))
        if not loras.checkpoints_with_weights(run_folder.path):
            reason = "No checkpoint with valid weights was saved, so nothing from this run is kept."
            return JobEnded(outcome="failed", text=f"{divergence}\n{reason}{_discard(run_folder)}", folder=None)
    noun = "the model" if run_plan.settings.lora.whole_model else "the LoRA"
    job.log.append(Stage(text=f"Saving {noun}"))
    best = _best_checkpoint(trained)
    # First the weights, as all that follows may fail.
    folder = safe_save.save_with_fallbacks(
        run_folder, host.folders, partial(loras.copy_weights, best.folder) if best else write, job
    )
    is_done = controller.is_over(trained.step)
    outcome: events.Outcome = "failed" if divergence else "finished" if is_done else "stopped"
    saved = [path for path in loras.checkpoints_with_weights(run_folder.path) if path.parent == run_folder.path]
    checkpoints = {checkpoint_step(path.name) or 0: path.name for path in saved}  # without the timed backups
    entry = _log_entry(trained, outcome, best, job)
    if folder is not run_folder:
        # The records move to the LoRA that was saved elsewhere; in its own folder the run counts as stopped.
        safe_save.write_record(lambda: run_folder.copy_records_to(folder), folder.path, job.log)
        stopped = entry | {"ended": "stopped", "ended_because": f"the LoRA was saved in {folder.path} instead"}
        with suppress(OSError):  # it may be unwritable, which is why the LoRA is elsewhere
            write_json(run_folder.path / LOG, run_files.log_entry(stopped))
    steps, evaluations = step_log.steps(), step_log.evaluations(run_plan.validation_key)
    verdict = judge_run(
        steps,
        evaluations,
        checkpoints,
        best.step if best else 0,
        evaluates=bool(run_plan.validation_key),
        recalls=[event for event in trained.recalls if not best or event.step <= best.step],
        planned=0 if is_done or divergence else run_plan.plan.steps,
    )
    _write_records(trained, folder, checkpoints, entry | {"verdict": vars(verdict)}, host.folders, job)
    with suppress(OSError, SavingError):
        folder.recover()
        run_folder.recover()
    if outcome == "finished" or not (divergence or trained.save_error):  # else only backups are left
        folder.remove_backups()
        with suppress(OSError, SavingError):  # checkpoints from before a resume are kept until now
            keep = controller.live.saving.keep_checkpoints
            loras.thin_checkpoints(folder.path, keep, controller.best.step)
    if phases := measure_phases(steps, evaluations):
        job.log.append(PhasesMeasured(phases=phases))

    reason = f" because {controller.stopped_by}" if controller.stopped_by else ""
    choice = f" from step {best.step}, {best.words}," if best else ""
    messages = [
        str(divergence or ""),
        f"'{folder.name}' {outcome} at step {trained.step} of {run_plan.plan.steps}{reason}. The smoothed loss is "
        f"{step_log.smoothed:.4f}. {noun[0].upper()}{noun[1:]}{choice} is in {folder.path}",
    ]
    losses, kept_step = {step.step: step.loss for step in steps}, best.step if best else trained.step
    first, last = losses.get(1, math.nan), losses.get(kept_step, math.nan)
    if divergence and last > first:
        text = f"The loss was {first:.4f} at step 1 and is {last:.4f} at step {kept_step}"
        messages.append(f"{text}, so the model was better before this run.")
    text = "\n".join(filter(None, [*messages, verdict.text]))
    _save_as_gguf(folder.path, host, job)
    return JobEnded(outcome=outcome, text=text, folder=folder.path, verdict=verdict.kind)


def _best_checkpoint(trained: TrainingResult) -> _Checkpoint | None:
    """Return the checkpoint to save instead of the last step, or None."""
    path, best = trained.run_plan.folder.path, trained.controller.best
    if trained.divergence and trained.divergence.spoiled:
        newest = loras.checkpoints_with_weights(path)[-1]
        step = checkpoint_step(newest.name) or 0
        return _Checkpoint(step, newest, "the last checkpoint with valid weights")
    existing = [folder for folder in loras.folders_of_step(path, best.step) if loras.has_weights(folder)]
    if best.step in (0, trained.step) or not existing:
        return None
    return _Checkpoint(best.step, existing[0], f"the one with the best {best.measure} ({best.value:.4f})")


def _write_records(
    trained: TrainingResult,
    folder: RunFolder,
    checkpoints: dict[int, str],
    entry: dict[str, Any],
    folders: Folders,
    job: Job,
) -> None:
    """Write the records; the log comes last, since its presence means that the run is complete."""
    path, run_plan, graph = folder.path, trained.run_plan, trained.step_log.graph
    lora, learning = run_plan.settings.lora, run_plan.settings.learning
    shape = f"rank {lora.rank}, alpha {lora.effective_alpha:g}, scaling {lora.strength:.3g}"
    title = (
        f"{run_plan.folder.name} on {run_plan.card.name} - {'whole model' if lora.whole_model else shape}, "
        f"learning rate {learning.learning_rate:g} {learning.schedule}, cutoff {run_plan.data.resolved.cutoff}"
    )
    marks = [Mark(step, name) for step, name in checkpoints.items()]
    picture, cache = path / run_files.GRAPH_IMAGE, folders.training / "matplotlib"
    safe_save.write_record(lambda: charts.draw_graph(graph, title, picture, marks, cache), path, job.log)
    entries = [*map(graph_entry, graph)]
    safe_save.write_record(lambda: write_json(path / run_files.GRAPH, entries), path, job.log)
    if run_plan.data.examples.are_compared:
        decided = {"decisions": dict(run_plan.data.decisions)}
        safe_save.write_record(lambda: write_json(path / run_files.PAIRS, decided), path, job.log)
    earlier = next((event.earlier for event in job.log.since(0) if isinstance(event, RunPlanned)), ())
    if exams := [asdict(event) for event in (*earlier, *job.log.since(0)) if isinstance(event, ExamAsked)]:
        safe_save.write_record(lambda: write_json(path / run_files.EXAM, exams), path, job.log)
    safe_save.write_record(lambda: folder.write_settings(trained.controller.settings), path, job.log)
    safe_save.write_record(lambda: write_json(path / LOG, run_files.log_entry(entry)), path, job.log)


def end_discarded_run(folder: RunFolder, step: int) -> JobEnded:
    restored = _discard(folder) if step > folder.start_step else ""  # before its first step it wrote nothing
    return JobEnded(outcome="stopped", text=f"'{folder.name}' was discarded after step {step}.{restored}")


def _discard(folder: RunFolder) -> str:
    """Discard the run and restore its folder; returns a sentence about it."""
    folder.discard()
    return f" The previous contents of {folder.path} were restored." if folder.path.exists() else ""


def describe_model(run_plan: RunPlan, model: Any, capabilities: ModelCapabilities) -> dict[str, Any]:
    """Return the log entries on the model, while it is loaded."""
    base, names = unwrap_peft(model), ["all weights of the model"]
    if isinstance(model, PeftModel):
        targets = model.peft_config[model.active_adapter].target_modules
        # Only the last part of each name: versions of PEFT give more or less of the path.
        names = [targets] if isinstance(targets, str) else sorted({name.rpartition(".")[2] for name in targets})
    return {
        "base_model_name": run_plan.card.name,
        "base_model_class": type(base).__name__,
        **_describe_file(Path(str(base.name_or_path))),
        "base_loaded_in_4bit": bool(getattr(base, "is_loaded_in_4bit", False)),
        "base_loaded_in_8bit": bool(getattr(base, "is_loaded_in_8bit", False)),
        "method": run_plan.settings.lora.method,
        "objective": run_plan.settings.preferences.objective,
        "projections": ", ".join(names),
        "computed_in": compute_dtype(base),
        "device": torch.cuda.get_device_name() if base.device.type == "cuda" else platform.processor() or "CPU",
        **capabilities.as_log(),
    }


def _describe_file(file: Path) -> dict[str, str]:
    """Name and hash of a GGUF file that is the model; a file of that name may have other weights."""
    if file.suffix != ".gguf":
        return {}
    digest = hashlib.sha256()
    try:
        for part in gguf_header.file_parts(file):
            with part.open("rb") as stream:
                hashlib.file_digest(stream, lambda: digest)  # goes on with the one of the parts before
    except (OSError, ValueError):  # it was moved since it was loaded
        return {"base_gguf": file.name}
    return {"base_gguf": file.name, "base_sha256": digest.hexdigest()}


def _save_as_gguf(lora: Path, host: Host, job: Job) -> None:
    """Save a LoRA for llama.cpp too if its model is a GGUF file; where the format lacks something, say what."""
    if not str(read_json(lora / adapter.CONFIG, {}).get("base_model_name_or_path")).endswith(".gguf"):
        return
    try:
        file = gguf_export.export_gguf(GgufRequest(lora), host)
        job.log.append(Note(text=f"The LoRA for llama.cpp is in {file}"))
    except TrainingProError as error:
        job.log.append(Advice(text=f"There is no {lora.name}.gguf. {error}"))


def _log_entry(
    trained: TrainingResult, outcome: events.Outcome, best: _Checkpoint | None, job: Job
) -> dict[str, Any]:
    """Return what training_log.json says of the run, but for the verdict."""
    run_plan, step_log, events = trained.run_plan, trained.step_log, job.log.since(0)
    report, key = run_plan.data.report, run_plan.validation_key
    steps, evaluations = step_log.steps(), step_log.evaluations(key)
    last_step = graph_entry(steps[-1])
    entry = {
        **trained.model_info,
        **{each: last_step[each] for each in ("loss", "learning_rate", "epoch", "current_steps")},
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
    }
    if key:
        gains = [evaluation.context_gain for evaluation in evaluations if evaluation.context_gain is not None]
        entry["kept_aside_fingerprint"] = key
        entry["context_gain"] = {"before": gains[0], "after": gains[-1]} if gains else None
    if phases := measure_phases(steps, evaluations):
        entry["phases"] = [phase.as_log() for phase in phases]
    if trained.recalls:  # of chapters, only the last measurement
        *earlier, last = trained.recalls
        entry["recall"] = [*(replace(event, parts=()).as_log() for event in earlier), last.as_log()]
    versions = {name: version(name) for name in ("torch", "transformers", "peft", "accelerate")}
    entry["training_time"] = duration(sum(step.seconds for step in steps))
    entry["versions"] = versions | {"python": platform.python_version(), "training_pro": VERSION}
    if best:
        entry |= {"kept_step": best.step, "kept_because": best.words}
    if not charts.has_matplotlib():
        entry["picture"] = f"not drawn: matplotlib is not installed ({install_command('matplotlib')})"
    evaluated = report.kept_aside.tokens if report.kept_aside else 0
    entry["speeds"] = graph_file.measured_speeds(events, evaluated, report.recall_tokens + GENERAL_TOKENS)
    entry["memory_at_most"] = peak_memory_of(events) or None
    if any(isinstance(event, StartedFromQueue) for event in events):
        entry["from_queue"] = True
    return entry


def run_with_report(run: Callable[[], JobEnded], folders: Folders, job: Job) -> JobEnded:
    """Run, and write a report into the run folder, even if the run fails."""
    try:
        ended = replace(run(), at=time.time())  # sample answers are logged after the run's own end event
    except BaseException as error:
        is_ours = isinstance(error, TrainingProError)
        text = f"The run failed. {error}" if is_ours else f"The run failed. {type(error).__name__}: {error}"
        details = "" if is_ours else traceback.format_exc()
        _write_report(JobEnded(outcome="failed", text=text, details=details), folders, job)
        raise
    if ended.folder is not None:
        _write_report(ended, folders, job)
    return ended


def _write_report(ended: JobEnded, folders: Folders, job: Job) -> None:
    """Write the report; not of a run that ended before its first step and has no folder yet."""
    events = job.log.since(0)
    planned = next((event for event in events if isinstance(event, RunPlanned)), None)
    has_steps = any(isinstance(event, Step) for event in events)
    if planned is None or not (has_steps or ended.folder) or not dist_env.is_main_process():
        return
    whole_model = planned.settings.get("method") == FULL_FINETUNE
    folder = ended.folder or folders.output_folder(full_finetune=whole_model) / planned.name
    try:
        if not folder.is_dir():
            return
        write_report(folder, events, ended, folders)
        job.log.append(Note(text=f"Report: {folder / REPORT}"))
    except Exception as error:  # noqa: BLE001 - the run is already saved, and a report must not fail it
        job.log.append(Advice(text=f"{REPORT} could not be written: {error or type(error).__name__}"))
