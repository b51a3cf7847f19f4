"""What the steps of a run show: contradictions, and settings without effect."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...core.findings import Finding, advice, note, problem
from ...schedulers import ScheduleSteps, find_crossed_points
from ...settings.definitions import SETTINGS, TrainingSettings
from ...train_utils import StepPlan, format_count, format_times, interval_steps
from ..examples import Examples, RowSource, batch_order

FALLING_LATER = ("FP_low_epoch_annealing", "FP_step_decay_with_warmup")
"""Schedules that are constant in the first epoch."""


def check_plan(
    settings: TrainingSettings, plan: StepPlan, examples: Examples, validation: Examples, context: int
) -> Iterator[Finding]:
    """Yield the findings on the steps of a run; `context` is the most tokens that the model takes."""
    steps = ScheduleSteps(plan.steps, plan.steps_per_epoch)
    for crossed in find_crossed_points(settings.learning.schedule, steps):
        yield problem("schedule", f"LR Scheduler: {crossed}")
    yield from _note_flat_schedule(settings, plan)
    yield from _check_stop_epoch(settings, plan)
    yield from _check_early_stopping(settings, plan)
    if settings.steps.batching == "length_then_order":
        yield from _check_order_switches(settings, plan)
        yield from _check_pairs(settings, examples, context)
    yield from _note_activities(settings, plan, validation)
    yield from _note_processes(plan)


def _note_activities(settings: TrainingSettings, plan: StepPlan, validation: Examples) -> Iterator[Finding]:
    activities = []
    if rounds := count_sample_rounds(settings, plan):
        from_data = isinstance(settings.samples.sample_prompts, str)
        source = "passages from your data" if from_data else "your prompts"
        activities.append(f"the model continues {source} {format_times(rounds)} to show samples")
    if count := count_evaluations(settings, plan, validation):
        activities.append(
            f"the model is evaluated on the validation split ({sum(validation.lengths()):,} tokens) "
            f"{format_times(count)}"
        )
    if activities:
        yield note("sample_every" if rounds else "eval_every", f"During the run, {', and '.join(activities)}.")


def _note_processes(plan: StepPlan) -> Iterator[Finding]:
    """Note the size of a step over several processes, and an epoch that does not divide evenly."""
    if plan.processes == 1:
        return
    yield note(
        "batch_size",
        f"With {plan.processes} processes, one step uses {plan.examples_per_step} examples (True Batch Size "
        f"{plan.batch_size} x Gradient Accumulation {plan.effective_accumulation} x {plan.processes} processes).",
    )
    if plan.repeated_examples:
        yield note(
            "batch_size",
            f"The {plan.examples} examples do not divide evenly among all processes, so each epoch repeats "
            f"{plan.repeated_examples} of them at its end.",
        )


def count_evaluations(settings: TrainingSettings, plan: StepPlan, validation: Examples) -> int:
    """Count the evaluations of the validation split."""
    every = evaluation_interval(settings, plan, validation)
    if not every:
        return 0
    return plan.occurrences(every) + sum(step % every > 0 for step in planned_switches(settings, plan))


def planned_switches(settings: TrainingSettings, plan: StepPlan) -> set[int]:
    """Steps after which the phase of hybrid batching changes; none if it depends on the loss."""
    switching = settings.switching
    if settings.steps.batching != "length_then_order" or switching.switch_after == "loss":
        return set()
    length = plan.steps_per_epoch if switching.switch_after == "epochs" else 1
    counts = (switching.switch_at, *(switching.second_switch_at,) * switching.switch_pairs)
    return {count * length for count in counts if 0 < count * length < plan.steps}


def evaluation_interval(settings: TrainingSettings, plan: StepPlan, validation: Examples) -> int:
    """Steps between two evaluations; 0 without a validation split."""
    every = interval_steps(settings.aside.eval_every, plan.steps) or plan.steps_per_epoch
    return every if len(validation) else 0


def count_sample_rounds(settings: TrainingSettings, plan: StepPlan) -> int:
    """Count how often the sample prompts are answered."""
    every = sample_interval(settings, plan)
    return plan.occurrences(every) if every else 0


def sample_interval(settings: TrainingSettings, plan: StepPlan) -> int:
    """Steps between two answers to the sample prompts; 0 for never."""
    every = settings.samples.sample_every
    return 0 if every == "never" else plan.steps_per_epoch if every == "epoch" else int(every)


def _note_flat_schedule(settings: TrainingSettings, plan: StepPlan) -> Iterator[Finding]:
    """Note that a schedule which falls after the first epoch never falls."""
    name = settings.learning.schedule
    if name in FALLING_LATER and plan.steps <= plan.steps_per_epoch:
        yield note(
            "schedule",
            f"With {name} and a single epoch, the learning rate stays constant. To lower it toward the end of the "
            "run, train for more epochs, or choose cosine.",
        )


def _check_stop_epoch(settings: TrainingSettings, plan: StepPlan) -> Iterator[Finding]:
    stop, epochs = settings.stopping.stop_at_epoch, plan.steps / plan.steps_per_epoch
    if stop > epochs:
        yield advice(
            "stop_at_epoch",
            f"Stop at epoch: the value {stop:g} has no effect, because the run ends at epoch {epochs:.3g}. "
            "Set it to 0 (off).",
        )


def _check_early_stopping(settings: TrainingSettings, plan: StepPlan) -> Iterator[Finding]:
    patience, validation = settings.stopping.early_stopping, settings.aside
    if not patience or not (validation.eval_data or validation.eval_share):
        return
    every = interval_steps(validation.eval_every, plan.steps) or plan.steps_per_epoch
    possible = (plan.steps - 1) // every
    if possible < patience:
        better = (plan.steps - 1) // patience
        yield advice(
            "early_stopping",
            f"Early stopping {patience}: with an evaluation every {'step' if every == 1 else f'{every} steps'}, a "
            f"run of {format_count(plan.steps, 'step')} has only {format_count(possible, 'evaluation')} before "
            "its end, so it never stops early. "
            + (f"Set 'Evaluate every' to {better} or less." if better else "Set it to 0 (off)."),
        )


def _check_order_switches(settings: TrainingSettings, plan: StepPlan) -> Iterator[Finding]:
    """Check that each change of the order comes before the end of the run."""
    switching, unit = settings.switching, settings.switching.switch_after
    if unit == "loss":
        return
    count = plan.steps if unit == "steps" else math.ceil(plan.steps / plan.steps_per_epoch)
    key, phases, last = "", 2 + switching.switch_pairs, count - 1
    if switching.switch_at >= count:
        key, effect = "switch_at", "is never reached, so batches stay grouped by length"
    elif switching.switch_pairs and switching.second_switch_at >= count:
        key, effect = "second_switch_at", "is never reached, so the pair phase lasts until the end"
        last = last if last > switching.switch_at else 0
    if not key:
        return
    remedy = f"Use {last} or less"
    if not last and plan.steps < phases:
        remedy = "Set 'Batch order' to 'By length', or train for more epochs"
    elif not last:
        steps = " and ".join(str(plan.steps * n // phases) for n in range(1, phases))
        remedy = f"Set 'Switch after' to Steps and switch earlier, for example at {steps}"
        remedy = f"{remedy}, or train for more epochs"
    value = getattr(switching, key)
    length = format_count(count, unit[:-1])
    yield advice(key, f"{SETTINGS[key].label} {value} {effect}: the run has {length}. {remedy}.")


def _check_pairs(settings: TrainingSettings, examples: Examples, context: int) -> Iterator[Finding]:
    if not settings.switching.switch_pairs:
        return
    successors, lengths = examples.successors(), examples.lengths()
    if batch_order.find_pairs(np.arange(len(examples)), successors, lengths, context)[0]:
        return
    if max(successors) < 0:
        remedy = "lower the cutoff to get more blocks"
        if any(isinstance(source, RowSource) for source in examples.sources):
            remedy = f"turn on {SETTINGS['split_exchanges'].label} if your chats have several turns"
        yield advice(
            "switch_pairs",
            f"Pair phase: none of the {len(examples)} examples starts where another one ends, so "
            f"there are no pairs. Turn off the pair phase, or {remedy}.",
        )
    else:
        yield advice(
            "switch_pairs",
            f"Pair phase: no two adjacent examples fit together in the model's context of {context} tokens, "
            f"so there are no pairs. Turn off the pair phase, or use a cutoff of {context // 2}.",
        )
