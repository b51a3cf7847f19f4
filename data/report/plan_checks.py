"""Checks of the settings against the steps of the run: contradictions, and settings without effect."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...schedulers import Phase, ScheduleSteps, find_crossed_points, get_schedule
from ...settings.definitions import TrainingSettings
from ...train_utils import StepPlan, format_count, format_times
from ..examples import Examples, batch_order


def planned_phases(settings: TrainingSettings, plan: StepPlan) -> list[Phase]:
    """Return the phases of the schedule for the steps of the run."""
    warmup = plan.warmup(settings.learning.warmup_steps)
    return get_schedule(settings.learning.schedule).phases(ScheduleSteps(plan.steps, plan.steps_per_epoch, warmup))


def problems(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    """Yield what prevents the run."""
    steps = ScheduleSteps(plan.steps, plan.steps_per_epoch)
    yield from (f"LR Scheduler: {crossed}" for crossed in find_crossed_points(settings.learning.schedule, steps))


def advice(settings: TrainingSettings, plan: StepPlan, examples: Examples, context: int) -> Iterator[str]:
    """Yield settings that would have no effect."""
    yield from _check_warmup(settings, plan)
    yield from _check_stop_epoch(settings, plan)
    yield from _check_early_stopping(settings, plan)
    if settings.steps.batching == "length_then_order":
        yield from _check_order_switches(settings, plan)
        yield from _check_pairs(settings, examples, context)


def notes(settings: TrainingSettings, plan: StepPlan, validation: Examples) -> Iterator[str]:
    """Note how often a run evaluates and samples."""
    activities = []
    if rounds := count_sample_rounds(settings, plan):
        activities.append(f"the sample prompts are answered {format_times(rounds)}")
    if count := count_evaluations(settings, plan, validation):
        activities.append(
            f"the {sum(validation.lengths()):,} tokens kept aside are gone through {format_times(count)}"
        )
    if activities:
        yield f"Beside its steps: {', '.join(activities)}."


def count_evaluations(settings: TrainingSettings, plan: StepPlan, validation: Examples) -> int:
    """Count the evaluations of the validation split."""
    every = evaluation_interval(settings, plan, validation)
    return plan.occurrences(every) if every else 0


def evaluation_interval(settings: TrainingSettings, plan: StepPlan, validation: Examples) -> int:
    """Steps between two evaluations; 0 without a validation split."""
    return (settings.aside.eval_every or plan.steps_per_epoch) if len(validation) else 0


def count_sample_rounds(settings: TrainingSettings, plan: StepPlan) -> int:
    """Count how often the sample prompts are answered."""
    every = sample_interval(settings, plan)
    return plan.occurrences(every) if every else 0


def sample_interval(settings: TrainingSettings, plan: StepPlan) -> int:
    """Steps between two answers to the sample prompts; 0 for never."""
    every = settings.samples.sample_every
    return 0 if every == "never" else plan.steps_per_epoch if every == "epoch" else int(every)


def _check_warmup(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    warmup, steps = settings.learning.warmup_steps, plan.steps
    if warmup < max(1, steps) or steps == 1:
        return
    first = get_schedule(settings.learning.schedule).phases(
        ScheduleSteps(steps, plan.steps_per_epoch, int(warmup))
    )[0]
    if first.words == "warm-up":  # some schedules have none
        yield (
            f"Warm-up {warmup:g}: the run has {format_count(steps, 'step')}, and the rate rises until step "
            f"{first.end}. Use 0.05: below 1 it is a share of the run."
        )


def _check_stop_epoch(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    stop, epochs = settings.stopping.stop_at_epoch, plan.steps / plan.steps_per_epoch
    if stop > epochs:
        yield f"Stop at epoch {stop:g}: the run ends by itself before that, after {epochs:.3g}. Leave it off (0)."


def _check_early_stopping(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    patience, validation = settings.stopping.early_stopping, settings.aside
    if not patience or not (validation.eval_data or validation.eval_share):
        return
    every = validation.eval_every or plan.steps_per_epoch
    possible = (plan.steps - 1) // every
    if possible < patience:
        better = (plan.steps - 1) // patience
        yield (
            f"Early stopping {patience}: a run of {format_count(plan.steps, 'step')} with an evaluation every "
            f"{every} has {possible} before its end, so it is never ended early. "
            + (f"Set Evaluate every to {better} or less." if better else "Leave it off (0).")
        )


def _check_order_switches(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    """Check that each change of the order comes before the end of the run."""
    switching = settings.switching
    if switching.switch_after == "loss":
        return
    count = plan.steps if switching.switch_after == "steps" else math.ceil(plan.steps / plan.steps_per_epoch)
    run_length = f"the run has {count} {switching.switch_after if count > 1 else switching.switch_after[:-1]}"
    if switching.switch_at >= count:
        yield (
            f"Change over at {switching.switch_at}: {run_length}, so the order stays by length to its end. "
            + _earlier_switch(settings, plan, count - 1)
        )
    elif switching.switch_pairs and switching.second_switch_at >= count:
        last = count - 1 if count - 1 > switching.switch_at else 0
        yield (
            f"Second change at {switching.second_switch_at}: {run_length}, so pairs stay to its end. "
            + _earlier_switch(settings, plan, last)
        )


def _earlier_switch(settings: TrainingSettings, plan: StepPlan, last: int) -> str:
    """Advise an earlier change; `last` is the latest one within the run, 0 where there is none."""
    phase_count = 3 if settings.switching.switch_pairs else 2
    if last:
        return f"Use {last} or less."
    if plan.steps < phase_count:
        return "Take the order by_length, or more epochs."
    steps = " and ".join(str(plan.steps * n // phase_count) for n in range(1, phase_count))
    return f"Let it change over after steps, for example at {steps}, or take more epochs."


def _check_pairs(settings: TrainingSettings, examples: Examples, context: int) -> Iterator[str]:
    import numpy as np

    if not settings.switching.switch_pairs:
        return
    successors, lengths = examples.successors(), examples.lengths()
    if batch_order.find_pairs(np.arange(len(examples)), successors, lengths, context)[0]:
        return
    if max(successors) < 0:
        yield (
            f"Pairs in between: none of the {len(examples)} examples begins where another one ends, so there is "
            "no pair. Leave pairs off, or lower the cutoff for more blocks."
        )
    else:
        yield (
            f"Pairs in between: two neighbours have more than the {context} tokens that the model takes, so there "
            f"is no pair. Leave pairs off, or use a cutoff of {context // 2}."
        )
