"""Training run: borrow the model, prepare the data, train and save a LoRA, return the model."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from transformers import set_seed

from ...core import dist_env
from ...core.errors import DataError, ModelError, SavingError, SettingsError, first_line
from ...core.files import move_new_folder
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
    event_file,
)
from ...data.dataset_index import find_datasets
from ...data.examples import Examples, find_example_datasets
from ...data.report import evaluation_interval, sample_interval
from ...records.folder import RunFolder, loras, run_files
from ...records.report import write_missing_report
from ...schedulers import describe_phases
from ...settings.definitions import MAX_SEED, RANDOM_SEED, SETTINGS, TrainingSettings
from ...settings.live_settings import RATE_FACTOR
from ...train_utils import duration, plural
from ..checks import base_weight_findings, continued_advice, dora_problems, loaded_model_problems, raise_problems
from ..compute import (
    MachineMonitor,
    ModelCapabilities,
    StepSums,
    apply_machine_settings,
    compile_layers,
    distributed,
    failures,
    keep_saved_tensors_in_ram,
    layers_of,
    make_objective,
    patch_lora_layers,
    probe_model,
)
from ..inference import ExamCallback, SampleCallback, prepare_for_host
from ..lora import (
    adapted_layers,
    adapter,
    add_param_count,
    autocast_model,
    compute_dtype,
    preserve_rng,
    slow_dtype_advice,
    tied_layer_notes,
)
from ..plan import RunController, RunPlan, StepState
from ..saving import RunState, earlier_settings, load_run_state, refuse_changes, safe_save
from .callback import RunCallback, RunOver
from .finalize import TrainingResult, describe_model, end_discarded_run, save_and_record
from .outside import attach_reporter, prevent_sleep
from .trainer import RunTrainer

WARM_UP_BATCHES, TIMED_BATCHES = 2, 3


def train(settings: TrainingSettings, host: Host, job: Job, folder: RunFolder) -> JobEnded:
    """Train a LoRA by the settings, save it in its folder, and restore the model."""
    folders, log = host.folders, job.log
    keep_awake: AbstractContextManager[None] = nullcontext()
    if settings.machine.keep_awake:
        keep_awake = prevent_sleep(lambda text: log.append(Note(text=text)))
    with keep_awake:
        # Whatever can be refused is refused before the model is touched.
        if folder.initial_lora is not None:
            adapter.refuse_shape_mismatch(settings.lora, folder.initial_lora)
        if folder.start is not None:
            with suppress(DataError):  # said when the data are read
                for dataset in find_datasets(settings.dataset_names, folders):
                    if dataset.example:  # the user's file of this name may have been removed since
                        used = "so the included example with that name is used."
                        log.append(Advice(text=f"{dataset.name} is not in {folders.datasets}, {used}"))
        settings = draw_seeds(settings.with_name(folder.name), folder, job)
        run_plan = plan_run(settings, folder, host, job)

        planned, (done, had_planned) = run_plan.plan.steps, folder.finished()
        if had_planned >= planned and not _goes_on(run_plan, done):
            folder.recover()
            write_missing_report(folder.path, folders)
            steps = f"{done} of {planned} {plural(planned, 'step is', 'steps are')} done"
            if done > planned:
                steps = f"{done} steps are done, but the settings ask for {planned}"
            text, more = f"'{folder.name}' is finished: {steps}.", "increase Epochs, or Max steps if it is set."
            if reason := run_files.read_log(folder.path).get("ended_because"):
                text, more = f"{text} It ended because {reason}.", f"change that rule. If it is no setting, {more}"
            text = f"{text} To train more, {more}"
            return JobEnded(outcome="finished", text=text, folder=folder.path)

        folder.refuse_without_start()
        state, start = RunState(unchangeable=run_plan.unchangeable()), None
        if folder.start is not None:
            start = folder.start.folder
            state = load_run_state(start)
            refuse_changes(state, run_plan, start)
            if state.step > planned:  # equal after a kill before the LoRA was saved
                text = f"{state.step} steps of '{folder.name}' are done, but the settings ask for {planned}. "
                raise SavingError(f"{text}Increase Epochs (or Max steps), or press Resume in the Runs tab.")
            log.append(Note(text=f"Resuming from {start.name} (step {state.step})."))
        elif folder.initial_lora is not None:
            text = "Training PRO first moves the LoRA's current files to a backup folder."
            log.append(Note(text=f"Continuing to train '{folder.name}'. {text}"))
        elif folder.resumes:
            text = f"There is nothing to resume for '{folder.name}', so the run starts from the beginning."
            log.append(Note(text=text))
        for finding in continued_advice(folder, settings, run_plan.card):
            log.append(Advice(text=finding.text))
        with distributed.process_run_folder(folder) as process_folder:
            return _train_in_segments(replace(run_plan, folder=process_folder), state, start, host, job)


def _goes_on(run_plan: RunPlan, done: int) -> bool:
    """Whether a finished run goes on: from an earlier checkpoint, or because the rule that ended it is gone."""
    start = run_plan.folder.start
    if start is None or start != loras.resumable_checkpoints(run_plan.folder.path)[-1]:
        return start is not None
    state = load_run_state(start.folder)
    controller = RunController(run_plan, state.steering, Job("training", ""))
    after = StepState(done, run_plan.plan.steps_per_epoch, math.inf if state.smoothed is None else state.smoothed)
    return start.step == done and not controller.would_end(after)


def _train_in_segments(run_plan: RunPlan, state: RunState, start: Path | None, host: Host, job: Job) -> JobEnded:
    """Train to the end of the run, beginning anew after a pause that frees the GPU, and after added epochs."""
    # The Trainer can't change its number of steps. So it stops at a full checkpoint, and a new one continues from
    # there.
    result = _train_segment(run_plan, state, start, host, job, first=True)
    while isinstance(result, TrainingResult):
        start, restart, step = result.last_saved, result.controller.restart, result.step
        assert start is not None and restart is not None
        if restart.frees_gpu:
            names, attach_again = host.model_status().loras, adapter.snapshot_adapters(host)
            host.unload()
            text = f"Paused after step {step} until you resume the run; the model is unloaded"
            job.log.append(Stage(text=text, kind=StageKind.PAUSED))
            while job.control.asked(Request.PAUSE):
                job.control.take(Request.FREE_MEMORY)  # pressed again, but it is free already
                if job.control.wait_while_paused():  # to save: the checkpoint of the pause becomes the user's own
                    start = move_new_folder(start, run_plan.folder.checkpoint(step, "user"))
                    job.log.append(CheckpointSaved(step=step, folder=start, reason="user"))
            if job.control.asked(Request.STOP):
                if names:
                    text = f"The model stays unloaded, so {adapter.removed_message(names)}"
                    job.log.append(Note(text=text))
                if job.control.asked(Request.DISCARD):
                    return end_discarded_run(run_plan.folder, step)
                return save_and_record(result, partial(loras.copy_weights, start), host, job)
            job.log.append(Note(text=f"Resuming after step {step}: loading the model again."))
            host.reload(run_plan.card)
            attach_again()
        state = load_run_state(start)
        _, maximum = SETTINGS["epochs"].bounds or (0, math.inf)  # settings above it could not be read on a resume
        added = min(restart.more_epochs + job.control.take_epochs(), maximum - run_plan.settings.steps.epochs)
        settings, plan = run_plan.settings, run_plan.plan
        max_steps = plan.max_steps and plan.max_steps + round(added * plan.steps_per_epoch)
        steps = replace(settings.steps, epochs=settings.steps.epochs + added, max_steps=max_steps)
        plan = replace(plan, epochs=plan.epochs + added, max_steps=max_steps)
        run_plan = replace(
            run_plan,
            settings=replace(settings, steps=steps),
            data=replace(run_plan.data, plan=plan, report=replace(run_plan.data.report, steps=plan.steps)),
            folder=replace(run_plan.folder, is_open=True),  # by the segment before
        )
        if added:
            assert state.steering is not None
            rates = run_plan.rates(state.steering.live[RATE_FACTOR])
            all_rates = rates.all(result.step_log.rates_used())
            why, new = f"{added:g} more {plural(added, 'epoch')}", {"epochs": steps.epochs, "max_steps": max_steps}
            changed = PlanChanged(step=state.step, steps=rates.steps, rates=all_rates, why=why, settings=new)
            job.log.append(changed)
        result = _train_segment(run_plan, state, start, host, job, first=False)
    return result


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
        failures.explain_out_of_memory(lambda: failures.out_of_memory_error(base.device, run_plan.remedies)),
        model_ready_to_train(base, run_plan, job) as model,
    ):
        capabilities = probe_model(model, settings)
        objective = make_objective(capabilities, settings, model)
        sums = StepSums(find_example_datasets(run_plan.data.examples, settings), objective.figures)
        monitor = MachineMonitor(base.device, job.log)
        callback = RunCallback(run_plan, state, start, model, capabilities, sums, monitor, job)
        samples = SampleCallback(run_plan, callback.step_log, host, job, state.step)
        if first:
            _announce(run_plan, state, callback, compute_dtype(base), capabilities, job)
        exam = ExamCallback(run_plan, callback.step_log, host, job)
        job.log.append(Stage(text="Training", kind=StageKind.TRAINING))

        # Whatever the Trainer and its callback need was created above and is passed in, and the result has no
        # reference to the model, so that it is free once this function has returned.
        divergence: failures.DivergenceError | None = None
        with attach_reporter(run_plan, callback.step_log, host.folders, job.log) as reporters:
            trainer = RunTrainer(
                run_plan, model, objective, sums, callback, host.folders.training, samples, exam, *reporters
            )
            try:
                with failures.limit_vram(trainer.args.device), suppress(RunOver):
                    trainer.train(resume_from_checkpoint=str(start) if start else None)
                if callback.controller.restart is None:  # for the verdict; the last checkpoint is on disk
                    callback.measurements.recall_at_end(trainer.state.global_step)
                monitor.observe(at_once=True)
                trainer.refuse_broken_weights()  # the last step may have broken the weights
            except failures.DivergenceError as error:
                if first and trainer.state.global_step == state.step:
                    raise  # there is nothing to save
                divergence = error
            step = trainer.state.global_step
            distributed.shutdown()
        if not dist_env.is_main_process():
            return JobEnded(outcome="stopped" if job.control.asked(Request.STOP) else "finished", text="")
        if callback.controller.restart is None and divergence is None:
            exam.ask(model, step, at_end=True)
        if job.control.asked(Request.DISCARD):  # also while the exam was asked
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
        ended = save_and_record(result, write, host, job)
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
    job.log.append(
        RunPlanned(
            name=run_plan.folder.name,
            model=run_plan.card.name,
            steps=rates.steps,
            steps_per_epoch=plan.steps_per_epoch,
            first_step=state.step,
            rates=rates.all(callback.step_log.rates_used()),
            settings=callback.controller.settings.values(),
            rate_factor=rates.factor,
            earlier=event_file.events_before(event_file.read_events(path), state.step) if state.step else (),
            disk=data.report.disk.words() if data.report.disk else "",
            evaluate_every=evaluation_interval(settings, plan, data.validation),
            answer_every=sample_interval(settings, plan),
            recall_every=callback.measurements.recall_every,
        )
    )
    phases = describe_phases(run_plan.phases)
    schedule = f"Learning rate schedule {settings.learning.schedule}: {phases}. Calculations use {dtype}."
    notes_on_processes = data.report.notes if plan.processes > 1 else ()
    for text in (schedule, *notes_on_processes, *capabilities.notes()):
        job.log.append(Note(text=text))


def draw_seeds(settings: TrainingSettings, folder: RunFolder, job: Job) -> TrainingSettings:
    """Replace a seed of -1 by a random one, or by that of the checkpoint that the run resumes from."""
    drawn: dict[str, Any] = {
        key: secrets.randbelow(MAX_SEED + 1)
        for key in ("seed", "data_seed")
        if getattr(settings.what, key) == RANDOM_SEED
    }
    if not drawn:
        return settings
    how = "picked at random and saved with the run"
    if folder.start is not None:
        earlier = earlier_settings(folder, load_run_state(folder.start.folder))
        drawn, how = {key: earlier[key] for key in drawn}, "taken from the checkpoint"
    for key, seed in drawn.items():
        job.log.append(Note(text=f"{SETTINGS[key].label} {seed}: {how}."))
    return replace(settings, what=replace(settings.what, **drawn))


def plan_run(settings: TrainingSettings, folder: RunFolder, host: Host, job: Job) -> RunPlan:
    """Prepare the data as Check does; DataError where Check reports problems."""
    card = add_param_count(get_model_card(host), settings)
    data = prepare_for_host(settings, host, card, job)
    if data.report.problems:
        raise DataError("\n".join(data.report.problems))
    for advice in data.report.advice:
        job.log.append(Advice(text=advice))
    for finding in data.unused:
        job.log.append(Note(text=finding.text))
    return RunPlan(settings, card, data, folder)


@contextmanager
def borrow_base_model(host: Host, job: Job) -> Iterator[Any]:
    """Yield the host's model without its LoRAs, which are put back and logged."""
    with adapter.without_loras(host) as (base, names):
        if names:
            are = plural(len(names), "is", "are")
            text = f"{', '.join(names)} {are} detached for this run and attached again afterward."
            job.log.append(Note(text=text))
        yield base


@contextmanager
def model_ready_to_train(base: Any, run_plan: RunPlan, job: Job) -> Iterator[Any]:
    """Yield the model ready to train: a fresh LoRA in it, or all weights trainable, and the machine settings."""
    settings = run_plan.settings
    if settings.machine.compile and not compiling_pays(base, run_plan, job):
        settings = replace(settings, machine=replace(settings.machine, compile=False))
    with _made_ready(base, replace(run_plan, settings=settings), job) as model:
        yield model


def compiling_pays(base: Any, run_plan: RunPlan, job: Job) -> bool:
    """Whether compiled layers save more time over the run than compiling takes: both ways are tried on a batch."""
    started, quiet, settings = time.monotonic(), Job("probe", "Compile"), run_plan.settings
    seconds = []
    try:
        for compiled in (False, True):
            asked = replace(settings, machine=replace(settings.machine, compile=compiled))
            with preserve_rng(), _made_ready(base, replace(run_plan, settings=asked), quiet) as model:
                seconds.append(time_batch(model, asked, run_plan.data.examples))
    except (ModelError, RuntimeError, MemoryError) as error:  # the last two: the batch does not fit
        failures.free_memory(error)
        job.log.append(Note(text=f"Compile: {first_line(error)}. The run continues without compiled layers."))
        return False
    plan, spent = run_plan.plan, time.monotonic() - started
    saved = (seconds[0] - seconds[1]) * plan.steps * plan.effective_accumulation
    pays = saved > spent
    times = f"A batch takes {seconds[1]:.3g} s with compiled layers and {seconds[0]:.3g} s without"
    decision = "the layers are compiled" if pays else "they are not compiled, because that would not save time"
    job.log.append(Note(text=f"Compile: {times}, and compiling took {duration(spent)}: {decision}."))
    return pays


def time_batch(model: Any, settings: TrainingSettings, examples: Examples) -> float:
    """The seconds of a batch of the middle lengths, without the first ones, for which layers are compiled."""
    objective = make_objective(probe_model(model, settings), settings, model)
    lengths, size = examples.lengths(), min(settings.steps.batch_size, len(examples))
    first = (len(examples) - size) // 2
    middle = np.argsort(lengths, kind="stable")[first : first + size].tolist()
    batch = objective.collate([examples[number] for number in middle]).to(model.device)
    times = []
    model.train()
    for _ in range(WARM_UP_BATCHES + TIMED_BATCHES):
        started = time.perf_counter()
        with autocast_model(model):
            losses = objective(model, batch).losses
        losses.sum().backward()
        model.zero_grad()
        losses.detach().sum().item()  # waits for the device
        times.append(time.perf_counter() - started)
    return median(times[WARM_UP_BATCHES:])


@contextmanager
def _made_ready(base: Any, run_plan: RunPlan, job: Job) -> Iterator[Any]:
    settings = run_plan.settings
    raise_problems(loaded_model_problems(base))
    for advice in slow_dtype_advice(base):
        job.log.append(Advice(text=advice))
    if (weights := getattr(base, "gguf_weights", None)) and weights.note:
        job.log.append(Note(text=weights.note))
    # Where only `auto` asks for it, a model without gradient checkpointing trains without.
    checkpointing = run_plan.data.resolved.gradient_checkpointing
    if checkpointing != "off" and not getattr(base, "supports_gradient_checkpointing", False):
        if settings.machine.gradient_checkpointing != "auto":
            raise SettingsError(["Gradient checkpointing: this model does not support it. Choose off."])
        checkpointing = "off"
    set_seed(settings.what.weights_seed)
    with apply_machine_settings(settings.machine, base, job), ExitStack() as stack:
        if checkpointing != "off":
            # Renamed within transformers 5; the older name is needed for 5.6.2 only.
            enable = getattr(base, "activation_checkpointing_enable", base.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
            base.enable_input_require_grads()
            if checkpointing == "half":
                for layer in layers_of(base)[::2]:
                    layer.gradient_checkpointing = False
            if checkpointing == "offload":
                stack.enter_context(keep_saved_tensors_in_ram(base))
        base.config.use_cache = False
        with _trainable(base, run_plan, job) as model:
            # Dtypes that no optimizer can step in are refused; those that lose small steps get advice.
            trained = sorted({str(weights.dtype) for weights in model.parameters() if weights.requires_grad})
            dtypes = [dtype.removeprefix("torch.") for dtype in trained]
            findings = [finding for dtype in dtypes for finding in base_weight_findings(settings, dtype)]
            raise_problems(findings)
            for finding in findings:
                job.log.append(Advice(text=finding.text))
            with compile_layers(model, settings.machine.compile, job):
                yield model


@contextmanager
def _trainable(base: Any, run_plan: RunPlan, job: Job) -> Iterator[Any]:
    """Yield the model with a fresh LoRA in it, or with all weights trainable."""
    settings, folder = run_plan.settings, run_plan.folder
    if settings.lora.whole_model:
        if getattr(base, "is_quantized", False) or hasattr(base, "gguf_weights"):
            raise SettingsError(
                ["Method full: a quantized model can't be fully fine-tuned. Load it in 16 or 32 bits."]
            )
        job.log.append(Note(text="This run trains all weights of the model."))
        base.requires_grad_(True)  # restored with the other flags of the borrowed model
        yield base
        return
    raise_problems(dora_problems(settings.lora.dora, "8bit" if getattr(base, "is_loaded_in_8bit", False) else ""))
    with adapter.inject_lora(base, settings.lora) as (model, targets):
        saved = model.peft_config[model.active_adapter].modules_to_save
        for note in tied_layer_notes(targets.names, saved or (), base):
            job.log.append(Note(text=note))
        for advice in adapter.unused_bias_advice(settings.lora, base, targets.names):
            job.log.append(Advice(text=advice.text))
        job.log.append(Note(text=f"The LoRA is added to {targets.words(adapted_layers(model))}."))
        if folder.initial_lora is not None and not folder.is_open:  # a later segment has its checkpoint
            adapter.load_initial_weights(model, folder.initial_lora)
        with nullcontext() if settings.machine.compile else patch_lora_layers(model):
            yield model
