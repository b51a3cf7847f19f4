"""Training run: borrow the model, prepare the data, train and save a LoRA, return the model."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...core import dist_env
from ...core.errors import DataError
from ...core.host import Folders, Host, get_model_card
from ...core.jobs import (
    Advice,
    CheckpointSaved,
    Job,
    JobEnded,
    Note,
    PlanChanged,
    Request,
    RunPlanned,
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
from ...settings.definitions import SETTINGS, TrainingSettings
from ...train_utils import plural
from ..compute import (
    DivergenceError,
    MachineMonitor,
    ModelCapabilities,
    Objective,
    StepSums,
    distributed,
    explain_out_of_memory,
    limit_vram,
    out_of_memory_error,
    probe_model,
)
from ..lora import add_param_count, compute_dtype, refuse_shape_mismatch, removed_message, snapshot_adapters
from ..plan import RunPlan, build_run_plan
from ..saving import RunState, load_run_state, refuse_changes, safe_save
from .callback import RunCallback, RunOver, SampleCallback
from .finalize import TrainingResult, describe_model, end_discarded_run, save_and_record
from .outside import attach_reporters, prevent_sleep
from .setup import borrow_base_model, draw_seeds, model_ready_to_train, prepare_data
from .trainer import RunTrainer


def train(settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> JobEnded:
    """Train a LoRA by the settings, save it, and restore the model."""
    # Whatever can be refused is refused here, before a lock is taken and before the model is touched.
    requested, folders = settings, host.folders
    folder = choose_run_folder(settings, folders, resume)
    refuse_in_progress(folder.name, folders)
    if folder.initial_lora is not None:
        refuse_shape_mismatch(settings.lora, folder.initial_lora)
    if folder.start is not None:
        _warn_about_examples(settings, folders, job)
    settings = draw_seeds(settings.with_name(folder.name), folder, job)
    card = add_param_count(get_model_card(host), settings)
    run_plan = build_run_plan(settings, card, prepare_data(settings, host, card, job), folder)
    if (finished := folder.finished()) and finished.planned >= run_plan.plan.steps:
        return _already_finished(run_plan, finished.steps, folders)

    keep_awake: AbstractContextManager[None] = nullcontext()
    if settings.machine.keep_awake:
        keep_awake = prevent_sleep(lambda text: job.log.append(Note(text=text)))
    # The lock says to other programs that this run is in progress; the remote control takes their requests.
    with hold_run_lock(folder.name, folders), remote_control(folder.name, job, folders), keep_awake:
        # Data were prepared without the lock, and another program may have finished a run of this name since then.
        if choose_run_folder(settings, folders, resume, holds_lock=True) == folder:
            state, start = _starting_point(run_plan, job)
            with distributed.process_run_folder(folder) as process_folder:
                run_plan = replace(run_plan, folder=process_folder)
                # The Trainer can't change its number of steps. So when the user adds epochs, or a pause frees the
                # GPU, it stops at a full checkpoint, and a new one continues from there.
                result = _train_segment(run_plan, state, start, host, job, first=True)
                while isinstance(result, TrainingResult):
                    start, restart = result.last_saved, result.controller.restart
                    assert start is not None and restart is not None
                    if restart.frees_gpu and not _wait_unloaded(result, host, job):
                        if job.control.asked(Request.DISCARD):
                            return end_discarded_run(run_plan.folder, result.step)
                        return save_and_record(result, partial(loras.copy_weights, start), folders, job)
                    state = load_run_state(start)
                    run_plan = _add_epochs(result, state, restart.more_epochs + job.control.take_epochs(), job)
                    result = _train_segment(run_plan, state, start, host, job, first=False)
                return result
    job.log.append(Note(text=f"Another program has trained {folder.name!r} in the meantime."))
    return train(requested, host, job, resume=resume)


def _train_segment(
    run_plan: RunPlan, state: RunState, start: Path | None, host: Host, job: Job, *, first: bool
) -> JobEnded | TrainingResult:
    """Train from a checkpoint or the beginning; returns the end of the run, or what the next segment needs."""
    job.log.append(Stage(text="Preparing the model"))
    settings = run_plan.settings
    with (
        safe_save.unload_if_trained(settings, host, job),
        borrow_base_model(host, job) as base,
        distributed.explain_lost_process(),
        explain_out_of_memory(lambda: out_of_memory_error(base.device, run_plan.remedies)),
        model_ready_to_train(base, run_plan, job) as model,
    ):
        capabilities = probe_model(model, settings)
        objective = Objective.training(capabilities, settings.learning, model)
        sums = StepSums(find_example_datasets(run_plan.data.examples, settings))
        monitor = MachineMonitor(base.device, job.log)
        callback = RunCallback(run_plan, state, start, model, capabilities, sums, monitor, job)
        samples = SampleCallback(run_plan, callback.step_log, host, job, state.step)
        if first:
            _announce(run_plan, state, callback, compute_dtype(base), capabilities, job)
        job.log.append(Stage(text="Training", kind=StageKind.TRAINING))

        # Whatever the Trainer and its callback need was created above and is passed in, and the result has no
        # reference to the model, so that it is free once this function has returned.
        divergence: DivergenceError | None = None
        with attach_reporters(run_plan, callback.step_log, host.folders, job.log) as reporters:
            trainer = RunTrainer(
                run_plan, model, objective, sums, callback, host.folders.training, samples, *reporters
            )
            try:
                with limit_vram(trainer.args.device), suppress(RunOver):
                    trainer.train(resume_from_checkpoint=str(start) if start else None)
                callback.measure_at_end(trainer.state.global_step)
                trainer.refuse_broken_weights()  # the last step may have broken the weights
            except DivergenceError as error:
                if first and trainer.state.global_step == state.step:
                    raise  # there is nothing to save
                divergence = error
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
            callback.measurements.recalls,
            divergence,
        )
        if callback.controller.restart is not None and divergence is None:
            return result
        write = partial(safe_save.save_trained_model, run_plan, model)
        ended = save_and_record(result, write, host.folders, job)
        if divergence is None:
            samples.sample_at_end(model, step, ended.folder or run_plan.folder.path)
        return ended


def _warn_about_examples(settings: TrainingSettings, folders: Folders, job: Job) -> None:
    """Say which datasets of a resumed run are examples, because a file of the same name may have been removed."""
    with suppress(DataError):  # said when the data are read
        for dataset in find_datasets((*settings.what.data, *settings.aside.eval_data), folders):
            if dataset.example:
                text = (
                    f"{dataset.name} is not in {folders.datasets}, so the included example with that name is used."
                )
                job.log.append(Advice(text=text))


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


def _starting_point(run_plan: RunPlan, job: Job) -> tuple[RunState, Path | None]:
    """Return the state that a run begins with, and the checkpoint that it is from, if there is one."""
    folder, checkpoint = run_plan.folder, run_plan.folder.start
    folder.refuse_without_start()
    if checkpoint is not None:
        state = load_run_state(checkpoint.folder)
        refuse_changes(state, run_plan, checkpoint.folder)
        job.log.append(Note(text=f"Resuming from {checkpoint.folder.name} (step {state.step})."))
        return state, checkpoint.folder
    if folder.initial_lora is not None:
        text = "Training PRO first moves the LoRA's current files to a backup folder."
        job.log.append(Note(text=f"Continuing to train '{folder.name}'. {text}"))
    elif folder.resumes:
        text = f"There is nothing to resume for '{folder.name}', so the run starts from the beginning."
        job.log.append(Note(text=text))
    return RunState(unchangeable=run_plan.unchangeable()), None


def _announce(
    run_plan: RunPlan,
    state: RunState,
    callback: RunCallback,
    dtype: str,
    capabilities: ModelCapabilities,
    job: Job,
) -> None:
    """Log the plan of the run, with all that was logged before the step from which it resumes."""
    plan, settings, data, path = run_plan.plan, run_plan.settings, run_plan.data, run_plan.folder.path
    rates = callback.controller.rates
    samples = read_samples(path) if state.step else []
    checkpoints = [
        CheckpointSaved(step=checkpoint.step, folder=checkpoint.folder, reason="")
        for checkpoint in loras.checkpoints(path)
        if checkpoint.step <= state.step
    ]
    job.log.append(
        RunPlanned(
            name=run_plan.folder.name,
            model=run_plan.card.name,
            steps=rates.steps,
            steps_per_epoch=plan.steps_per_epoch,
            first_step=state.step,
            rates=rates.all(callback.step_log.rates_used()),
            settings=callback.controller.settings.values(),
            earlier=(
                *read_steps(state.graph),
                *read_evaluations(state.graph),
                *state.recalls,
                *(sample for sample in samples if sample.step <= state.step),
                *checkpoints,
            ),
            disk=data.report.disk.words() if data.report.disk else "",
            evaluate_every=evaluation_interval(settings, plan, data.validation),
            answer_every=sample_interval(settings, plan),
            recall_every=callback.measurements.recall_every if data.report.recall_tokens else 0,
        )
    )
    phases = describe_phases(run_plan.phases)
    schedule = f"Learning rate schedule {settings.learning.schedule}: {phases}. Calculations use {dtype}."
    notes_on_processes = data.report.notes if plan.processes > 1 else ()
    for text in (schedule, *notes_on_processes, *capabilities.notes()):
        job.log.append(Note(text=text))


def _wait_unloaded(trained: TrainingResult, host: Host, job: Job) -> bool:
    """Unload the model and wait; returns whether the run is resumed, with the model loaded again."""
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


def _add_epochs(trained: TrainingResult, state: RunState, epochs: float, job: Job) -> RunPlan:
    """Return the plan with this many more epochs, or none after a mere pause, and log its learning rates."""
    run_plan = trained.run_plan
    _, maximum = SETTINGS["epochs"].bounds or (0, math.inf)  # settings above it could not be read on a resume
    epochs = min(epochs, maximum - run_plan.settings.steps.epochs)
    longer = run_plan.longer(epochs)
    if epochs:
        rates = longer.rates(state.steering["live"]["rate_factor"])
        all_rates, reason = rates.all(trained.step_log.rates_used()), f"{epochs:g} more {plural(epochs, 'epoch')}"
        job.log.append(PlanChanged(step=state.step, steps=rates.steps, rates=all_rates, why=reason))
    return longer
