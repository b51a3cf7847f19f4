"""Run segments: the Trainer cannot change its plan, so it stops at a checkpoint and is started again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.host import Host
from ...core.jobs import Ended, Job, Note, Replanned
from ...settings.definitions import SETTINGS
from ...train_utils import plural
from ..lora import laid_aside, off
from ..plan import Blueprint, blueprint
from ..saving import RunState, state_of
from .finalize import Trained, copy_of, kept, thrown_away


@dataclass(frozen=True)
class Part:
    """One pass through the Trainer, from a checkpoint or the start of the run."""

    run: Blueprint
    state: RunState
    start: Path | None = None
    first: bool = True


def next_part(trained: Trained, host: Host, job: Job) -> Part | Ended:
    """Return the next segment, or the end of the run if the user stops it while the model is unloaded."""
    run, callback, restart = trained.run, trained.between, trained.between.steering.interlude
    assert restart is not None and callback.last_saved is not None
    if restart.frees and not _wait_unloaded(trained, host, job):
        if job.control.throwing_away:
            return thrown_away(run, trained.step)
        return kept(trained, copy_of(callback.last_saved), host.folders, job)
    extra_epochs = min(restart.more_epochs + job.control.take_epochs(), _epochs_left(run))
    segment = Part(_extend(run, extra_epochs), state_of(callback.last_saved), callback.last_saved, first=False)
    if extra_epochs:
        _log_plan(
            segment, callback.course.rates_used(), f"{extra_epochs:g} {plural(extra_epochs, 'epoch')} more", job
        )
    return segment


def _wait_unloaded(trained: Trained, host: Host, job: Job) -> bool:
    """Unload the model and wait; returns whether the run is resumed."""
    snapshot = laid_aside(host)
    host.unload()
    job.log.append(Note(text=f"Paused after step {trained.step}; the model is out of memory."))
    job.control.wait_while_pausing()
    if job.control.stopping:
        if snapshot.names:
            job.log.append(Note(text=f"The model stays out of memory, so {off(snapshot.names)}"))
        return False
    job.log.append(Note(text=f"Going on after step {trained.step}: the model is loaded again."))
    host.load_again(trained.run.card)
    snapshot.put_on(host)
    return True


def _epochs_left(run: Blueprint) -> float:
    """Return how many epochs can be added: settings above their maximum could not be read on a resume."""
    return (SETTINGS["epochs"].maximum or math.inf) - run.settings.steps.epochs


def _extend(run: Blueprint, extra_epochs: float) -> Blueprint:
    """Return the run with more epochs, in the folder that it has opened."""
    steps, plan = run.settings.steps, run.plan
    max_steps = plan.max_steps and plan.max_steps + round(extra_epochs * plan.steps_per_epoch)
    settings = replace(run.settings, steps=replace(steps, epochs=steps.epochs + extra_epochs, max_steps=max_steps))
    longer_plan = replace(plan, epochs=plan.epochs + extra_epochs, max_steps=max_steps)
    report = replace(run.data.report, steps=longer_plan.steps)
    data = replace(run.data, plan=longer_plan, report=report)
    return blueprint(settings, run.card, data, replace(run.folder, is_open=True))


def _log_plan(segment: Part, used_rates: list[float], reason: str, job: Job) -> None:
    """Log the learning rates of the longer run, with those of the finished steps unchanged."""
    rates = segment.run.rates(segment.state.steering["live"]["rate_factor"])
    job.log.append(Replanned(step=segment.state.step, steps=rates.steps, rates=rates.all(used_rates), why=reason))
