"""Probe: one training step to measure memory and time, without changing anything; also lists a model's layers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from typing import Any

import torch

from ...core.host import Host, bare, card_of
from ...core.jobs import Ended, Job, Probed, Stage
from ...data.examples import Example
from ...data.report import Expecting, changed, fitted_to_card, largest_batch
from ...records.folder import RunFolder
from ...settings.definitions import TrainingSettings
from ...train_utils import MemoryEstimate, duration, size
from ..checks import refuse
from ..compute import (
    EXAMPLES,
    JOINS,
    OWNERS,
    TOKENS,
    Ways,
    batched,
    begin_anew,
    free_memory,
    give_back_memory,
    is_out_of_memory,
    kept_on_the_card,
    resident,
    told_where_memory_runs_out,
    tried,
)
from ..lora import counted, in_its_type, kinds, skeleton
from ..plan import Blueprint, blueprint
from .probe_extras import measured_beside
from .setup import bare_model, prepared, ready_to_train

NOWHERE = RunFolder(Path(os.devnull) / "probe", Path(os.devnull) / "probe")
"""Run folder of a probe, which saves nothing: no folder can be created below a file."""


@dataclass(frozen=True)
class Tried:
    """Measurements of one batch."""

    batch: int
    tokens: int
    seconds: float
    peak: int  # bytes above those in use before; 0 if unknown
    too_large: int = 0  # number of examples that did not fit at once


def probe(settings: TrainingSettings, host: Host, job: Job) -> Ended:
    """Run forward and backward on the longest batch; weights, gradients and random states stay unchanged."""
    refuse(settings, host)
    card = counted(card_of(host), settings)
    run = blueprint(settings, card, prepared(settings, host, card, job), NOWHERE)
    job.log.append(Stage(text="Getting the model"))
    with bare_model(host, job) as base:
        explained, limited = told_where_memory_runs_out(base.device, run.remedies), kept_on_the_card(base.device)
        with explained, limited, ready_to_train(base, run, job) as model:
            capabilities = tried(model, settings)
            job.log.append(Stage(text="Trying the longest batch"))
            result = _tried_batch(model, run, capabilities)
            extras = measured_beside(model, run, capabilities, host, job)
        memory_model = Expecting.of(card, run.data.examples, host.memory())
        event = replace(_as_event(result, run, capabilities, memory_model, host.memory().device), **vars(extras))
    job.log.append(event)
    return Ended(outcome="finished", text=_summary(event))


def layers(host: Host) -> Mapping[str, int]:
    """Count the kinds of layers of the loaded model, or of a meta model built from its config."""
    if not host.standing().problem:
        return kinds(bare(host.loaded().model))
    return kinds(skeleton(host.card()))


def _tried_batch(model: Any, run: Blueprint, capabilities: Ways) -> Tried:
    """Measure the longest batch; if it does not fit, with half as many examples at once, as in a run."""
    examples, batch_size_limit = run.data.examples, run.settings.steps.batch_size
    longest = [
        examples[n] for n in nlargest(batch_size_limit, range(len(examples)), key=examples.lengths().__getitem__)
    ]
    batch_size = len(longest)
    while (result := _measure_or_none(model, longest, capabilities)) is None:
        free_memory()
        longest = longest[: (len(longest) + 1) // 2]
    return replace(result, too_large=batch_size if len(longest) < batch_size else 0)


def _measure_or_none(model: Any, examples: Sequence[Example], capabilities: Ways) -> Tried | None:
    """Measure; None if several examples ran out of memory. The error and its tensors are released by then."""
    try:
        return _measure(model, examples, capabilities)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(examples) == 1:
            raise
        return None


def _measure(model: Any, examples: Sequence[Example], capabilities: Ways) -> Tried:
    batch = batched(examples, in_one_row=capabilities.packed)
    labels = batch["labels"].to(model.device)
    extra_keys = (TOKENS, OWNERS, EXAMPLES, JOINS, "labels")
    inputs = {name: value.to(model.device) for name, value in batch.items() if name not in extra_keys}

    def step() -> None:
        try:
            with in_its_type(model):
                losses = capabilities.loss(model, inputs, labels).losses
            (losses.sum() / max(1, len(losses))).backward()
        finally:
            for parameter in model.parameters():
                parameter.grad = None

    model.train()
    peak = _measure_peak(step, model.device)
    return Tried(len(examples), int(inputs["input_ids"].numel()), _seconds_of(step, model.device), peak)


def _seconds_of(step: Callable[[], None], device: torch.device) -> float:
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
    give_back_memory()
    can_reset = begin_anew()
    before = resident("VmRSS:") if can_reset else 0
    step()
    return resident("VmHWM:") - before if can_reset else 0


def _measure_gpu_peak(step: Callable[[], None]) -> int:
    gpus = range(torch.cuda.device_count())
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    before = sum(map(torch.cuda.memory_allocated, gpus))
    step()
    return int(sum(map(torch.cuda.max_memory_allocated, gpus)) - before)


def _as_event(
    result: Tried, run: Blueprint, capabilities: Ways, memory_model: Expecting | None, device: str
) -> Probed:
    estimate = memory_model.memory(_measured_settings(result, run)) if memory_model else None
    # Memory that a run takes on top of the measured step.
    run_overhead = estimate.optimizer + estimate.lora if estimate else 0
    event = Probed(
        device=device,
        batch_size=result.batch,
        tokens=result.tokens,
        seconds=result.seconds * run.plan.accumulated * max(1, result.too_large / result.batch),
        steps=run.plan.steps,
        run_seconds=result.seconds * _batches(result, run, capabilities),
        peak=result.peak + run_overhead if result.peak else 0,
        expected=_without_weights(estimate) if estimate else 0,
        free=max(0, memory_model.free - estimate.weights)
        if memory_model and estimate and memory_model.free
        else 0,
        too_large=result.too_large,
        largest_batch=result.batch if result.too_large else 0,
        fitting=_smaller_batches(result, run.settings) if result.too_large else {},
    )
    if memory_model is None or estimate is None or not memory_model.on_card or not result.peak:
        return event
    scale = max(0.1, (result.peak - estimate.gradients) / max(1, estimate.activations + estimate.head))
    largest = max(event.largest_batch, largest_batch(memory_model, run.settings, scale))
    if result.too_large:
        largest = min(largest, result.too_large - 1)
    changes = {} if event.fits else fitted_to_card(memory_model, run.settings, scale) or event.fitting
    return replace(event, largest_batch=largest, fitting=changes)


def _measured_settings(result: Tried, run: Blueprint) -> TrainingSettings:
    """Return the settings for the measured batch; gradient checkpointing stays as resolved for the whole one."""
    checkpointing = run.data.report.resolved["gradient_checkpointing"]
    return changed(run.settings, {"batch_size": result.batch, "gradient_checkpointing": checkpointing})


def _smaller_batches(result: Tried, settings: TrainingSettings) -> dict[str, int]:
    """Return the largest batch size that fits and divides the batch, with as much more accumulation."""
    steps = settings.steps
    fits = max(n for n in range(1, result.batch + 1) if steps.batch_size % n == 0)
    return {"batch_size": fits, "accumulation": steps.accumulation * steps.batch_size // fits}


def _without_weights(estimate: MemoryEstimate) -> int:
    return estimate.total - estimate.weights


def _batches(result: Tried, run: Blueprint, capabilities: Ways) -> float:
    """Return the length of the run in units of the longest batch, by tokens with padding."""
    report, plan = run.data.report, run.plan
    padding = 0.0 if capabilities.packed else report.padding.get(run.settings.steps.batching, 0.0)
    batches_per_epoch = report.tokens / (1 - padding) / result.tokens
    return batches_per_epoch * plan.steps / plan.steps_per_epoch


def _summary(probed: Probed) -> str:
    parts = [f"{duration(probed.seconds)} a step, {probed.run_words}"]
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
