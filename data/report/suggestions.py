"""Suggestions of Check: values that fit these data on this machine, each with its reason, or "as it is"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.findings import Suggestion
from ...settings.definitions import SETTINGS, TrainingSettings
from ...settings.target_layers import target_layers
from ...train_utils import StepPlan, format_count, interval_steps
from .estimates import MemoryModel, largest_batch

MIN_STEPS, MAX_EPOCHS = 30, 10
"""By custom. docs/what-works.md: a model recalled 4% of a story after 8 steps and half of it after 32."""
MANY_EXAMPLES, MANY_EPOCHS, USUAL_EPOCHS = 1000, 4, 3
"""Muennighoff et al., Scaling Data-Constrained Language Models: up to 4 epochs, repeated data is worth nearly as
much as new data, and then its worth decays."""
MAX_STEP_EXAMPLES = 32
"""Schulman et al., LoRA Without Regret: LoRAs lose more than full fine-tuning with larger steps."""
MIN_RANK, MAX_RANK = 8, 256
"""LoRA Without Regret: a LoRA keeps up with full fine-tuning until its data exceed its capacity. The rule here is
one weight per trained token."""
USUAL_RATES = {"lora": (2e-5, 2e-4, 1e-3), "full": (1e-6, 1e-5, 1e-3)}
"""The lowest, the usual and the highest learning rate by method; a stronger LoRA needs lower ones. The usual ones
are of QLoRA, arXiv:2305.14314, and, with the factor of 10 between the methods, of LoRA Without Regret."""
LONG_EPOCH_STEPS, SAVES_PER_EPOCH, SAVES_PER_RUN = 500, 5, 4


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before its first step."""

    settings: TrainingSettings
    plan: StepPlan
    memory: MemoryModel | None
    trained_tokens: int


def suggest_settings(facts: RunFacts) -> Iterator[Suggestion]:
    """Yield one suggestion for each setting that a beginner asks about."""
    yield _batch(facts)
    yield _epochs(facts)
    yield _rank(facts)
    yield _learning_rate(facts)
    yield _warmup(facts)
    yield _save_frequency(facts)


def _batch(facts: RunFacts) -> Suggestion:
    plan, steps = facts.plan, facts.settings.steps
    batches = format_count(plan.batches, "batch", "batches")
    fitting = _fitting_batch(facts)
    if plan.effective_accumulation < plan.accumulation:
        return Suggestion("accumulation", plan.effective_accumulation, f"An epoch has {batches}.")
    if fitting:
        smaller = 1 << (fitting.bit_length() - 1)
        accumulation = -(-steps.batch_size * steps.accumulation // smaller)
        why = f"The free memory has room for at most {format_count(fitting, 'example')} at once."
        return Suggestion("batch_size", smaller, why, also={"accumulation": accumulation})
    if (
        plan.examples_per_step > MAX_STEP_EXAMPLES
        and steps.accumulation > 1
        and not facts.settings.lora.whole_model
    ):
        smaller = max(1, steps.accumulation * MAX_STEP_EXAMPLES // plan.examples_per_step)
        why = (
            f"With more than {MAX_STEP_EXAMPLES} examples per step, a LoRA learns less from each of them (article "
            '"LoRA Without Regret").'
        )
        return Suggestion("accumulation", smaller, why)
    per_step = format_count(plan.examples_per_step, "example")
    return _keep(
        "batch_size", steps.batch_size, f"With {per_step} per step, an epoch has {_steps(plan.steps_per_epoch)}."
    )


def _fitting_batch(facts: RunFacts) -> int:
    """The largest batch that fits into the free memory, if it is smaller than the one of the settings; else 0."""
    if facts.memory is None or facts.memory.fits(facts.memory.memory(facts.settings)):
        return 0
    return largest_batch(facts.memory, facts.settings)


def _epochs(facts: RunFacts) -> Suggestion:
    plan, steps = facts.plan, facts.settings.steps
    if steps.max_steps:
        return _keep("epochs", steps.epochs, f"'Max steps' ends the run after {_steps(plan.steps)}.")
    if plan.steps < MIN_STEPS:
        epochs = min(MAX_EPOCHS, -(-MIN_STEPS // plan.steps_per_epoch))
        if epochs > steps.epochs:
            why = (
                f"The run has only {_steps(plan.steps)}. In our measurements, a model knew 4% of a story by heart "
                "after 8 steps, and half of it after 32 (docs/what-works.md)."
            )
            return Suggestion("epochs", float(epochs), why)
    if plan.examples >= MANY_EXAMPLES and steps.epochs > MANY_EPOCHS:
        why = f"After {MANY_EPOCHS} epochs, repeated examples teach the model less and less (arXiv:2305.16264)."
        return Suggestion("epochs", float(USUAL_EPOCHS), why)
    return _keep("epochs", steps.epochs, f"The run has {_steps(plan.steps)}.")


def _rank(facts: RunFacts) -> Suggestion:
    lora, tokens = facts.settings.lora, facts.trained_tokens
    if lora.whole_model:
        return _keep("rank", lora.rank, "Full fine-tuning trains all weights instead of a LoRA.")
    if facts.memory is None:
        return _keep("rank", lora.rank, "The size of this model is unknown.")
    shape, layers = facts.memory.shape, target_layers(lora.targets)
    weights, rank = shape.lora_weights(lora.rank, layers), MIN_RANK
    largest = min([MAX_RANK, shape.hidden, *shape.lora_sides(layers).values()])
    while 2 * rank <= largest and shape.lora_weights(rank, layers) < tokens:
        rank *= 2
    why = f"A LoRA of rank {lora.rank} has {weights:,} weights for {format_count(tokens, 'trained token')}"
    if rank <= lora.rank:
        enough = weights >= tokens
        return _keep("rank", lora.rank, f"{why}, so it has enough capacity." if enough else f"{why}.")
    return Suggestion(
        "rank",
        rank,
        f'{why}. A LoRA that is too small for its data learns less (see the article "LoRA Without Regret").',
        also={"alpha": lora.alpha * rank / lora.rank},
    )


def _learning_rate(facts: RunFacts) -> Suggestion:
    lora, rate = facts.settings.lora, facts.settings.learning.learning_rate
    method = "full" if lora.whole_model else "lora"
    lowest, usual, highest = USUAL_RATES[method]
    highest /= 1.0 if lora.whole_model else max(1.0, lora.strength)
    kind = "full fine-tuning" if lora.whole_model else "a LoRA"
    if lowest <= rate <= highest:
        return _keep(
            "learning_rate", rate, f"Common values for {kind} range from {_plain(lowest)} to {_plain(highest)}."
        )
    trend = "too low for the model to learn much" if rate < lowest else "so high that the model may forget a lot"
    return Suggestion("learning_rate", usual, f"A learning rate of {rate:g} is {trend}.")


def _warmup(facts: RunFacts) -> Suggestion:
    plan, warmup_steps = facts.plan, facts.settings.learning.warmup_steps
    warmup = plan.warmup(warmup_steps)
    if warmup > plan.steps / 2:
        why = f"The warmup takes more than half of the {_steps(plan.steps)}."
        return Suggestion("warmup_steps", SETTINGS["warmup_steps"].default, why)
    return _keep(
        "warmup_steps",
        warmup_steps,
        f"The warmup takes {warmup:,} of {_steps(plan.steps)} ({warmup / plan.steps:.0%}).",
    )


def _save_frequency(facts: RunFacts) -> Suggestion:
    plan, saving = facts.plan, facts.settings.saving
    if asked := interval_steps(saving.save_every, plan.steps):
        count = plan.steps // asked
        return _keep(
            "save_every",
            saving.save_every,
            f"This setting saves {format_count(count, 'checkpoint')} during the run.",
        )
    if min(plan.steps_per_epoch, plan.steps) > LONG_EPOCH_STEPS:
        every = round(plan.steps_per_epoch / SAVES_PER_EPOCH, -2)
        return Suggestion(
            "save_every",
            every,
            f"An epoch has {_steps(plan.steps_per_epoch)}, so save more than once per epoch.",
        )
    if not saving.save_each_epoch and not saving.backup_minutes and plan.steps > SAVES_PER_RUN:
        return Suggestion("save_every", plan.steps // SAVES_PER_RUN, "The run saves nothing before it ends.")
    minutes = f"{saving.backup_minutes:g} minutes" if saving.backup_minutes != 1 else "minute"
    when = "at the end of each epoch" if saving.save_each_epoch else f"every {minutes}"
    return _keep("save_every", saving.save_every, f"A full checkpoint is saved {when} anyway.")


def _keep(key: str, value: float, why: str) -> Suggestion:
    return Suggestion(key, value, why, keep=True)


def _steps(count: int) -> str:
    return format_count(count, "step")


def _plain(rate: float) -> str:
    """A rate without an exponent: '0.00002', so that both ends of a range read alike."""
    return f"{float(f'{rate:.3g}'):.10f}".rstrip("0").rstrip(".")
