"""Suggestions of Check: values that fit these data on this machine, each with its reason, or "as it is"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.findings import Suggestion
from ...schedulers import ScheduleSteps, get_schedule
from ...settings.definitions import SETTINGS, TrainingSettings
from ...settings.target_layers import target_layers
from ...train_utils import StepPlan, format_count, interval_steps
from .estimates import MemoryModel, largest_batch

MIN_STEPS, MAX_EPOCHS = 30, 10
MANY_EXAMPLES, MANY_EPOCHS, USUAL_EPOCHS = 1000, 4, 3
"""Muennighoff et al., Scaling Data-Constrained Language Models: up to 4 epochs, repeated data is worth nearly as
much as new data, and then its worth decays."""
MAX_STEP_EXAMPLES = 32
"""Schulman et al., LoRA Without Regret: LoRAs lose more than full fine-tuning with larger steps."""
MIN_RANK, MAX_RANK = 8, 256
"""LoRA Without Regret: a LoRA keeps up with full fine-tuning until its data exceed its capacity. The rule here is
one weight per trained token."""
USUAL_RATES = {"lora": (2e-5, 2e-4, 1e-3), "full": (1e-6, 1e-5, 1e-4)}
"""The lowest, the usual and the highest learning rate by method; a stronger LoRA needs lower ones. A tenth of the
rates of QLoRA is usual for full fine-tuning, as in LoRA Without Regret."""
RATE_SOURCES = {
    "lora": "The QLoRA paper (arXiv:2305.14314) used 0.0001 to 0.0002",
    "full": 'Full fine-tuning needs about a tenth of the learning rate of a LoRA (article "LoRA Without Regret")',
}
FORGETS = (
    "In our measurements at 0.003 and more, the loss on general text rose by at least 0.6 (docs/what-works.md)"
)
"""bench/recipe_data/results.csv: all runs of 20 steps or more at these rates, whatever their schedule."""
LONG_EPOCH_STEPS, SAVES_PER_EPOCH, SAVES_PER_RUN, MAX_SAVES = 500, 5, 4, 100


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
    does_not_fit = facts.memory and not facts.memory.fits(facts.memory.memory(facts.settings))
    fitting = largest_batch(facts.memory, facts.settings) if facts.memory and does_not_fit else 0
    if steps.batch_size > max(plan.examples, smaller := SETTINGS["batch_size"].default):
        why = f"The run has only {format_count(plan.examples, 'example')}, so every step trains on all of them."
        return Suggestion("batch_size", smaller, why, also={"accumulation": 1})
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
            f"With many examples per step, here more than {MAX_STEP_EXAMPLES}, a LoRA learns less than full "
            'fine-tuning (article "LoRA Without Regret").'
        )
        return Suggestion("accumulation", smaller, why)
    per_step = format_count(plan.examples_per_step, "example")
    return _keep(
        "batch_size", steps.batch_size, f"With {per_step} per step, an epoch has {_steps(plan.steps_per_epoch)}."
    )


def _epochs(facts: RunFacts) -> Suggestion:
    plan, steps = facts.plan, facts.settings.steps
    if steps.max_steps:
        return _keep("epochs", steps.epochs, f"'Max steps' ends the run after {_steps(plan.steps)}.")
    repeats = facts.settings.text.chunking == "dementor"  # each sentence, within an epoch
    usual_rate = facts.settings.learning.learning_rate <= USUAL_RATES["lora"][-1]
    if plan.steps < MIN_STEPS and usual_rate and not repeats:
        epochs = min(MAX_EPOCHS, -(-MIN_STEPS // plan.steps_per_epoch))
        if epochs > steps.epochs:
            why = (
                f"The run has only {_steps(plan.steps)}. With Adam, a step changes a weight by about the learning "
                "rate at most, so few steps change the model little."
            )
            return Suggestion("epochs", float(epochs), why)
    if plan.examples >= MANY_EXAMPLES and steps.epochs > MANY_EPOCHS:
        why = (
            f"In pretraining, repeated data is worth less and less after {MANY_EPOCHS} epochs (arXiv:2305.16264)."
        )
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
        return _keep("rank", lora.rank, f"{why}.")
    return Suggestion(
        "rank",
        rank,
        f'{why}. A LoRA that is too small for its data learns less (see the article "LoRA Without Regret").',
        also=lora.alpha_for(rank),
    )


def _learning_rate(facts: RunFacts) -> Suggestion:
    lora, rate = facts.settings.lora, facts.settings.learning.learning_rate
    method = "full" if lora.whole_model else "lora"
    lowest, usual, highest = USUAL_RATES[method]
    highest /= 1.0 if lora.whole_model else max(1.0, lora.strength)
    if rate > highest:
        why = f"{FORGETS if method == 'lora' else RATE_SOURCES[method]}."
        return Suggestion("learning_rate", usual, f"A learning rate of {rate:g} is high. {why}")
    if rate < lowest:
        return Suggestion("learning_rate", usual, f"A learning rate of {rate:g} is low. {RATE_SOURCES[method]}.")
    return _keep("learning_rate", rate, f"{RATE_SOURCES[method]}.")


def _warmup(facts: RunFacts) -> Suggestion:
    plan, learning, default = facts.plan, facts.settings.learning, SETTINGS["warmup_steps"].default
    asked, warmup, total = learning.warmup_steps, plan.warmup(learning.warmup_steps), _steps(plan.steps)
    phases = get_schedule(learning.schedule).phases(ScheduleSteps(plan.steps, plan.steps_per_epoch, 1))
    if phases[0].words != "warmup":
        return _keep("warmup_steps", asked, f"{learning.schedule} has no warmup.")
    if 2 * warmup >= plan.steps and warmup > plan.warmup(default):
        why = f"The learning rate rises until step {warmup:,}, and the run has {total}."
        return Suggestion("warmup_steps", default, why)
    if not warmup and "adam" in learning.optimizer:
        why = "Without a warmup, the first steps are large, because Adam's averages rest on few gradients"
        return Suggestion("warmup_steps", default, f"{why} (arXiv:1908.03265).")
    return _keep("warmup_steps", asked, f"The warmup takes {warmup:,} of {total} ({warmup / plan.steps:.0%}).")


def _save_frequency(facts: RunFacts) -> Suggestion:
    plan, saving = facts.plan, facts.settings.saving
    if asked := interval_steps(saving.save_every, plan.steps):
        count = plan.steps // asked
        if not count:
            why = f"The run has only {_steps(plan.steps)}, so this setting saves nothing."
            return Suggestion("save_every", max(1, plan.steps // SAVES_PER_RUN), why)
        if count > MAX_SAVES:
            why = f"This setting saves {count:,} full checkpoints, and the run waits for each of them."
            return Suggestion("save_every", -(-plan.steps // (SAVES_PER_EPOCH * SAVES_PER_RUN)), why)
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
