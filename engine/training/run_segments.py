"""Run segments: the Trainer cannot change its plan, so it stops at a checkpoint and is started again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...core.host import Host
from ...core.jobs import Job, JobEnded, Note, PlanChanged, Request, Stage, StageKind
from ...records.folder import loras
from ...settings.definitions import SETTINGS
from ...train_utils import plural
from ..lora import removed_message, snapshot_adapters
from ..plan import RunPlan, build_run_plan
from ..saving import RunState, load_run_state
from .finalize import TrainingResult, end_discarded_run, save_and_record


@dataclass(frozen=True)
class RunSegment:
    """One pass through the Trainer, from a checkpoint or the start of the run."""

    run_plan: RunPlan
    state: RunState
    start: Path | None = None
    first: bool = True


def next_segment(trained: TrainingResult, host: Host, job: Job) -> RunSegment | JobEnded:
    """Return the next segment, or the end of the run if the user stops it while the model is unloaded"""
    run_plan, checkpoint, restart = trained.run_plan, trained.last_saved, trained.controller.restart
    assert restart is not None and checkpoint is not None
    if restart.frees_gpu and not _wait_unloaded(trained, host, job):
        if job.control.asked(Request.DISCARD):
            return end_discarded_run(run_plan.folder, trained.step)
        return save_and_record(trained, partial(loras.copy_weights, checkpoint), host.folders, job)
    _, maximum = SETTINGS["epochs"].bounds or (0, math.inf)  # settings above it could not be read on a resume
    epochs = min(restart.more_epochs + job.control.take_epochs(), maximum - run_plan.settings.steps.epochs)
    segment = RunSegment(_extend(run_plan, epochs), load_run_state(checkpoint), checkpoint, first=False)
    if epochs:
        rates = segment.run_plan.rates(segment.state.steering["live"]["rate_factor"])
        all_rates, reason = rates.all(trained.step_log.rates_used()), f"{epochs:g} more {plural(epochs, 'epoch')}"
        job.log.append(PlanChanged(step=segment.state.step, steps=rates.steps, rates=all_rates, why=reason))
    return segment


def _wait_unloaded(trained: TrainingResult, host: Host, job: Job) -> bool:
    """Unload the model and wait; returns whether the run is resumed."""
    snapshot = snapshot_adapters(host)
    host.unload()
    text = f"Paused after step {trained.step} until you resume the run; the model is unloaded"
    job.log.append(Stage(text=text, kind=StageKind.PAUSED))
    job.control.wait_while_paused()
    if job.control.asked(Request.STOP):
        if snapshot.names:
            job.log.append(Note(text=f"The model stays unloaded, so {removed_message(snapshot.names)}"))
        return False
    job.log.append(Note(text=f"Resuming after step {trained.step}: loading the model again."))
    host.reload(trained.run_plan.card)
    snapshot.attach_lora(host)
    return True


def _extend(run_plan: RunPlan, extra_epochs: float) -> RunPlan:
    """Return the run with more epochs, in the folder that it has opened."""
    settings, plan = run_plan.settings, run_plan.plan
    max_steps = plan.max_steps and plan.max_steps + round(extra_epochs * plan.steps_per_epoch)
    steps = replace(settings.steps, epochs=settings.steps.epochs + extra_epochs, max_steps=max_steps)
    longer_plan = replace(plan, epochs=plan.epochs + extra_epochs, max_steps=max_steps)
    report = replace(run_plan.data.report, steps=longer_plan.steps)
    data = replace(run_plan.data, plan=longer_plan, report=report)
    return build_run_plan(
        replace(settings, steps=steps), run_plan.card, data, replace(run_plan.folder, is_open=True)
    )
