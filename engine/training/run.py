"""Training run: borrow the model, prepare the data, train and save a LoRA, return the model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from ...core import dist_env
from ...core.host import Host, get_model_card
from ...core.jobs import Job, JobEnded, Note, RunPlanned, Stage
from ...data.report import plan_checks
from ...records.folder import choose_run_folder, hold_run_lock, refuse_in_progress
from ...schedulers import describe_phases
from ...settings.definitions import TrainingSettings
from ..compute import (
    DivergenceError,
    ModelCapabilities,
    distributed,
    explain_out_of_memory,
    limit_vram,
    probe_model,
)
from ..lora import add_param_count, compute_dtype, refuse_shape_mismatch
from ..plan import RunPlan, build_run_plan
from ..saving import RunState, full_finetune, load_run_state, refuse_changes
from .callback import RunCallback
from .finalize import TrainingResult, describe_model, end_discarded_run, save_and_record
from .finite_check import save_after_divergence
from .keep_awake import prevent_sleep
from .run_segments import RunSegment, next_segment
from .sample_callback import SampleCallback
from .setup import borrow_base_model, model_ready_to_train, prepare_data
from .tracking import attach_reporter
from .trainer import RunTrainer


def train(settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> JobEnded:
    """Train a LoRA by the settings, save it, and restore the model."""
    folder = choose_run_folder(settings, host.folders, resume)
    refuse_in_progress(folder.name, host.folders)
    if folder.initial_lora is not None:
        refuse_shape_mismatch(settings.lora, folder.initial_lora)
    settings = settings.with_name(folder.name)
    card = add_param_count(get_model_card(host), settings)
    run = build_run_plan(settings, card, prepare_data(settings, host, card, job), folder)
    if (finished := folder.finished()) and finished.planned >= run.plan.steps:
        return _already_finished(run, finished.steps)
    with hold_run_lock(folder.name, host.folders), _keep_awake(settings, job):
        segment = _first_segment(run, job)
        with distributed.process_run_folder(folder) as process_folder:
            return _train_segments(replace(segment, run=replace(run, folder=process_folder)), host, job)


def _keep_awake(settings: TrainingSettings, job: Job) -> AbstractContextManager[None]:
    say = partial(_log_note, job)
    return prevent_sleep(say) if settings.machine.keep_awake else nullcontext()


def _train_segments(segment: RunSegment, host: Host, job: Job) -> JobEnded:
    while True:
        result = _train_segment(segment, host, job)
        if isinstance(result, JobEnded):
            return result
        next_state = next_segment(result, host, job)
        if isinstance(next_state, JobEnded):
            return next_state
        segment = next_state


def _train_segment(segment: RunSegment, host: Host, job: Job) -> JobEnded | TrainingResult:
    """Train one segment; returns the end of the run, or the state from which the next segment continues."""
    _log_stage(job, "Getting the model")
    run = segment.run
    with (
        full_finetune.unload_if_trained(run.settings, host, job),
        borrow_base_model(host, job) as base,
        explain_out_of_memory(base.device, run.remedies),
        model_ready_to_train(base, run, job) as model,
    ):
        callback = RunCallback(run, segment.state, job.control, job.log)
        capabilities = probe_model(model, run.settings)
        _announce(segment, callback, base, capabilities, job)
        sample_callback = SampleCallback(run, callback, host, job, segment.state.step)
        with attach_reporter(run, callback, host.folders, job.log) as reporters:
            trainer = RunTrainer(
                run, model, capabilities, callback, host.folders.training, sample_callback, *reporters
            )
            divergence = _train(trainer, segment)
            step = trainer.state.global_step
        distributed.shutdown()
        if not dist_env.is_main_process():
            return JobEnded(outcome="stopped" if job.control.stopping else "finished", text="", folder=None)
        if job.control.throwing_away:
            return end_discarded_run(run, step)
        error_text, spoiled = (str(divergence), divergence.spoiled) if divergence else ("", False)
        trained = TrainingResult(
            run, callback, step, describe_model(run, model, capabilities), error_text, spoiled
        )
        if divergence:
            return save_after_divergence(
                trained, partial(full_finetune.save_trained_model, run, model), host.folders, job
            )
        if callback.steering.restart is None:
            ended = save_and_record(
                trained, partial(full_finetune.save_trained_model, run, model), host.folders, job
            )
            sample_callback.sample_at_end(model, step, ended.folder or run.folder.path)
            return ended
    callback.release_model()
    return trained


def _train(trainer: RunTrainer, segment: RunSegment) -> DivergenceError | None:
    """Run the Trainer; returns the divergence error if there is still something to save."""
    try:
        with limit_vram(trainer.args.device):
            trainer.train(resume_from_checkpoint=str(segment.start) if segment.start else None)
        trainer.refuse_broken_weights(trainer.state.global_step)  # the last step may have broken the weights
    except DivergenceError as error:
        if trainer.state.global_step == segment.state.step:
            raise
        return error
    return None


def _already_finished(run: RunPlan, done: int) -> JobEnded:
    run.folder.clean_up()
    planned = run.plan.steps
    steps = (
        f"{done} of {planned} steps are done"
        if done <= planned
        else f"{done} steps are done, {planned} are asked for"
    )
    text = f"'{run.folder.name}' is finished: {steps}. For more, raise Epochs, or Steps where they are set."
    return JobEnded(outcome="finished", text=text, folder=run.folder.path)


def _first_segment(run: RunPlan, job: Job) -> RunSegment:
    run.folder.refuse_without_start()
    checkpoint = run.folder.start
    if run.folder.initial_lora is not None:
        _log_note(
            job, f"Training the LoRA '{run.folder.name}' further; what stands there goes into a backup first."
        )
    if checkpoint is None and run.folder.resumes and run.folder.initial_lora is None:
        _log_note(job, f"There is nothing of '{run.folder.name}' to go on from: the run starts at its beginning.")
    if checkpoint is None:
        return RunSegment(run, RunState(unchangeable=run.unchangeable()))
    state = load_run_state(checkpoint.folder)
    refuse_changes(state, run, checkpoint.folder)
    job.log.append(Note(text=f"Going on from {checkpoint.folder.name} (step {state.step})."))
    return RunSegment(run, state, checkpoint.folder)


def _announce(
    segment: RunSegment, callback: RunCallback, base: Any, capabilities: ModelCapabilities, job: Job
) -> None:
    run, plan = segment.run, segment.run.plan
    if not segment.first:
        _log_stage(job, "Training")
        return
    job.log.append(
        RunPlanned(
            name=run.folder.name,
            model=run.card.name,
            steps=callback.rates.steps,
            steps_per_epoch=plan.steps_per_epoch,
            first_step=segment.state.step,
            rates=callback.rates.all(callback.course.rates_used()),
            settings=run.settings.values(),
            earlier=tuple(dict(entry) for entry in segment.state.graph),
            disk=run.data.report.disk.words() if run.data.report.disk else "",
            evaluate_every=plan_checks.evaluation_interval(run.settings, plan, run.data.kept_aside),
            answer_every=plan_checks.sample_interval(run.settings, plan),
        )
    )
    job.log.append(
        Note(text=f"{run.settings.learning.schedule}: {describe_phases(run.phases)}. {compute_dtype(base)}.")
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
