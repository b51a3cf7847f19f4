"""What a run leaves when it ends: the LoRA and its records in their folder, or what stood there before."""

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
from ...core.host import Folders, bare
from ...core.jobs import Ended, FromQueue, Job, Outcome, Stage, most_memory
from ...core.version import VERSION
from ...records.folder import GRAPH, LOG, PARAMETERS, PICTURE, RunFolder, loras, retention, training_log
from ...records.report import Mark, curve_png, judge_run, number, steps_of
from ...schedulers import described
from ...settings import files
from ...train_utils import checkpoint_step, duration
from ..compute import Ways
from ..lora import computing_type
from ..plan import Blueprint
from ..saving import Write, placed, record
from .callback import BetweenSteps


@dataclass(frozen=True)
class Trained:
    """A run whose last step is done, and what is known of its model; the model itself may be gone."""

    run: Blueprint
    between: BetweenSteps
    step: int
    about: dict[str, Any]
    broken: str = ""
    """Why it broke down before its end, if it did."""
    spoiled: bool = False
    """Whether the weights in memory are no numbers any more: then a checkpoint is kept."""


def kept(trained: Trained, write: Write, folders: Folders, job: Job) -> Ended:
    """The LoRA, which `write` puts into a folder, and the records of its run, on disk."""
    what = "the model" if trained.run.settings.lora.whole_model else "the LoRA"
    job.log.append(Stage(text=f"Saving {what}"))
    own, best = trained.run.folder, _better_one(trained)
    folder = placed(own, folders, copy_of(best.folder) if best else write, job)  # before all that can fail
    outcome = _outcome(trained)
    entry = _log_entry(trained, outcome) | _remarks(best) | _told_on_the_way(job)
    if folder is not own:
        _taken_along(own, folder, entry, job)
    kept_aside = trained.between.testing.kept_aside
    judged = judge_run(trained.between.course.graph, _saved(own), kept_aside, best.step if best else 0)
    _draw(trained, folder.path, folders, job)
    _write_records(trained, folder, entry | {"verdict": judged.as_log()}, job)
    if outcome == "finished" or not (trained.broken or trained.between.unsaved):  # else they are all there is
        folder.drop_backups()
        with suppress(OSError):  # the earlier part of a run that went on was spared until now
            saving = trained.between.steering.live.saving
            retention.thinned(folder.path, saving.keep_checkpoints, trained.between.steering.best.step)
    said = (trained.broken, _said(trained, what, outcome, folder, best), _warned(trained, best), judged.text)
    text = "\n".join(filter(None, said))
    over = trained.between.steering.time_over and not trained.broken
    return Ended(outcome=outcome, text=text, folder=folder.path, verdict=judged.kind, time_over=over)


def _said(trained: Trained, what: str, outcome: Outcome, folder: RunFolder, best: _Better | None) -> str:
    steering, planned = trained.between.steering, trained.run.plan.steps
    since = f", since {steering.stopped_by}" if steering.stopped_by else ""
    which = f": that of step {best.step}, {best.words}" if best else ""
    return (
        f"'{folder.name}' {outcome} at step {trained.step} of {planned}{since}, smoothed loss "
        f"{trained.between.course.smoothed:.4f}. {what[0].upper()}{what[1:]} is in {folder.path}{which}"
    )


def _warned(trained: Trained, best: _Better | None) -> str:
    """After a breakdown what is kept may be worse than nothing; the first step tells what nothing is."""
    losses = {entry["current_steps"]: number(entry["loss"]) for entry in steps_of(trained.between.course.graph)}
    step = best.step if best else trained.step
    first, then = losses.get(1, math.nan), losses.get(step, math.nan)
    if not trained.broken or not then > first:
        return ""
    return f"The loss was {first:.4f} at step 1 and is {then:.4f} at step {step}: the model is better without."


def _remarks(best: _Better | None) -> dict[str, Any]:
    """What the log says of the LoRA that was kept, and of what could not be done."""
    kept = {"kept_step": best.step, "kept_because": best.words} if best else {}
    if curve_png.is_possible():
        return kept
    return kept | {"picture": "not drawn: matplotlib is not installed (pip install matplotlib)"}


def _told_on_the_way(job: Job) -> dict[str, Any]:
    """What only the job's own log knows; nothing of a queue where somebody pressed Start."""
    events = job.log.since(0)
    begun = {"from_queue": True} if any(isinstance(event, FromQueue) for event in events) else {}
    return {"memory_at_most": most_memory(events) or None, **begun}


def _taken_along(own: RunFolder, place: RunFolder, entry: dict[str, Any], job: Job) -> None:
    """Records follow a LoRA that came to lie elsewhere; in its own folder the run counts as stopped."""
    record(lambda: own.moved_to(place), place.path, job.log)
    stopped = entry | {"ended": "stopped", "ended_because": f"its end is in {place.path}"}
    with suppress(OSError):  # it may be for this that it lies elsewhere
        write_json(own.path / LOG, training_log.log_entry(stopped))


def _outcome(trained: Trained) -> Outcome:
    if trained.broken:
        return "failed"
    done = trained.step >= trained.run.plan.steps or trained.between.steering.stopped_by
    return "finished" if done else "stopped"


def _draw(trained: Trained, path: Path, folders: Folders, job: Job) -> None:
    graph, title, cache = trained.between.course.graph, _title(trained.run), folders.training / "matplotlib"
    marks = _marks(trained.run.folder)
    record(lambda: curve_png.draw(graph, title, path / PICTURE, marks, cache=cache), path, job.log)


def _write_records(trained: Trained, folder: RunFolder, entry: dict[str, Any], job: Job) -> None:
    """The log comes last: it says that the run has ended, and that all that belongs to it is there."""
    path = folder.path
    record(lambda: write_json(path / GRAPH, trained.between.course.graph), path, job.log)
    if not (path / PARAMETERS).is_file():  # the folder is another one, or was gone
        record(lambda: write_json(path / PARAMETERS, files.as_file(trained.run.settings)), path, job.log)
    record(lambda: write_json(path / LOG, training_log.log_entry(entry)), path, job.log)


def thrown_away(run: Blueprint, step: int) -> Ended:
    """Nothing of the run is left."""
    folder = run.folder
    folder.discard()
    there = f" What stood in {folder.path} before is there again." if folder.path.exists() else ""
    return Ended(outcome="stopped", text=f"'{folder.name}' is thrown away after step {step}.{there}")


def copy_of(checkpoint: Path) -> Write:
    """Puts the LoRA of a checkpoint into a folder, as it is."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in loras.itself(checkpoint):
            shutil.copyfile(file, folder / file.name)

    return write


@dataclass(frozen=True)
class _Better:
    """A checkpoint that is better than the last step."""

    step: int
    folder: Path
    words: str


def _better_one(trained: Trained) -> _Better | None:
    """None where the last step is the best, where nothing was looked for, or where the checkpoint is gone."""
    if trained.spoiled:
        last = loras.with_weights(trained.run.folder.path)[-1]
        return _Better(checkpoint_step(last.name) or 0, last, "the last checkpoint whose weights are numbers")
    best = trained.between.steering.best
    there = [path for path in loras.of_step(trained.run.folder.path, best.step) if loras.has_weights(path)]
    if best.step in (0, trained.step) or not there:
        return None
    return _Better(best.step, there[0], f"the best by {best.measure} ({best.value:.4f})")


def about(run: Blueprint, model: Any, ways: Ways) -> dict[str, Any]:
    """What the log says of the model, for as long as it is there to be asked."""
    base = bare(model)
    return {
        "base_model_name": run.card.name,
        "base_model_class": type(base).__name__,
        "base_loaded_in_4bit": bool(getattr(base, "is_loaded_in_4bit", False)),
        "base_loaded_in_8bit": bool(getattr(base, "is_loaded_in_8bit", False)),
        "method": run.settings.lora.method,
        "projections": ", ".join(_layers(model)),
        "computed_in": computing_type(base),
        "device": torch.cuda.get_device_name() if base.device.type == "cuda" else platform.processor() or "CPU",
        **ways.as_log(),
    }


def _log_entry(trained: Trained, outcome: Outcome) -> dict[str, Any]:
    run, course, rates = trained.run, trained.between.course, trained.between.rates
    report, last = run.data.report, steps_of(course.graph)[-1]
    return {
        **trained.about,
        "loss": last["loss"],
        "learning_rate": last["learning_rate"],
        "epoch": last["epoch"],
        "current_steps": last["current_steps"],
        "ended": outcome,
        "ended_because": trained.between.steering.stopped_by,
        "ended_at": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "smoothed_loss": course.smoothed,
        "steps": run.plan.steps,
        "schedule": f"{run.settings.learning.schedule}: {described(run.phases)}",
        "learning_rate_factor": rates.factor,
        "loaded_as": run.card.loading,
        "resolved": dict(report.resolved),
        "data": report.as_json(),
        "seed": run.settings.what.seed,
        "data_fingerprint": run.data.examples.digest(),
        **_aside(trained),
        "training_time": duration(sum(e.get("seconds", 0) for e in course.graph)),
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "accelerate")}
        | {"python": platform.python_version(), "training_pro": VERSION},
    }


def _aside(trained: Trained) -> dict[str, Any]:
    """What was kept aside, and what context was worth on it before and after."""
    testing = trained.between.testing
    if not testing.kept_aside:
        return {}
    gains = [one.context_gain for one in testing.evaluations if one.context_gain is not None]
    gain = {"before": gains[0], "after": gains[-1]} if gains else None
    return {"kept_aside_fingerprint": testing.kept_aside, "context_gain": gain}


def _layers(model: Any) -> list[str]:
    """By their own names; PEFT's versions tell more or less of the path to each."""
    if not isinstance(model, PeftModel):
        return ["all of the model"]
    targets = model.peft_config[model.active_adapter].target_modules
    return [targets] if isinstance(targets, str) else sorted({name.rpartition(".")[2] for name in targets})


def _marks(folder: RunFolder) -> list[Mark]:
    """The checkpoints that are there."""
    return [Mark(step, name) for step, name in _saved(folder).items()]


def _saved(folder: RunFolder) -> dict[int, str]:
    """The checkpoints that are there, slimmed ones too, by their step."""
    if not folder.path.is_dir():
        return {}
    there = [path.name for path in folder.path.iterdir() if loras.has_weights(path)]
    steps = {name: step for name in there if (step := checkpoint_step(name)) is not None}
    return {step: name for name, step in sorted(steps.items(), key=lambda item: item[1])}


def _title(run: Blueprint) -> str:
    lora, learning = run.settings.lora, run.settings.learning
    what = f"rank {lora.rank}, alpha {lora.alpha:g}, strength {lora.strength:.3g}"
    return (
        f"{run.folder.name} on {run.card.name} - {'whole model' if run.settings.lora.whole_model else what}, "
        f"learning rate {learning.learning_rate:g} {learning.schedule}, cutoff {run.data.report.cutoff}"
    )
