"""Probe: one training step to measure memory and time, without changing anything."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import nlargest
from pathlib import Path
from typing import Any

import torch

from ...core.host import Host
from ...core.jobs import Job, JobEnded, ProbeDone, Stage
from ...data.examples import Example
from ...data.report import MemoryModel, apply_changes, fit_to_memory, largest_batch
from ...records.folder import RunFolder
from ...settings.definitions import TrainingSettings
from ...train_utils import FORWARD_SHARE
from ..checks import check_run, raise_problems
from ..compute import ModelCapabilities, Objective, failures, make_objective, measure_peak, probe_model
from ..inference import SampleCallback
from ..lora import autocast_model
from ..plan import RunPlan, StepLog
from .run import borrow_base_model, model_ready_to_train, plan_run

# Run folder of a probe, which saves nothing. Its path lies inside a file, so it can't be created.
NULL_RUN_FOLDER = RunFolder(Path(os.devnull) / "probe", Path(os.devnull) / "probe")


def probe(settings: TrainingSettings, host: Host, job: Job) -> JobEnded:
    """Run forward and backward on the longest batch; weights, gradients and random states stay unchanged."""
    raise_problems(check_run(settings, host))
    run_plan = plan_run(settings, NULL_RUN_FOLDER, host, job)
    job.log.append(Stage(text="Preparing the model"))
    with borrow_base_model(host, job) as base:
        with (
            failures.explain_out_of_memory(lambda: failures.out_of_memory_error(base.device, run_plan.remedies)),
            failures.limit_vram(base.device),
            model_ready_to_train(base, run_plan, job) as model,
        ):
            capabilities = probe_model(model, settings)
            objective = make_objective(capabilities, settings, model)
            job.log.append(Stage(text="Testing the longest batch"))
            measured = _probe_longest_batch(model, objective, run_plan)
            times: dict[str, Any] = {}
            if (split := run_plan.data.report.kept_aside) and run_plan.data.report.evaluations:
                times["evaluations"] = run_plan.data.report.evaluations
                times["evaluation_seconds"] = FORWARD_SHARE * split.tokens * measured.seconds / measured.tokens
            if rounds := run_plan.data.report.sample_rounds:
                # The seconds of an answer are estimated by generating a part of one.
                job.log.append(Stage(text="Generating part of a sample to measure how long it takes"))
                with suppress(Exception):  # a run also continues when an answer fails
                    samples = SampleCallback(run_plan, StepLog((), None), host, job, 0)
                    if answer_seconds := samples.estimate_seconds(model):
                        times |= {"answers": rounds * len(samples.prompts), "answer_seconds": answer_seconds}
        memory_model = MemoryModel.of(run_plan.card, run_plan.data.examples, host.memory())
        event = _of_whole_run(measured, run_plan, capabilities, memory_model)
    job.log.append(replace(event, **times))
    return JobEnded(outcome="finished", text="Nothing changed.")


def _probe_longest_batch(model: Any, objective: Objective, run_plan: RunPlan) -> ProbeDone:
    """Measure the longest batch; if it does not fit, with half as many examples at once, as in a run."""
    examples, batch_size = run_plan.data.examples, run_plan.settings.steps.batch_size
    indices = nlargest(batch_size, range(len(examples)), key=examples.lengths().__getitem__)
    longest = [examples[index] for index in indices]

    def measure(part: Sequence[Example]) -> ProbeDone:
        batch = objective.collate(part).to(model.device)

        def step() -> None:
            try:
                with autocast_model(model):
                    losses = objective(model, batch).losses
                (losses.sum() / max(1, len(losses))).backward()
            finally:
                for parameter in model.parameters():
                    parameter.grad = None

        # A GPU works asynchronously: the step before may still run, and so may the one that is timed.
        wait = torch.cuda.synchronize if model.device.type == "cuda" else lambda device: None
        model.train()
        peak = measure_peak(step, model.device)
        wait(model.device)
        started = time.perf_counter()
        step()
        wait(model.device)
        seconds, tokens = time.perf_counter() - started, batch.labels.numel()
        return ProbeDone(
            batch_size=len(part),
            tokens=tokens,
            seconds=seconds,
            steps=run_plan.plan.steps,
            run_seconds=0,
            peak=peak,
            expected=0,
            free=0,
        )

    measured = next(failures.BatchSplitter().run(longest, measure))
    return replace(measured, too_large=len(longest) if measured.batch_size < len(longest) else 0)


def _of_whole_run(
    measured: ProbeDone, run_plan: RunPlan, capabilities: ModelCapabilities, memory_model: MemoryModel | None
) -> ProbeDone:
    """Return what a run takes by this measurement of one batch, beside Check's estimate where there is one."""
    report, plan, settings, batch = run_plan.data.report, run_plan.plan, run_plan.settings, measured.batch_size
    padding = 0.0 if capabilities.packed else report.padding.get(settings.steps.batching, 0.0)
    batches_per_epoch = report.tokens / (1 - padding) / measured.tokens  # in units of the longest batch
    batch_size, accumulation = settings.steps.batch_size, settings.steps.accumulation
    fits = max(n for n in range(1, batch + 1) if batch_size % n == 0)  # with as much more accumulation
    smaller = {"batch_size": fits, "accumulation": accumulation * batch_size // fits}
    event = replace(
        measured,
        seconds=measured.seconds * plan.effective_accumulation * max(1, measured.too_large / batch),
        run_seconds=measured.seconds * batches_per_epoch * plan.steps / plan.steps_per_epoch,
        largest_batch=batch if measured.too_large else 0,
        fitting=smaller if measured.too_large else {},
    )
    if memory_model is None:
        return event
    # The estimate is for the batch that was measured, with the checkpointing that was resolved for a whole batch.
    changes = {"batch_size": batch, "gradient_checkpointing": run_plan.data.resolved.gradient_checkpointing}
    estimate = memory_model.memory(apply_changes(settings, changes))
    event = replace(
        event,
        # A single step does not take the memory of the optimizer.
        peak=measured.peak and measured.peak + estimate.optimizer + estimate.lora,
        expected=estimate.total - estimate.weights,
        free=max(0, memory_model.free - estimate.weights) if memory_model.free else 0,
    )
    if not memory_model.on_card or not measured.peak:
        fitting = {} if event.fits else fit_to_memory(memory_model, settings) or event.fitting
        return replace(event, fitting=fitting)
    # Other batches are estimated by the same ratio of measured to estimated activations.
    scale = max(0.1, (measured.peak - estimate.gradients) / max(1, estimate.activations + estimate.head))
    largest = max(event.largest_batch, largest_batch(memory_model, settings, scale))
    if measured.too_large:
        largest = min(largest, measured.too_large - 1)
    fitting = {} if event.fits else fit_to_memory(memory_model, settings, scale) or event.fitting
    return replace(event, largest_batch=largest, fitting=fitting)
