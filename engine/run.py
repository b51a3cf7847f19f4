"""The story of a run: borrow the model, prepare the data, train a LoRA, keep it, give the model back."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from transformers import set_seed

from ..core.errors import DataError, ModelError, SettingsError
from ..core.events import Advice, Ended, Note, Outcome, Planned, Stage
from ..core.host import Host, ModelCard
from ..core.session import Job
from ..core.writing import write_json
from ..data.assembly import TrainingData, prepare
from ..records import log, picture
from ..records.in_progress import in_progress
from ..records.run_folder import RunFolder, run_folder
from ..schedulers import described
from ..settings.declared import TrainingSettings
from ..train_utils import duration
from . import adapter
from .adapter import injected, lora_config, without_loras
from .blueprint import Blueprint, blueprint
from .callback import BetweenSteps
from .checkpoints import RunState, refuse_changes, state_of
from .optimizers import optimizer_name
from .precision import computing_type
from .targets import resolved
from .tokenizer import working_tokenizer
from .trainer import RunTrainer
from .trial import Ways, tried


def train(settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> Ended:
    """From what the user asked for to a LoRA on disk, and the model given back as it was."""
    optimizer_name(settings.learning.optimizer)  # before anything is read or loaded
    folder = run_folder(settings, host.folders, resume)
    card = _card(host)
    run = blueprint(settings, card, _prepared(settings, host, card, job), folder)
    if (done := folder.finished_steps()) >= run.plan.steps:
        return _nothing_left(run, done)
    state = _state_to_start_from(run, job)
    _tell(job, "Getting the model")
    with (
        in_progress(folder.name, host.folders),
        _bare_model(host, job) as base,
        _ready_to_train(base, run, job) as model,
    ):
        between = BetweenSteps(run, state, job.control, job.log)
        ways = tried(model, settings)
        _announce(run, state, base, ways, job)
        trained = RunTrainer(run, model, ways, between, host.folders.presets.parent).train(
            resume_from_checkpoint=str(folder.start.folder) if folder.start else None
        )
        if job.control.throwing_away:
            return _thrown_away(folder, trained.global_step)
        return _kept(run, model, ways, between, trained.global_step, job)


def _card(host: Host) -> ModelCard:
    """What the run is about; a model that its host has put to sleep is loaded again for it."""
    try:
        return host.card()
    except ModelError:
        return host.loaded().card


@contextmanager
def _bare_model(host: Host, job: Job) -> Iterator[Any]:
    """The host's model without LoRAs; what is on it is put back afterwards, and that is said."""
    with without_loras(host) as (base, names):
        if names:
            job.log.append(Note(text=f"{', '.join(names)} is taken off for this run and put back after it."))
        yield base


def _prepared(settings: TrainingSettings, host: Host, card: ModelCard, job: Job) -> TrainingData:
    """The same as Check does; DataError where Check would say 'not ready'."""
    data = prepare(
        settings,
        host.folders,
        card,
        working_tokenizer(card.tokenizer, host.chat_template()),
        lambda text, share: job.log.append(Stage(text=text, share=share)),
        machine=host.memory(),
    )
    if data.report.problems:
        raise DataError("\n".join(data.report.problems))
    for advice in data.report.advice:
        job.log.append(Advice(text=advice))
    return data


def _nothing_left(run: Blueprint, done: int) -> Ended:
    text = (
        f"'{run.folder.name}' is finished: {done} of {run.plan.steps} steps are done. "
        "For more, raise Epochs or Steps at most."
    )
    return Ended(outcome="finished", text=text, folder=run.folder.path)


def _state_to_start_from(run: Blueprint, job: Job) -> RunState:
    run.folder.refuse_without_start()
    start = run.folder.start
    if start is None:
        return RunState(unchangeable=run.unchangeable())
    state = state_of(start.folder)
    refuse_changes(state, run.unchangeable(), start.folder)
    job.log.append(Note(text=f"Going on from {start.folder.name} (step {state.step})."))
    return state


@contextmanager
def _ready_to_train(base: Any, run: Blueprint, job: Job) -> Iterator[Any]:
    set_seed(run.settings.what.seed)
    if _checkpoints_gradients(run.settings, base):
        enable = getattr(base, "activation_checkpointing_enable", base.gradient_checkpointing_enable)
        enable({"use_reentrant": False})  # its name changes within transformers 5
        base.enable_input_require_grads()
    base.config.use_cache = False
    targets = resolved(run.settings.lora.targets, base)
    job.log.append(Note(text=f"The LoRA sits on {targets.words}."))
    with injected(base, lora_config(run.settings.lora, base, targets)) as model:
        yield model


def _checkpoints_gradients(settings: TrainingSettings, base: Any) -> bool:
    asked = settings.machine.gradient_checkpointing
    if asked != "off" and not getattr(base, "supports_gradient_checkpointing", False):
        if asked == "on":
            raise SettingsError(["Gradient checkpointing: this model does not support it. Choose off."])
        return False
    return asked == "on" or (asked == "auto" and base.device.type == "cuda")


def _announce(run: Blueprint, state: RunState, base: Any, ways: Ways, job: Job) -> None:
    plan = run.plan
    job.log.append(
        Planned(
            name=run.folder.name,
            model=run.card.name,
            steps=plan.steps,
            steps_per_epoch=plan.steps_per_epoch,
            first_step=state.step,
            rates=tuple(run.rate(s) for s in range(1, plan.steps + 1)),
            settings=run.settings.values(),
        )
    )
    job.log.append(
        Note(text=f"{run.settings.learning.schedule}: {described(run.phases)}. {computing_type(base)}.")
    )
    for note in ways.notes():
        job.log.append(Note(text=note))
    _tell(job, "Training")


def _kept(run: Blueprint, model: Any, ways: Ways, between: BetweenSteps, step: int, job: Job) -> Ended:
    """The LoRA and the records of its run, on disk."""
    _tell(job, "Saving the LoRA")
    folder: RunFolder = run.folder
    done = step >= run.plan.steps or bool(between.stopped_by)
    outcome: Outcome = "finished" if done else "stopped"
    entry = _log_entry(run, model, between, outcome) | ways.as_log()
    adapter.write(model, folder.aside)
    folder.keep(folder.aside)
    write_json(folder.path / "training_graph.json", between.graph)
    if not picture.draw(between.graph, _title(run), folder.path / "training_graph.png"):
        entry["picture"] = "not drawn: matplotlib is not installed (pip install matplotlib)"
    write_json(folder.path / "training_log.json", log.log_entry(entry))
    words = f"{outcome} at step {step} of {run.plan.steps}" + (
        between.stopped_by and f", since {between.stopped_by}"
    )
    text = f"'{folder.name}' {words}, smoothed loss {between.smoothed:.4f}. The LoRA is in {folder.path}"
    return Ended(outcome=outcome, text=text, folder=folder.path)


def _thrown_away(folder: RunFolder, step: int) -> Ended:
    folder.discard()
    there = f" What stood in {folder.path} before is there again." if folder.path.exists() else ""
    return Ended(outcome="stopped", text=f"'{folder.name}' is thrown away after step {step}.{there}")


def _log_entry(run: Blueprint, model: Any, between: BetweenSteps, outcome: Outcome) -> dict[str, Any]:
    base, last = model.get_base_model(), between.graph[-1]
    report = run.data.report
    return {
        "base_model_name": run.card.name,
        "base_model_class": type(base).__name__,
        "base_loaded_in_4bit": bool(getattr(base, "is_loaded_in_4bit", False)),
        "base_loaded_in_8bit": bool(getattr(base, "is_loaded_in_8bit", False)),
        "projections": ", ".join(_layers(model)),
        "loss": last["loss"],
        "learning_rate": last["learning_rate"],
        "epoch": last["epoch"],
        "current_steps": last["current_steps"],
        "ended": outcome,
        "ended_at": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "smoothed_loss": between.smoothed,
        "steps": run.plan.steps,
        "schedule": f"{run.settings.learning.schedule}: {described(run.phases)}",
        "computed_in": computing_type(base),
        "loaded_as": run.card.loading,
        "resolved": dict(report.resolved),
        "data": report.as_json(),
        "data_fingerprint": run.data.examples.digest(),
        "training_time": duration(sum(e["seconds"] for e in between.graph)),
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "accelerate")}
        | {"python": platform.python_version()},
        "device": torch.cuda.get_device_name() if base.device.type == "cuda" else platform.processor() or "CPU",
    }


def _layers(model: Any) -> list[str]:
    """By their own names; PEFT's versions tell more or less of the path to each."""
    targets = model.peft_config[model.active_adapter].target_modules
    return [targets] if isinstance(targets, str) else sorted({name.rpartition(".")[2] for name in targets})


def _title(run: Blueprint) -> str:
    s = run.settings
    return (
        f"{run.folder.name} on {run.card.name} - rank {s.lora.rank}, alpha {s.lora.alpha:g}, "
        f"learning rate {s.learning.learning_rate:g} {s.learning.schedule}, cutoff {run.data.report.cutoff}"
    )


def _tell(job: Job, text: str) -> None:
    job.log.append(Stage(text=text))
