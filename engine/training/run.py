"""Training run: borrow the model, prepare the data, train and save a LoRA, return the model."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...core import dist_env
from ...core.errors import DataError
from ...core.host import Host, get_model_card
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
from ...settings.live_settings import RATE_FACTOR
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
from ..plan import RunPlan
from ..saving import RunState, load_run_state, refuse_changes, safe_save
from .callback import RunCallback, RunOver, SampleCallback
from .finalize import TrainingResult, describe_model, end_discarded_run, save_and_record
from .outside import attach_reporters, prevent_sleep
from .setup import borrow_base_model, draw_seeds, model_ready_to_train, prepare_data
from .trainer import RunTrainer


def train(settings: TrainingSettings, host: Host, job: Job, *, resume: str = "") -> JobEnded:
    """Train a LoRA by the settings, save it, and restore the model."""
    folders, log = host.folders, job.log
    folder = choose_run_folder(settings, folders, resume)
    refuse_in_progress(folder.name, folders)
    keep_awake: AbstractContextManager[None] = nullcontext()
    if settings.machine.keep_awake:
        keep_awake = prevent_sleep(lambda text: log.append(Note(text=text)))
    # The lock says to other programs that this run is in progress; the remote control takes their requests.
    with hold_run_lock(folder.name, folders), remote_control(folder.name, job, folders), keep_awake:
        # Whatever can be refused is refused before the model is touched.
        if folder.initial_lora is not None:
            refuse_shape_mismatch(settings.lora, folder.initial_lora)
        if folder.start is not None:
            with suppress(DataError):  # said when the data are read
                for dataset in find_datasets((*settings.what.data, *settings.aside.eval_data), folders):
                    if dataset.example:  # the user's file of this name may have been removed since
                        used = "so the included example with that name is used."
                        log.append(Advice(text=f"{dataset.name} is not in {folders.datasets}, {used}"))
        settings = draw_seeds(settings.with_name(folder.name), folder, job)
        card = add_param_count(get_model_card(host), settings)
        run_plan = RunPlan(settings, card, prepare_data(settings, host, card, job), folder)

        planned, (done, had_planned) = run_plan.plan.steps, folder.finished()
        if had_planned >= planned:
            folder.recover()
            write_missing_report(folder.path, folders)
            steps = f"{done} of {planned} {plural(planned, 'step is', 'steps are')} done"
            if done > planned:
                steps = f"{done} steps are done, but the settings ask for {planned}"
            more = "To train more, increase Epochs, or Max steps if it is set."
            text = f"'{folder.name}' is finished: {steps}. {more}"
            return JobEnded(outcome="finished", text=text, folder=folder.path)

        folder.refuse_without_start()
        state, start = RunState(unchangeable=run_plan.unchangeable()), None
        if folder.start is not None:
            start = folder.start.folder
            state = load_run_state(start)
            refuse_changes(state, run_plan, start)
            log.append(Note(text=f"Resuming from {start.name} (step {state.step})."))
        elif folder.initial_lora is not None:
            text = "Training PRO first moves the LoRA's current files to a backup folder."
            log.append(Note(text=f"Continuing to train '{folder.name}'. {text}"))
        elif folder.resumes:
            text = f"There is nothing to resume for '{folder.name}', so the run starts from the beginning."
            log.append(Note(text=text))
        with distributed.process_run_folder(folder) as process_folder:
            return _train_in_segments(replace(run_plan, folder=process_folder), state, start, host, job)


def _train_in_segments(run_plan: RunPlan, state: RunState, start: Path | None, host: Host, job: Job) -> JobEnded:
    """Train to the end of the run, beginning anew after a pause that frees the GPU, and after added epochs."""
    # The Trainer can't change its number of steps. So it stops at a full checkpoint, and a new one continues from
    # there.
    result = _train_segment(run_plan, state, start, host, job, first=True)
    while isinstance(result, TrainingResult):
        start, restart, step = result.last_saved, result.controller.restart, result.step
        assert start is not None and restart is not None
        if restart.frees_gpu:
            snapshot = snapshot_adapters(host)
            host.unload()
            text = f"Paused after step {step} until you resume the run; the model is unloaded"
            job.log.append(Stage(text=text, kind=StageKind.PAUSED))
            job.control.wait_while_paused()
            if job.control.asked(Request.STOP):
                if snapshot.names:
                    text = f"The model stays unloaded, so {removed_message(snapshot.names)}"
                    job.log.append(Note(text=text))
                if job.control.asked(Request.DISCARD):
                    return end_discarded_run(run_plan.folder, step)
                return save_and_record(result, partial(loras.copy_weights, start), host.folders, job)
            job.log.append(Note(text=f"Resuming after step {step}: loading the model again."))
            host.reload(run_plan.card)
            snapshot.attach_lora(host)
        state = load_run_state(start)
        _, maximum = SETTINGS["epochs"].bounds or (0, math.inf)  # settings above it could not be read on a resume
        added = min(restart.more_epochs + job.control.take_epochs(), maximum - run_plan.settings.steps.epochs)
        run_plan = _with_more_epochs(run_plan, added)
        if added:
            assert state.steering is not None
            rates = run_plan.rates(state.steering.live[RATE_FACTOR])
            all_rates = rates.all(result.step_log.rates_used())
            why = f"{added:g} more {plural(added, 'epoch')}"
            job.log.append(PlanChanged(step=state.step, steps=rates.steps, rates=all_rates, why=why))
        result = _train_segment(run_plan, state, start, host, job, first=False)
    return result


def _with_more_epochs(run_plan: RunPlan, epochs: float) -> RunPlan:
    """The run with more epochs, in the folder that it has opened."""
    settings, plan = run_plan.settings, run_plan.plan
    max_steps = plan.max_steps and plan.max_steps + round(epochs * plan.steps_per_epoch)
    plan = replace(plan, epochs=plan.epochs + epochs, max_steps=max_steps)
    steps = replace(settings.steps, epochs=settings.steps.epochs + epochs, max_steps=max_steps)
    return replace(
        run_plan,
        settings=replace(settings, steps=steps),
        data=replace(run_plan.data, plan=plan, report=replace(run_plan.data.report, steps=plan.steps)),
        folder=replace(run_plan.folder, is_open=True),
    )


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
                if callback.controller.restart is None:  # for the verdict; the last checkpoint is on disk
                    callback.measurements.recall_at_end(trainer.state.global_step)
                monitor.observe(at_once=True)
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
