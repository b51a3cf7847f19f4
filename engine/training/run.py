"""Training run: borrow the model, prepare the data, train and save a LoRA, return the model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from ...core import dist_env
from ...core.host import Host, card_of
from ...core.jobs import Ended, Job, Note, Planned, Stage
from ...data.report import plan_checks
from ...records.folder import choose_run_folder, in_progress, refuse_in_progress
from ...schedulers import described
from ...settings.definitions import TrainingSettings
from ..compute import BreakdownError, Ways, distributed, kept_on_the_card, told_where_memory_runs_out, tried
from ..lora import computing_type, counted, refuse_other_shape
from ..plan import Blueprint, blueprint
from ..saving import RunState, full_finetune, refuse_changes, state_of
from .callback import BetweenSteps
from .finalize import Trained, about, kept, thrown_away
from .finite_check import kept_after_breakdown
from .keep_awake import awake
from .run_segments import Part, next_part
from .sample_callback import Samples
from .setup import bare_model, prepared, ready_to_train
from .tracking import reporting
from .trainer import RunTrainer


def train(settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> Ended:
    """Train a LoRA by the settings, save it, and restore the model."""
    folder = choose_run_folder(settings, host.folders, resume)
    refuse_in_progress(folder.name, host.folders)
    if folder.begins_with is not None:
        refuse_other_shape(settings.lora, folder.begins_with)
    settings = settings.called(folder.name)
    card = counted(card_of(host), settings)
    run = blueprint(settings, card, prepared(settings, host, card, job), folder)
    if (finished := folder.finished()) and finished.planned >= run.plan.steps:
        return _already_finished(run, finished.steps)
    with in_progress(folder.name, host.folders), _keep_awake(settings, job):
        segment = _first_segment(run, job)
        with distributed.only_the_first_writes(folder) as process_folder:
            return _train_segments(replace(segment, run=replace(run, folder=process_folder)), host, job)


def _keep_awake(settings: TrainingSettings, job: Job) -> AbstractContextManager[None]:
    say = partial(_log_note, job)
    return awake(say) if settings.machine.keep_awake else nullcontext()


def _train_segments(segment: Part, host: Host, job: Job) -> Ended:
    while True:
        result = _train_segment(segment, host, job)
        if isinstance(result, Ended):
            return result
        next_state = next_part(result, host, job)
        if isinstance(next_state, Ended):
            return next_state
        segment = next_state


def _train_segment(segment: Part, host: Host, job: Job) -> Ended | Trained:
    """Train one segment; returns the end of the run, or the state from which the next segment continues."""
    _log_stage(job, "Getting the model")
    run = segment.run
    with (
        full_finetune.let_go_afterwards(run.settings, host, job),
        bare_model(host, job) as base,
        told_where_memory_runs_out(base.device, run.remedies),
        ready_to_train(base, run, job) as model,
    ):
        callback = BetweenSteps(run, segment.state, job.control, job.log)
        capabilities = tried(model, run.settings)
        _announce(segment, callback, base, capabilities, job)
        sample_callback = Samples(run, callback, host, job, segment.state.step)
        with reporting(run, callback, host.folders, job.log) as reporters:
            trainer = RunTrainer(
                run, model, capabilities, callback, host.folders.training, sample_callback, *reporters
            )
            divergence = _train(trainer, segment)
            step = trainer.state.global_step
        distributed.leave()
        if not dist_env.is_first():
            return Ended(outcome="stopped" if job.control.stopping else "finished", text="", folder=None)
        if job.control.throwing_away:
            return thrown_away(run, step)
        error_text, spoiled = (str(divergence), divergence.spoiled) if divergence else ("", False)
        trained = Trained(run, callback, step, about(run, model, capabilities), error_text, spoiled)
        if divergence:
            return kept_after_breakdown(trained, partial(full_finetune.write, run, model), host.folders, job)
        if callback.steering.interlude is None:
            ended = kept(trained, partial(full_finetune.write, run, model), host.folders, job)
            sample_callback.at_the_end(model, step, ended.folder or run.folder.path)
            return ended
    callback.release_model()
    return trained


def _train(trainer: RunTrainer, segment: Part) -> BreakdownError | None:
    """Run the Trainer; returns the divergence error if there is still something to save."""
    try:
        with kept_on_the_card(trainer.args.device):
            trainer.train(resume_from_checkpoint=str(segment.start) if segment.start else None)
        trainer.refuse_spoiled(trainer.state.global_step)  # the last step may have broken the weights
    except BreakdownError as error:
        if trainer.state.global_step == segment.state.step:
            raise
        return error
    return None


def _already_finished(run: Blueprint, done: int) -> Ended:
    run.folder.tidy()
    planned = run.plan.steps
    steps = (
        f"{done} of {planned} steps are done"
        if done <= planned
        else f"{done} steps are done, {planned} are asked for"
    )
    text = f"'{run.folder.name}' is finished: {steps}. For more, raise Epochs, or Steps where they are set."
    return Ended(outcome="finished", text=text, folder=run.folder.path)


def _first_segment(run: Blueprint, job: Job) -> Part:
    run.folder.refuse_without_start()
    checkpoint = run.folder.start
    if run.folder.begins_with is not None:
        _log_note(
            job, f"Training the LoRA '{run.folder.name}' further; what stands there goes into a backup first."
        )
    if checkpoint is None and run.folder.goes_on and run.folder.begins_with is None:
        _log_note(job, f"There is nothing of '{run.folder.name}' to go on from: the run starts at its beginning.")
    if checkpoint is None:
        return Part(run, RunState(unchangeable=run.unchangeable()))
    state = state_of(checkpoint.folder)
    refuse_changes(state, run, checkpoint.folder)
    job.log.append(Note(text=f"Going on from {checkpoint.folder.name} (step {state.step})."))
    return Part(run, state, checkpoint.folder)


def _announce(segment: Part, callback: BetweenSteps, base: Any, capabilities: Ways, job: Job) -> None:
    run, plan = segment.run, segment.run.plan
    if not segment.first:
        _log_stage(job, "Training")
        return
    job.log.append(
        Planned(
            name=run.folder.name,
            model=run.card.name,
            steps=callback.rates.steps,
            steps_per_epoch=plan.steps_per_epoch,
            first_step=segment.state.step,
            rates=callback.rates.all(callback.course.rates_used()),
            settings=run.settings.values(),
            earlier=tuple(dict(entry) for entry in segment.state.graph),
            disk=run.data.report.disk.words() if run.data.report.disk else "",
            evaluate_every=plan_checks.evaluate_every(run.settings, plan, run.data.kept_aside),
            answer_every=plan_checks.answer_every(run.settings, plan),
        )
    )
    job.log.append(
        Note(text=f"{run.settings.learning.schedule}: {described(run.phases)}. {computing_type(base)}.")
    )
    for note in run.data.report.notes if plan.processes > 1 else ():
        job.log.append(Note(text=note))
    for note in capabilities.notes():
        job.log.append(Note(text=note))
    _log_stage(job, "Training")


def _log_note(job: Job, text: str) -> None:
    job.log.append(Note(text=text))


def _log_stage(job: Job, text: str) -> None:
    job.log.append(Stage(text=text))
