"""One step tried and undone: what a run would take in memory and time; and what layers a model has."""

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
"""A probe keeps nothing: no folder can be made in a file, and nothing can be lost there."""


@dataclass(frozen=True)
class Tried:
    """What one batch took."""

    batch: int
    tokens: int
    seconds: float
    peak: int  # bytes above what was taken before; 0 where the system does not say
    too_large: int = 0  # so many examples at once did not fit


def probe(settings: TrainingSettings, host: Host, job: Job) -> Ended:
    """One forward and backward on the longest batch; weights, gradients and random states stay as they are."""
    refuse(settings, host)
    card = counted(card_of(host), settings)
    run = blueprint(settings, card, prepared(settings, host, card, job), NOWHERE)
    job.log.append(Stage(text="Getting the model"))
    with bare_model(host, job) as base:
        full, kept = told_where_memory_runs_out(base.device, run.remedies), kept_on_the_card(base.device)
        with full, kept, ready_to_train(base, run, job) as model:
            ways = tried(model, settings)
            job.log.append(Stage(text="Trying the longest batch"))
            found = _tried_batch(model, run, ways)
            beside = measured_beside(model, run, ways, host, job)
        expecting = Expecting.of(card, run.data.examples, host.memory())
        probed = replace(_probed(found, run, ways, expecting, host.memory().device), **vars(beside))
    job.log.append(probed)
    return Ended(outcome="finished", text=_words(probed))


def layers(host: Host) -> Mapping[str, int]:
    """By the model in memory, or by the skeleton that its config describes."""
    if not host.standing().problem:
        return kinds(bare(host.loaded().model))
    return kinds(skeleton(host.card()))


def _tried_batch(model: Any, run: Blueprint, ways: Ways) -> Tried:
    """The longest batch; where it does not fit, half as many examples at once, as a run would do it."""
    examples, most = run.data.examples, run.settings.steps.batch_size
    longest = [examples[n] for n in nlargest(most, range(len(examples)), key=examples.lengths().__getitem__)]
    asked = len(longest)
    while (found := _tried_at_once(model, longest, ways)) is None:
        free_memory()
        longest = longest[: (len(longest) + 1) // 2]
    return replace(found, too_large=asked if len(longest) < asked else 0)


def _tried_at_once(model: Any, examples: Sequence[Example], ways: Ways) -> Tried | None:
    """None where memory runs out with several; the error, and all that it holds, is gone by then."""
    try:
        return _measured(model, examples, ways)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(examples) == 1:
            raise
        return None


def _measured(model: Any, examples: Sequence[Example], ways: Ways) -> Tried:
    batch = batched(examples, in_one_row=ways.packed)
    labels = batch["labels"].to(model.device)
    beside = (TOKENS, OWNERS, EXAMPLES, JOINS, "labels")
    inputs = {name: value.to(model.device) for name, value in batch.items() if name not in beside}

    def step() -> None:
        try:
            with in_its_type(model):
                losses = ways.loss(model, inputs, labels).losses
            (losses.sum() / max(1, len(losses))).backward()
        finally:
            for parameter in model.parameters():
                parameter.grad = None

    model.train()
    peak = _peak_of(step, model.device)
    return Tried(len(examples), int(inputs["input_ids"].numel()), _seconds_of(step, model.device), peak)


def _seconds_of(step: Callable[[], None], device: torch.device) -> float:
    _wait_for(device)  # it may still be at the step before
    began = time.perf_counter()
    step()
    _wait_for(device)
    return time.perf_counter() - began


def _wait_for(device: torch.device) -> None:
    """A card is told what to do, and does it later."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_of(step: Callable[[], None], device: torch.device) -> int:
    if device.type == "cuda":
        return _peak_on_cards(step)
    give_back_memory()
    known = begin_anew()
    before = resident("VmRSS:") if known else 0
    step()
    return resident("VmHWM:") - before if known else 0


def _peak_on_cards(step: Callable[[], None]) -> int:
    cards = range(torch.cuda.device_count())
    for card in cards:
        torch.cuda.reset_peak_memory_stats(card)
    before = sum(map(torch.cuda.memory_allocated, cards))
    step()
    return int(sum(map(torch.cuda.max_memory_allocated, cards)) - before)


def _probed(found: Tried, run: Blueprint, ways: Ways, expecting: Expecting | None, device: str) -> Probed:
    estimate = expecting.memory(_as_tried(found, run)) if expecting else None
    kept = estimate.optimizer + estimate.lora if estimate else 0  # what a run has beside what the step took
    probed = Probed(
        device=device,
        batch_size=found.batch,
        tokens=found.tokens,
        seconds=found.seconds * run.plan.accumulated * max(1, found.too_large / found.batch),
        steps=run.plan.steps,
        run_seconds=found.seconds * _batches(found, run, ways),
        peak=found.peak + kept if found.peak else 0,
        expected=_above_the_model(estimate) if estimate else 0,
        free=max(0, expecting.free - estimate.weights) if expecting and estimate and expecting.free else 0,
        too_large=found.too_large,
        largest_batch=found.batch if found.too_large else 0,
        fitting=_in_smaller_batches(found, run.settings) if found.too_large else {},
    )
    if expecting is None or estimate is None or not expecting.on_card or not found.peak:
        return probed
    scale = max(0.1, (found.peak - estimate.gradients) / max(1, estimate.activations + estimate.head))
    largest = max(probed.largest_batch, largest_batch(expecting, run.settings, scale))
    if found.too_large:
        largest = min(largest, found.too_large - 1)
    changes = {} if probed.fits else fitted_to_card(expecting, run.settings, scale) or probed.fitting
    return replace(probed, largest_batch=largest, fitting=changes)


def _as_tried(found: Tried, run: Blueprint) -> TrainingSettings:
    """The settings of the batch that was done; what auto came to stays what it was for the whole one."""
    checkpointing = run.data.report.resolved["gradient_checkpointing"]
    return changed(run.settings, {"batch_size": found.batch, "gradient_checkpointing": checkpointing})


def _in_smaller_batches(found: Tried, settings: TrainingSettings) -> dict[str, int]:
    """The most examples at once that fit and divide a batch, and as much more accumulation."""
    steps = settings.steps
    fits = max(n for n in range(1, found.batch + 1) if steps.batch_size % n == 0)
    return {"batch_size": fits, "accumulation": steps.accumulation * steps.batch_size // fits}


def _above_the_model(estimate: MemoryEstimate) -> int:
    return estimate.total - estimate.weights


def _batches(found: Tried, run: Blueprint, ways: Ways) -> float:
    """How often the time of the longest batch goes into the run: by tokens, padding included."""
    report, plan = run.data.report, run.plan
    wasted = 0.0 if ways.packed else report.padding.get(run.settings.steps.batching, 0.0)
    an_epoch = report.tokens / (1 - wasted) / found.tokens
    return an_epoch * plan.steps / plan.steps_per_epoch


def _words(probed: Probed) -> str:
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
