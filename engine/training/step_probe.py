"""Probe: one training step to measure memory and time, without changing anything; also lists a model's layers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nlargest
from pathlib import Path
from typing import Any

import torch

from ...core.host import Host, get_model_card, unwrap_peft
from ...core.jobs import Job, JobEnded, ProbeDone, Stage
from ...data.examples import Example
from ...data.report import (
    MemoryModel,
    apply_changes,
    count_evaluations,
    count_sample_rounds,
    fit_to_memory,
    largest_batch,
)
from ...records.folder import RunFolder
from ...settings.definitions import TrainingSettings
from ...train_utils import MemoryEstimate, duration, size
from ..checks import raise_run_problems
from ..compute import (
    BatchSplitter,
    ModelCapabilities,
    collate,
    explain_out_of_memory,
    limit_vram,
    out_of_memory_error,
    probe_model,
    read_process_memory,
    reset_peak,
    trim_memory,
)
from ..inference import Evaluator, SampleGenerator, sampling_mode
from ..lora import add_param_count, autocast_model, build_meta_model, count_layer_names
from ..plan import RunPlan, build_run_plan
from .setup import borrow_base_model, model_ready_to_train, prepare_data

NULL_RUN_FOLDER = RunFolder(Path(os.devnull) / "probe", Path(os.devnull) / "probe")
"""Run folder of a probe, which saves nothing: no folder can be created below a file."""


@dataclass(frozen=True)
class ProbeResult:
    """Measurements of one batch."""

    batch: int
    tokens: int
    seconds: float
    peak: int  # bytes above those in use before; 0 if unknown
    too_large: int = 0  # number of examples that did not fit at once


def probe(settings: TrainingSettings, host: Host, job: Job) -> JobEnded:
    """Run forward and backward on the longest batch; weights, gradients and random states stay unchanged."""
    raise_run_problems(settings, host)
    card = add_param_count(get_model_card(host), settings)
    run_plan = build_run_plan(settings, card, prepare_data(settings, host, card, job), NULL_RUN_FOLDER)
    job.log.append(Stage(text="Getting the model"))
    with borrow_base_model(host, job) as base:
        with (
            explain_out_of_memory(lambda: out_of_memory_error(base.device, run_plan.remedies)),
            limit_vram(base.device),
            model_ready_to_train(base, run_plan, job) as model,
        ):
            capabilities = probe_model(model, settings)
            job.log.append(Stage(text="Trying the longest batch"))
            result = _probe_longest_batch(model, run_plan, capabilities)
            extras = measure_extras(model, run_plan, capabilities, host, job)
        memory_model = MemoryModel.of(card, run_plan.data.examples, host.memory())
        event = replace(
            _as_event(result, run_plan, capabilities, memory_model, host.memory().device), **vars(extras)
        )
    job.log.append(event)
    return JobEnded(outcome="finished", text=_summary(event))


def count_layers(host: Host) -> Mapping[str, int]:
    """Count the kinds of layers of the loaded model, or of a meta model built from its config."""
    if not host.model_status().problem:
        return count_layer_names(unwrap_peft(host.loaded_model().model))
    return count_layer_names(build_meta_model(host.card()))


def _probe_longest_batch(model: Any, run_plan: RunPlan, capabilities: ModelCapabilities) -> ProbeResult:
    """Measure the longest batch; if it does not fit, with half as many examples at once, as in a run."""
    examples, batch_size = run_plan.data.examples, run_plan.settings.steps.batch_size
    indices = nlargest(batch_size, range(len(examples)), key=examples.lengths().__getitem__)
    longest = [examples[index] for index in indices]
    result = next(BatchSplitter().run(longest, partial(_measure, model, capabilities)))
    return replace(result, too_large=len(longest) if result.batch < len(longest) else 0)


def _measure(model: Any, capabilities: ModelCapabilities, examples: Sequence[Example]) -> ProbeResult:
    batch = collate(examples, in_one_row=capabilities.packed).to(model.device)

    def step() -> None:
        try:
            with autocast_model(model):
                losses = capabilities.loss(model, batch.inputs, batch.labels).losses
            (losses.sum() / max(1, len(losses))).backward()
        finally:
            for parameter in model.parameters():
                parameter.grad = None

    model.train()
    peak = _measure_peak(step, model.device)
    return ProbeResult(len(examples), batch.labels.numel(), _measure_seconds(step, model.device), peak)


def _measure_seconds(step: Callable[[], None], device: torch.device) -> float:
    _synchronize(device)  # the step before may still run
    started = time.perf_counter()
    step()
    _synchronize(device)
    return time.perf_counter() - started


def _synchronize(device: torch.device) -> None:
    """Synchronize with the GPU, which works asynchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure_peak(step: Callable[[], None], device: torch.device) -> int:
    if device.type == "cuda":
        return _measure_gpu_peak(step)
    trim_memory()
    can_reset = reset_peak()
    before = read_process_memory("VmRSS:") if can_reset else 0
    step()
    return read_process_memory("VmHWM:") - before if can_reset else 0


def _measure_gpu_peak(step: Callable[[], None]) -> int:
    gpus = range(torch.cuda.device_count())
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    before = sum(map(torch.cuda.memory_allocated, gpus))
    step()
    return int(sum(map(torch.cuda.max_memory_allocated, gpus)) - before)


def _as_event(
    result: ProbeResult,
    run_plan: RunPlan,
    capabilities: ModelCapabilities,
    memory_model: MemoryModel | None,
    device: str,
) -> ProbeDone:
    estimate = memory_model.memory(_measured_settings(result, run_plan)) if memory_model else None
    # Memory that a run takes on top of the measured step.
    run_overhead = estimate.optimizer + estimate.lora if estimate else 0
    event = ProbeDone(
        device=device,
        batch_size=result.batch,
        tokens=result.tokens,
        seconds=result.seconds * run_plan.plan.effective_accumulation * max(1, result.too_large / result.batch),
        steps=run_plan.plan.steps,
        run_seconds=result.seconds * _batches(result, run_plan, capabilities),
        peak=result.peak + run_overhead if result.peak else 0,
        expected=_without_weights(estimate) if estimate else 0,
        free=max(0, memory_model.free - estimate.weights)
        if memory_model and estimate and memory_model.free
        else 0,
        too_large=result.too_large,
        largest_batch=result.batch if result.too_large else 0,
        fitting=_smaller_batches(result, run_plan.settings) if result.too_large else {},
    )
    if memory_model is None or estimate is None or not memory_model.on_card or not result.peak:
        return event
    scale = max(0.1, (result.peak - estimate.gradients) / max(1, estimate.activations + estimate.head))
    largest = max(event.largest_batch, largest_batch(memory_model, run_plan.settings, scale))
    if result.too_large:
        largest = min(largest, result.too_large - 1)
    changes = {} if event.fits else fit_to_memory(memory_model, run_plan.settings, scale) or event.fitting
    return replace(event, largest_batch=largest, fitting=changes)


def _measured_settings(result: ProbeResult, run_plan: RunPlan) -> TrainingSettings:
    """Return the settings for the measured batch; gradient checkpointing stays as resolved for the whole one."""
    checkpointing = run_plan.data.report.resolved["gradient_checkpointing"]
    return apply_changes(run_plan.settings, {"batch_size": result.batch, "gradient_checkpointing": checkpointing})


def _smaller_batches(result: ProbeResult, settings: TrainingSettings) -> dict[str, int]:
    """Return the largest batch size that fits and divides the batch, with as much more accumulation."""
    steps = settings.steps
    fits = max(n for n in range(1, result.batch + 1) if steps.batch_size % n == 0)
    return {"batch_size": fits, "accumulation": steps.accumulation * steps.batch_size // fits}


def _without_weights(estimate: MemoryEstimate) -> int:
    return estimate.total - estimate.weights


def _batches(result: ProbeResult, run_plan: RunPlan, capabilities: ModelCapabilities) -> float:
    """Return the length of the run in units of the longest batch, by tokens with padding."""
    report, plan = run_plan.data.report, run_plan.plan
    padding = 0.0 if capabilities.packed else report.padding.get(run_plan.settings.steps.batching, 0.0)
    batches_per_epoch = report.tokens / (1 - padding) / result.tokens
    return batches_per_epoch * plan.steps / plan.steps_per_epoch


def _summary(probed: ProbeDone) -> str:
    parts = [f"{duration(probed.seconds)} a step, {probed.run_summary}"]
    if probed.peak:
        free = f", {size(probed.free)} are free" if probed.free else ""
        parts.append(f"at most {size(probed.peak)} above the model (expected {size(probed.expected)}){free}")
    if probed.too_large:
        parts.append(
            f"{probed.too_large} examples at once do not fit, {probed.batch_size} do: a run takes them in parts"
        )
    if not probed.fits:
        changes = ", ".join(f"{key} = {value}" for key, value in probed.fitting.items())
        parts.append(f"too much: try {changes}" if changes else "too much: choose a smaller model or cutoff")
    return "; ".join(parts) + ". Nothing was changed."


@dataclass(frozen=True)
class ExtraTimes:
    """Counts, and seconds of one each; 0 if there are none, or if it could not be measured."""

    evaluations: int = 0
    evaluation_seconds: float = 0.0
    answers: int = 0
    answer_seconds: float = 0.0


def measure_extras(model: Any, run_plan: RunPlan, ways: ModelCapabilities, host: Host, job: Job) -> ExtraTimes:
    """Estimate the evaluations and the answers of a run by doing a part of each."""
    return ExtraTimes(*_evaluations(model, run_plan, ways, job), *_answers(model, run_plan, host, job))


def _evaluations(model: Any, run_plan: RunPlan, ways: ModelCapabilities, job: Job) -> tuple[int, float]:
    count = count_evaluations(run_plan.settings, run_plan.plan, run_plan.data.kept_aside)
    if not count:
        return 0, 0.0
    job.log.append(Stage(text="Trying an evaluation"))
    return count, _seconds_or_zero(lambda: Evaluator(run_plan, model, ways, job).estimate_seconds())


def _answers(model: Any, run_plan: RunPlan, host: Host, job: Job) -> tuple[int, float]:
    rounds = count_sample_rounds(run_plan.settings, run_plan.plan)
    if not rounds:
        return 0, 0.0
    job.log.append(Stage(text="Trying an answer"))
    generator = SampleGenerator(run_plan, host, job, ())

    def seconds() -> float:
        with sampling_mode(model):
            return generator.estimate_seconds(model)

    answer_seconds = _seconds_or_zero(seconds)
    return rounds * len(generator.prompts) if answer_seconds else 0, answer_seconds


def _seconds_or_zero(measure: Callable[[], float]) -> float:
    """Measure, or return 0 on any error: a run also continues when an evaluation or an answer fails."""
    try:
        return measure()
    except Exception:  # noqa: BLE001 - the probe of the step is valid without it
        return 0.0
