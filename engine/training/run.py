"""Training run: borrow the model, prepare the data, train and save a LoRA, return the model."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ...core import dist_env
from ...core.errors import DataError
from ...core.host import Folders, Host, get_model_card
from ...core.jobs import (
    Advice,
    CheckpointSaved,
    Job,
    JobEnded,
    Note,
    Request,
    RunPlanned,
    SampleGenerated,
    Stage,
    StageKind,
)
from ...data.dataset_index import find_datasets
from ...data.examples import find_example_datasets
from ...data.report import evaluation_interval, sample_interval
from ...records.folder import choose_run_folder, hold_run_lock, loras, read_samples, refuse_in_progress
from ...records.remote import remote_control
from ...records.report import read_evaluations, read_steps, write_missing_report
from ...schedulers import describe_phases
from ...settings.definitions import TrainingSettings
from ...train_utils import plural
from ..compute import (
    DivergenceError,
    MachineMonitor,
    ModelCapabilities,
    StepSums,
    distributed,
    explain_out_of_memory,
    limit_vram,
    out_of_memory_error,
    probe_model,
    watch_peers,
)
from ..inference import make_meters
from ..lora import add_param_count, compute_dtype, refuse_shape_mismatch
from ..plan import RunPlan, build_run_plan
from ..saving import RunState, full_finetune, load_run_state, refuse_changes
from .callback import RunCallback
from .finalize import TrainingResult, describe_model, end_discarded_run, save_and_record
from .keep_awake import prevent_sleep
from .run_segments import RunSegment, next_segment
from .sample_callback import SampleCallback
from .setup import borrow_base_model, draw_seeds, model_ready_to_train, prepare_data
from .tracking import attach_reporters
from .trainer import RunTrainer


def train(settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> JobEnded:
    """Train a LoRA by the settings, save it, and restore the model."""
    requested, folder = settings, choose_run_folder(settings, host.folders, resume)
    refuse_in_progress(folder.name, host.folders)
    if folder.initial_lora is not None:
        refuse_shape_mismatch(settings.lora, folder.initial_lora)
    if folder.start is not None:
        _warn_about_examples(settings, host.folders, job)
    settings = draw_seeds(settings.with_name(folder.name), folder, job)
    card = add_param_count(get_model_card(host), settings)
    run_plan = build_run_plan(settings, card, prepare_data(settings, host, card, job), folder)
    if (finished := folder.finished()) and finished.planned >= run_plan.plan.steps:
        return _already_finished(run_plan, finished.steps, host.folders)
    keep_awake = prevent_sleep(partial(_log_note, job)) if settings.machine.keep_awake else nullcontext()
    folders = host.folders
    with hold_run_lock(folder.name, folders), remote_control(folder.name, job, folders), keep_awake:
        # Data were prepared without the lock, and another program may have finished a run of this name since then.
        if choose_run_folder(settings, folders, resume, holds_lock=True) == folder:
            segment = _first_segment(run_plan, job)
            with distributed.process_run_folder(folder) as process_folder:
                run_plan = replace(run_plan, folder=process_folder)
                return _train_segments(replace(segment, run_plan=run_plan), host, job)
    _log_note(job, f"Another program has trained {folder.name!r} in the meantime.")
    return train(requested, host, job, resume=resume)


def _warn_about_examples(settings: TrainingSettings, folders: Folders, job: Job) -> None:
    """Say which datasets of a resumed run are examples, because a file of the same name may have been removed."""
    with suppress(DataError):  # said when the data are read
        for dataset in find_datasets((*settings.what.data, *settings.aside.eval_data), folders):
            if dataset.example:
                text = (
                    f"{dataset.name} is not in {folders.datasets}, so the included example with that name is used."
                )
                job.log.append(Advice(text=text))


def _train_segments(segment: RunSegment, host: Host, job: Job) -> JobEnded:
    while True:
        result = _train_segment(segment, host, job)
        following = result if isinstance(result, JobEnded) else next_segment(result, host, job)
        if isinstance(following, JobEnded):
            return following
        segment = following


def _train_segment(segment: RunSegment, host: Host, job: Job) -> JobEnded | TrainingResult:
    """Train one segment; returns the end of the run, or the state from which the next segment continues."""
    _log_stage(job, "Preparing the model")
    run_plan = segment.run_plan
    with (
        full_finetune.unload_if_trained(run_plan.settings, host, job),
        borrow_base_model(host, job) as base,
        distributed.explain_lost_process(),
        explain_out_of_memory(lambda: out_of_memory_error(base.device, run_plan.remedies)),
        model_ready_to_train(base, run_plan, job) as model,
    ):
        capabilities = probe_model(model, run_plan.settings)
        sums = StepSums(find_example_datasets(run_plan.data.examples, run_plan.settings))
        meters = make_meters(run_plan, model, capabilities, job)
        callback = RunCallback(segment, meters, sums, MachineMonitor(base.device, job.log), job)
        samples = SampleCallback(run_plan, callback.step_log, host, job, segment.state.step)
        _announce(segment, callback, compute_dtype(base), capabilities, job)
        with watch_peers(), attach_reporters(run_plan, callback.step_log, host.folders, job.log) as reporters:
            trainer = RunTrainer(
                run_plan, model, capabilities, sums, callback, host.folders.training, samples, *reporters
            )
            divergence = _train(trainer, segment)
            step = trainer.state.global_step
            distributed.shutdown()
        if not dist_env.is_main_process():
            return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text="")
        if job.control.asked(Request.DISCARD):
            return end_discarded_run(run_plan.folder, step)
        result = TrainingResult(
            run_plan,
            step,
            callback.step_log,
            callback.controller,
            callback.last_saved,
            callback.save_error,
            describe_model(run_plan, model, capabilities),
            callback.recalls.measured,
            divergence,
        )
        is_restarted = callback.controller.restart is not None and divergence is None
        return result if is_restarted else _save(result, model, samples, host, job)


def _train(trainer: RunTrainer, segment: RunSegment) -> DivergenceError | None:
    """Run the Trainer; returns the divergence error if there is still something to save."""
    try:
        with limit_vram(trainer.args.device):
            trainer.train(resume_from_checkpoint=str(segment.start) if segment.start else None)
        trainer.refuse_broken_weights()  # the last step may have broken the weights
    except DivergenceError as error:
        if segment.first and trainer.state.global_step == segment.state.step:
            raise
        return error
    return None


def _save(result: TrainingResult, model: Any, samples: SampleCallback, host: Host, job: Job) -> JobEnded:
    write = partial(full_finetune.save_trained_model, result.run_plan, model)
    ended = save_and_record(result, write, host.folders, job)
    if result.divergence is None:
        samples.sample_at_end(model, result.step, ended.folder or result.run_plan.folder.path)
    return ended


def _already_finished(run_plan: RunPlan, done: int, folders: Folders) -> JobEnded:
    run_plan.folder.recover()
    write_missing_report(run_plan.folder.path, folders)
    planned = run_plan.plan.steps
    steps = f"{done} of {planned} {plural(planned, 'step is', 'steps are')} done"
    if done > planned:
        steps = f"{done} steps are done, but the settings ask for {planned}"
    text = (
        f"'{run_plan.folder.name}' is finished: {steps}. To train more, increase Epochs, or Max "
        "steps if it is set."
    )
    return JobEnded(outcome="finished", text=text, folder=run_plan.folder.path)


def _first_segment(run_plan: RunPlan, job: Job) -> RunSegment:
    folder, checkpoint = run_plan.folder, run_plan.folder.start
    folder.refuse_without_start()
    if folder.initial_lora is not None:
        _log_note(
            job,
            f"Continuing to train '{folder.name}'. Training PRO first moves the LoRA's current files to a backup "
            "folder.",
        )
    elif checkpoint is None and folder.resumes:
        _log_note(job, f"There is nothing to resume for '{folder.name}', so the run starts from the beginning.")
    if checkpoint is None:
        return RunSegment(run_plan, RunState(unchangeable=run_plan.unchangeable()))
    state = load_run_state(checkpoint.folder)
    refuse_changes(state, run_plan, checkpoint.folder)
    _log_note(job, f"Resuming from {checkpoint.folder.name} (step {state.step}).")
    return RunSegment(run_plan, state, checkpoint.folder)


def _announce(
    segment: RunSegment, callback: RunCallback, dtype: str, capabilities: ModelCapabilities, job: Job
) -> None:
    """Log the run plan, unless this is a later segment of the run."""
    run_plan, rates = segment.run_plan, callback.controller.rates
    plan, settings, data = run_plan.plan, run_plan.settings, run_plan.data
    if segment.first:
        job.log.append(
            RunPlanned(
                name=run_plan.folder.name,
                model=run_plan.card.name,
                steps=rates.steps,
                steps_per_epoch=plan.steps_per_epoch,
                first_step=segment.state.step,
                rates=rates.all(callback.step_log.rates_used()),
                settings=callback.controller.settings.values(),
                earlier=(
                    *read_steps(segment.state.graph),
                    *read_evaluations(segment.state.graph),
                    *segment.state.recalls,
                    *_earlier_samples(segment),
                    *_earlier_checkpoints(segment),
                ),
                disk=data.report.disk.words() if data.report.disk else "",
                evaluate_every=evaluation_interval(settings, plan, run_plan.data.validation),
                answer_every=sample_interval(settings, plan),
                recall_every=callback.recalls.every if data.report.recall_tokens else 0,
            )
        )
        phases = describe_phases(run_plan.phases)
        schedule = f"Learning rate schedule {settings.learning.schedule}: {phases}. Calculations use {dtype}."
        notes_on_processes = data.report.notes if plan.processes > 1 else ()
        for note in (schedule, *notes_on_processes, *capabilities.notes()):
            _log_note(job, note)
    job.log.append(Stage(text="Training", kind=StageKind.TRAINING))


def _earlier_samples(segment: RunSegment) -> list[SampleGenerated]:
    first = segment.state.step
    return [sample for sample in read_samples(segment.run_plan.folder.path) if first and sample.step <= first]


def _earlier_checkpoints(segment: RunSegment) -> list[CheckpointSaved]:
    saved = loras.checkpoints(segment.run_plan.folder.path)
    earlier = (checkpoint for checkpoint in saved if checkpoint.step <= segment.state.step)
    return [CheckpointSaved(step=each.step, folder=each.folder, reason="") for each in earlier]


def _log_note(job: Job, text: str) -> None:
    job.log.append(Note(text=text))


def _log_stage(job: Job, text: str) -> None:
    job.log.append(Stage(text=text))
