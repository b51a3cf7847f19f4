"""The parts of a run: HF's loop cannot change its plan, so it ends with a checkpoint and goes on anew."""

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
    """From a checkpoint, or the beginning, to the end of HF's loop."""

    run: Blueprint
    state: RunState
    start: Path | None = None
    first: bool = True


def next_part(trained: Trained, host: Host, job: Job) -> Part | Ended:
    """What follows on a part that is not the last; or the end, where the user stops while the memory is free."""
    run, between, wanted = trained.run, trained.between, trained.between.steering.interlude
    assert wanted is not None and between.last_saved is not None
    if wanted.frees and not _waited(trained, host, job):
        if job.control.throwing_away:
            return thrown_away(run, trained.step)
        return kept(trained, copy_of(between.last_saved), host.folders, job)
    more = min(wanted.more_epochs + job.control.take_epochs(), _most(run))
    part = Part(_longer(run, more), state_of(between.last_saved), between.last_saved, first=False)
    if more:
        _tell_plan(part, between.course.rates_used(), f"{more:g} {plural(more, 'epoch')} more", job)
    return part


def _waited(trained: Trained, host: Host, job: Job) -> bool:
    """Whether the run goes on, after a pause in which its model is out of memory."""
    on = laid_aside(host)
    host.unload()
    job.log.append(Note(text=f"Paused after step {trained.step}; the model is out of memory."))
    job.control.wait_while_pausing()
    if job.control.stopping:
        if on.names:
            job.log.append(Note(text=f"The model stays out of memory, so {off(on.names)}"))
        return False
    job.log.append(Note(text=f"Going on after step {trained.step}: the model is loaded again."))
    host.load_again(trained.run.card)
    on.put_on(host)
    return True


def _most(run: Blueprint) -> float:
    """So many epochs more: beyond that its settings could not be read when it is gone on with."""
    return (SETTINGS["epochs"].maximum or math.inf) - run.settings.steps.epochs


def _longer(run: Blueprint, more: float) -> Blueprint:
    """The same run with so many epochs more, in the folder that it has opened."""
    steps, plan = run.settings.steps, run.plan
    most = plan.max_steps and plan.max_steps + round(more * plan.steps_per_epoch)
    asked = replace(run.settings, steps=replace(steps, epochs=steps.epochs + more, max_steps=most))
    longer = replace(plan, epochs=plan.epochs + more, max_steps=most)
    report = replace(run.data.report, steps=longer.steps)
    data = replace(run.data, plan=longer, report=report)
    return blueprint(asked, run.card, data, replace(run.folder, is_open=True))


def _tell_plan(part: Part, used: list[float], why: str, job: Job) -> None:
    """The rates of the longer run, those that are done as they were."""
    rates = part.run.rates(part.state.steering["live"]["rate_factor"])
    job.log.append(Replanned(step=part.state.step, steps=rates.steps, rates=rates.all(used), why=why))
