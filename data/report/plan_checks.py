"""What must hold between settings and the steps of a run, and what would never come in so few of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...schedulers import Phase, Plan, crossed_points, schedule_named
from ...settings.definitions import TrainingSettings
from ...train_utils import StepPlan, several, times
from ..examples import Examples, batch_order


def phases(settings: TrainingSettings, plan: StepPlan) -> list[Phase]:
    """The schedule as it will be, in so many steps."""
    warmup = plan.warmup(settings.learning.warmup_steps)
    return schedule_named(settings.learning.schedule).phases(Plan(plan.steps, plan.steps_per_epoch, warmup))


def problems(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    """What stands in the way."""
    steps = Plan(plan.steps, plan.steps_per_epoch)
    yield from (f"LR Scheduler: {crossed}" for crossed in crossed_points(settings.learning.schedule, steps))


def advice(settings: TrainingSettings, plan: StepPlan, examples: Examples, context: int) -> Iterator[str]:
    """What works, but would do nothing."""
    yield from _warm_up_ends(settings, plan)
    yield from _stop_comes_before_the_end(settings, plan)
    yield from _early_stopping_may_come(settings, plan)
    if settings.steps.batching == "length_then_order":
        yield from _changes_come(settings, plan)
        yield from _pairs_are_there(settings, examples, context)


def notes(settings: TrainingSettings, plan: StepPlan, kept_aside: Examples) -> Iterator[str]:
    """What a run does beside its steps, as often as planned."""
    said = []
    if rounds := sample_rounds(settings, plan):
        said.append(f"the sample prompts are answered {times(rounds)}")
    if count := evaluations(settings, plan, kept_aside):
        said.append(f"the {sum(kept_aside.lengths()):,} tokens kept aside are gone through {times(count)}")
    if said:
        yield f"Beside its steps: {', '.join(said)}."


def evaluations(settings: TrainingSettings, plan: StepPlan, kept_aside: Examples) -> int:
    """How often the part kept aside is gone through."""
    every = evaluate_every(settings, plan, kept_aside)
    return plan.looks(every) if every else 0


def evaluate_every(settings: TrainingSettings, plan: StepPlan, kept_aside: Examples) -> int:
    """After how many steps that is; 0 where there is nothing to go through."""
    return (settings.aside.eval_every or plan.steps_per_epoch) if len(kept_aside) else 0


def sample_rounds(settings: TrainingSettings, plan: StepPlan) -> int:
    """How often the sample prompts are answered."""
    every = answer_every(settings, plan)
    return plan.looks(every) if every else 0


def answer_every(settings: TrainingSettings, plan: StepPlan) -> int:
    """After how many steps that is; 0 for never."""
    every = settings.samples.sample_every
    return 0 if every == "never" else plan.steps_per_epoch if every == "epoch" else int(every)


def _warm_up_ends(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    asked, steps = settings.learning.warmup_steps, plan.steps
    if asked < max(1, steps) or steps == 1:
        return
    first = schedule_named(settings.learning.schedule).phases(Plan(steps, plan.steps_per_epoch, int(asked)))[0]
    if first.words == "warm-up":  # some schedules have none
        yield (
            f"Warm-up {asked:g}: the run has {several(steps, 'step')}, and the rate rises until step {first.end}. "
            "Use 0.05: below 1 it is a share of the run."
        )


def _stop_comes_before_the_end(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    at, epochs = settings.stopping.stop_at_epoch, plan.steps / plan.steps_per_epoch
    if at > epochs:
        yield f"Stop at epoch {at:g}: the run ends by itself before that, after {epochs:.3g}. Leave it off (0)."


def _early_stopping_may_come(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    patience, aside = settings.stopping.early_stopping, settings.aside
    if not patience or not (aside.eval_data or aside.eval_share):
        return
    every = aside.eval_every or plan.steps_per_epoch
    before_the_end = (plan.steps - 1) // every
    if before_the_end < patience:
        better = (plan.steps - 1) // patience
        yield (
            f"Early stopping {patience}: a run of {several(plan.steps, 'step')} with an evaluation every {every} "
            f"has {before_the_end} before its end, so it is never ended early. "
            + (f"Set Evaluate every to {better} or less." if better else "Leave it off (0).")
        )


def _changes_come(settings: TrainingSettings, plan: StepPlan) -> Iterator[str]:
    """An order that changes over only when the run has ended."""
    s = settings.switching
    if s.switch_after == "loss":
        return
    count = plan.steps if s.switch_after == "steps" else math.ceil(plan.steps / plan.steps_per_epoch)
    has = f"the run has {count} {s.switch_after if count > 1 else s.switch_after[:-1]}"
    if s.switch_at >= count:
        yield (
            f"Change over at {s.switch_at}: {has}, so the order stays by length to its end. "
            + _sooner(settings, plan, count - 1)
        )
    elif s.switch_pairs and s.second_switch_at >= count:
        enough = count - 1 if count - 1 > s.switch_at else 0
        yield f"Second change at {s.second_switch_at}: {has}, so pairs stay to its end. " + _sooner(
            settings, plan, enough
        )


def _sooner(settings: TrainingSettings, plan: StepPlan, last: int) -> str:
    """What to do; `last` is the latest moment at which the change would still come, 0 where there is none."""
    parts = 3 if settings.switching.switch_pairs else 2
    if last:
        return f"Use {last} or less."
    if plan.steps < parts:
        return "Take the order by_length, or more epochs."
    places = " and ".join(str(plan.steps * n // parts) for n in range(1, parts))
    return f"Let it change over after steps, for example at {places}, or take more epochs."


def _pairs_are_there(settings: TrainingSettings, examples: Examples, context: int) -> Iterator[str]:
    import numpy as np

    if not settings.switching.switch_pairs:
        return
    neighbours, lengths = examples.neighbours(), examples.lengths()
    if batch_order.pairs(np.arange(len(examples)), neighbours, lengths, context)[0]:
        return
    if max(neighbours) < 0:
        yield (
            f"Pairs in between: none of the {len(examples)} examples begins where another one ends, so there is "
            "no pair. Leave pairs off, or lower the cutoff for more blocks."
        )
    else:
        yield (
            f"Pairs in between: two neighbours have more than the {context} tokens that the model takes, so there "
            f"is no pair. Leave pairs off, or use a cutoff of {context // 2}."
        )
