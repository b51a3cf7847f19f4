"""What the steps of a run show: findings, and values that fit these data on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...core.findings import Finding, Suggestion, advice, note, problem
from ...core.model_shape import target_layers
from ...schedulers import ScheduleSteps, find_crossed_points, get_schedule
from ...settings.definitions import SETTINGS, TrainingSettings
from ...train_utils import StepPlan, format_count, format_times, interval_steps
from .. import batch_order
from ..examples import Examples, RowSource
from .estimates import MemoryModel, largest_batch

FALLING_LATER = ("FP_low_epoch_annealing", "FP_step_decay_with_warmup")  # constant in the first epoch
MIN_STEPS, MAX_EPOCHS = 30, 10
# Muennighoff et al., Scaling Data-Constrained Language Models (arXiv:2305.16264): up to 4 epochs, repeated data is
# worth nearly as much as new data, and then its worth decays.
MANY_EXAMPLES, MANY_EPOCHS, USUAL_EPOCHS = 1000, 4, 3
# Schulman et al., LoRA Without Regret: LoRAs lose more than full fine-tuning with larger steps.
MAX_STEP_EXAMPLES = 32
# LoRA Without Regret: a LoRA keeps up with full fine-tuning until its data exceed its capacity. The rule here is
# one weight per trained token.
MIN_RANK, MAX_RANK = 8, 256
# The lowest, the usual and the highest learning rate by method; a stronger LoRA needs lower ones. A tenth of the
# rates of QLoRA is usual for full fine-tuning, as in LoRA Without Regret.
USUAL_RATES = {"lora": (2e-5, 2e-4, 1e-3), "full": (1e-6, 1e-5, 1e-4), "preferences": (1e-6, 2e-5, 1e-4)}
RATE_SOURCES = {
    "lora": "The QLoRA paper (arXiv:2305.14314) used 0.0001 to 0.0002",
    "full": 'Full fine-tuning needs about a tenth of the learning rate of a LoRA (article "LoRA Without Regret")',
    "preferences": "Learning from preferences needs about a tenth of the learning rate for next tokens",
}
# bench/recipe_data: whatever their schedule.
FORGETTING_RATE = 3e-3
FORGETS = (
    "In all of our measurements of more than one pass and 20 steps at 0.003 and more, the loss on general "
    "text rose by at least 0.1 (bench/recipe_data)"
)
LONG_EPOCH_STEPS, SAVES_PER_EPOCH, SAVES_PER_RUN, MAX_SAVES = 500, 5, 4, 100


def check_plan(
    settings: TrainingSettings, plan: StepPlan, examples: Examples, validation: Examples, context: int
) -> Iterator[Finding]:
    """Yield the findings on the steps of a run; `context` is the most tokens that the model takes."""
    schedule, stopping, aside = settings.learning.schedule, settings.stopping, settings.aside
    epochs = plan.steps / plan.steps_per_epoch
    for crossed in find_crossed_points(schedule, ScheduleSteps(plan.steps, plan.steps_per_epoch)):
        yield problem("schedule", f"LR Scheduler: {crossed}")
    if schedule in FALLING_LATER and epochs <= 1:
        yield note(
            "schedule",
            f"With {schedule} and a single epoch, the learning rate stays constant. To lower it toward the end of "
            "the run, train for more epochs, or choose cosine.",
        )
    if stopping.stop_at_epoch > epochs:
        yield advice(
            "stop_at_epoch",
            f"Stop at epoch: the value {stopping.stop_at_epoch:g} has no effect, because the run ends at epoch "
            f"{epochs:.3g}. Set it to 0 (off).",
        )
    if stopping.early_stopping and (aside.eval_data or aside.eval_share):
        every = interval_steps(aside.eval_every, plan.steps) or plan.steps_per_epoch
        possible = (plan.steps - 1) // every  # an evaluation at the last step stops nothing
        better = (plan.steps - 1) // stopping.early_stopping
        if possible < stopping.early_stopping:
            remedy = f"Set 'Evaluate every' to {better} or less." if better else "Set it to 0 (off)."
            yield advice(
                "early_stopping",
                f"Early stopping {stopping.early_stopping}: with an evaluation every "
                f"{'step' if every == 1 else f'{every} steps'}, a run of {format_count(plan.steps, 'step')} has "
                f"only {format_count(possible, 'evaluation')} before its end, so it never stops early. {remedy}",
            )
    if settings.steps.batching == "length_then_order":
        yield from _check_hybrid_batching(settings, plan, examples, context)
    activities = []
    if rounds := count_sample_rounds(settings, plan):
        from_data = isinstance(settings.samples.sample_prompts, str)
        source = "passages from your data" if from_data else "your prompts"
        activities.append(f"the model continues {source} {format_times(rounds)} to show samples")
    if count := count_evaluations(settings, plan, validation):
        tokens = f"{sum(validation.lengths()):,} tokens"
        activities.append(f"the model is evaluated on the validation split ({tokens}) {format_times(count)}")
    if activities:
        yield note("sample_every" if rounds else "eval_every", f"During the run, {', and '.join(activities)}.")
    if plan.processes > 1:
        yield note(
            "batch_size",
            f"With {plan.processes} processes, one step uses {plan.examples_per_step} examples (True Batch "
            f"Size {plan.batch_size} x Gradient Accumulation {plan.effective_accumulation} x {plan.processes} "
            "processes).",
        )
        if plan.repeated_examples:
            yield note(
                "batch_size",
                f"The {plan.examples} examples do not divide evenly among all processes, so each epoch repeats "
                f"{plan.repeated_examples} of them at its end.",
            )


def _check_hybrid_batching(
    settings: TrainingSettings, plan: StepPlan, examples: Examples, context: int
) -> Iterator[Finding]:
    """Check that each change of the order comes before the end of the run, and that there are pairs."""
    switching, unit = settings.switching, settings.switching.switch_after
    count = plan.steps if unit == "steps" else math.ceil(plan.steps / plan.steps_per_epoch)
    switches = [("switch_at", "batches stay grouped by length")]
    switches += [("second_switch_at", "the pair phase lasts until the end")] * switching.switch_pairs
    late = [each for each in switches if unit != "loss" and getattr(switching, each[0]) >= count]
    for key, effect in late[:1]:
        finer = "" if unit == "steps" else "set 'Switch after' to Steps, "
        yield advice(
            key,
            f"{SETTINGS[key].label} {getattr(switching, key)} is never reached, so {effect}: the run has "
            f"{format_count(count, unit[:-1])}. Use a lower value, {finer}or train for more epochs.",
        )
    if not switching.switch_pairs:
        return
    successors, lengths = examples.successors(), examples.lengths()
    if batch_order.find_pairs(np.arange(len(examples)), successors, lengths, context)[0]:
        return
    reason = f"no two adjacent examples fit together in the model's context of {context} tokens"
    remedy = f"use a cutoff of {context // 2}"
    if max(successors) < 0:
        reason = f"none of the {len(examples)} examples starts where another one ends"
        remedy = "lower the cutoff to get more blocks"
        if any(isinstance(source, RowSource) for source in examples.sources):
            remedy = f"turn on {SETTINGS['split_exchanges'].label} if your chats have several turns"
    yield advice(
        "switch_pairs", f"Pair phase: {reason}, so there are no pairs. Turn off the pair phase, or {remedy}."
    )


def evaluation_interval(settings: TrainingSettings, plan: StepPlan, validation: Examples) -> int:
    """Steps between two evaluations; 0 without a validation split."""
    every = interval_steps(settings.aside.eval_every, plan.steps) or plan.steps_per_epoch
    return every if len(validation) else 0


def count_evaluations(settings: TrainingSettings, plan: StepPlan, validation: Examples) -> int:
    """Count the evaluations of the validation split: also where the phase of hybrid batching changes."""
    every, switching = evaluation_interval(settings, plan, validation), settings.switching
    if not every:
        return 0
    switches: set[int] = set()
    if settings.steps.batching == "length_then_order" and switching.switch_after != "loss":
        length = plan.steps_per_epoch if switching.switch_after == "epochs" else 1
        counts = (switching.switch_at, *(switching.second_switch_at,) * switching.switch_pairs)
        switches = {count * length for count in counts if 0 < count * length < plan.steps}
    return plan.occurrences(every) + sum(step % every > 0 for step in switches)


def sample_interval(settings: TrainingSettings, plan: StepPlan) -> int:
    """Steps between two answers to the sample prompts; 0 for never."""
    every = settings.samples.sample_every
    return 0 if every == "never" else plan.steps_per_epoch if every == "epoch" else int(every)


def count_sample_rounds(settings: TrainingSettings, plan: StepPlan) -> int:
    every = sample_interval(settings, plan)
    return plan.occurrences(every) if every else 0


def suggest_settings(
    settings: TrainingSettings, plan: StepPlan, memory: MemoryModel | None, trained_tokens: int
) -> Iterator[Suggestion]:
    """One suggestion for each setting that a beginner asks about: a value with its reason, or "as it is"."""
    yield from _suggest_steps(settings, plan, memory)
    yield from _suggest_learning(settings, plan, memory, trained_tokens)
    saving, asked = settings.saving, interval_steps(settings.saving.save_every, plan.steps)
    count = plan.steps // asked if asked else 0
    if asked and not count:
        why = f"The run has only {_steps(plan.steps)}, so this setting saves nothing."
        yield Suggestion("save_every", max(1, plan.steps // SAVES_PER_RUN), why)
    elif count > MAX_SAVES:
        why = f"This setting saves {count:,} full checkpoints, and the run waits for each of them."
        yield Suggestion("save_every", -(-plan.steps // (SAVES_PER_EPOCH * SAVES_PER_RUN)), why)
    elif count:
        why = f"This setting saves {format_count(count, 'checkpoint')} during the run."
        yield _keep("save_every", saving.save_every, why)
    elif min(plan.steps_per_epoch, plan.steps) > LONG_EPOCH_STEPS:
        why = f"An epoch has {_steps(plan.steps_per_epoch)}, so save more than once per epoch."
        every = min(plan.steps_per_epoch, plan.steps) / SAVES_PER_EPOCH
        yield Suggestion("save_every", round(every, -2), why)
    elif not saving.save_each_epoch and not saving.backup_minutes:
        if plan.steps > SAVES_PER_RUN and saving.keep_best == "no" and not saving.save_on_loss_drop:
            yield Suggestion("save_every", plan.steps // SAVES_PER_RUN, "The run saves nothing before it ends.")
    else:
        minutes = f"{saving.backup_minutes:g} minutes" if saving.backup_minutes != 1 else "minute"
        when = "at the end of each epoch" if saving.save_each_epoch else f"every {minutes}"
        yield _keep("save_every", saving.save_every, f"A full checkpoint is saved {when} anyway.")


def _suggest_steps(settings: TrainingSettings, plan: StepPlan, memory: MemoryModel | None) -> Iterator[Suggestion]:
    """Suggest the examples of a step, and the epochs."""
    steps, usual, is_lora = settings.steps, SETTINGS["batch_size"].default, not settings.lora.whole_model
    fits = memory is None or memory.fits(memory.memory(settings))
    fitting = largest_batch(memory, settings) if memory and not fits else 0
    if steps.batch_size > max(plan.examples, usual):
        why = f"The run has only {format_count(plan.examples, 'example')}, so every step trains on all of them."
        yield Suggestion("batch_size", usual, why, also={"accumulation": 1})
    elif plan.effective_accumulation < plan.accumulation:
        why = f"An epoch has {format_count(plan.batches, 'batch', 'batches')}."
        yield Suggestion("accumulation", plan.effective_accumulation, why)
    elif fitting:
        smaller = max(1 << (fitting.bit_length() - 1), 2 if settings.has_pairs else 1)
        accumulation = -(-steps.batch_size * steps.accumulation // smaller)
        why = f"The free memory has room for at most {format_count(fitting, 'example')} at once."
        yield Suggestion("batch_size", smaller, why, also={"accumulation": accumulation})
    elif is_lora and plan.examples_per_step > MAX_STEP_EXAMPLES and steps.accumulation > 1:
        smaller = max(1, steps.accumulation * MAX_STEP_EXAMPLES // plan.examples_per_step)
        why = (
            f"With many examples per step, here more than {MAX_STEP_EXAMPLES}, a LoRA learns less than full "
            'fine-tuning (article "LoRA Without Regret").'
        )
        yield Suggestion("accumulation", smaller, why)
    elif fits:
        why = f"With {format_count(plan.examples_per_step, 'example')} per step, an epoch has"
        yield _keep("batch_size", steps.batch_size, f"{why} {_steps(plan.steps_per_epoch)}.")

    # DEMENTOR repeats each sentence within an epoch, and a high learning rate makes up for few steps.
    needs_steps = (
        settings.text.chunking != "dementor" and settings.learning.learning_rate <= USUAL_RATES["lora"][-1]
    )
    most = MANY_EPOCHS if plan.examples >= MANY_EXAMPLES else MAX_EPOCHS
    epochs = min(most, -(-MIN_STEPS // plan.steps_per_epoch))
    if steps.max_steps:
        yield _keep("epochs", steps.epochs, f"'Max steps' ends the run after {_steps(plan.steps)}.")
    elif plan.steps < MIN_STEPS and needs_steps and epochs > steps.epochs:
        # Kingma and Ba, Adam (arXiv:1412.6980), section 2.1: a step is bounded by about the learning rate.
        why = "With Adam, a step changes a weight by about the learning rate at most, so few steps do little."
        yield Suggestion("epochs", float(epochs), f"The run has only {_steps(plan.steps)}. {why}")
    elif plan.examples >= MANY_EXAMPLES and steps.epochs > MANY_EPOCHS:
        why = f"In pretraining, repeated data is worth less after {MANY_EPOCHS} epochs (arXiv:2305.16264)."
        yield Suggestion("epochs", float(USUAL_EPOCHS), why)
    else:
        yield _keep("epochs", steps.epochs, f"The run has {_steps(plan.steps)}.")


def _suggest_learning(
    settings: TrainingSettings, plan: StepPlan, memory: MemoryModel | None, trained_tokens: int
) -> Iterator[Suggestion]:
    """Suggest the rank, the learning rate and the warmup."""
    lora, learning = settings.lora, settings.learning
    if lora.whole_model:
        yield _keep("rank", lora.rank, "Full fine-tuning trains all weights instead of a LoRA.")
    elif memory is None:
        yield _keep("rank", lora.rank, "The size of this model is unknown.")
    else:
        shape, layers, rank = memory.shape, target_layers(lora.targets), MIN_RANK
        largest = min([MAX_RANK, shape.hidden, *shape.lora_sides(layers).values()])
        while 2 * rank <= largest and shape.lora_weights(rank, layers) < trained_tokens:
            rank *= 2
        weights, tokens = shape.lora_weights(lora.rank, layers), format_count(trained_tokens, "trained token")
        why = f"A LoRA of rank {lora.rank} has {weights:,} weights for {tokens}."
        if rank <= lora.rank or weights >= trained_tokens:
            yield _keep("rank", lora.rank, why)
        else:
            why += ' A LoRA that is too small for its data learns less (see the article "LoRA Without Regret").'
            yield Suggestion("rank", rank, why, also=lora.alpha_for(rank))

    rate, method = learning.learning_rate, "full" if lora.whole_model else "lora"
    if settings.preferences.compares and not lora.whole_model:
        method = "preferences"
    strength = 1.0 if lora.whole_model else max(1.0, lora.strength)
    lowest, usual, highest = (each / strength for each in USUAL_RATES[method])
    usual = float(f"{usual:.1g}")
    if rate > highest:
        is_measured = method == "lora" and rate >= FORGETTING_RATE and plan.steps > plan.steps_per_epoch
        why = f"{FORGETS if is_measured else RATE_SOURCES[method]}."
        yield Suggestion("learning_rate", usual, f"A learning rate of {rate:g} is high. {why}")
    elif rate < lowest:
        why = f"A learning rate of {rate:g} is low. {RATE_SOURCES[method]}."
        yield Suggestion("learning_rate", usual, why)
    else:
        yield _keep("learning_rate", rate, f"{RATE_SOURCES[method]}.")

    asked, default = learning.warmup_steps, SETTINGS["warmup_steps"].default
    warmup, total = plan.warmup(asked), _steps(plan.steps)
    phases = get_schedule(learning.schedule).phases(ScheduleSteps(plan.steps, plan.steps_per_epoch, 1))
    if phases[0].words != "warmup":
        yield _keep("warmup_steps", asked, f"{learning.schedule} has no warmup.")
    elif 2 * warmup >= plan.steps and warmup > plan.warmup(default):
        why = f"The learning rate rises until step {warmup:,}, and the run has {total}."
        yield Suggestion("warmup_steps", default, why)
    elif not warmup and "adam" in learning.optimizer:
        why = "Without a warmup, the first steps are large, because Adam's averages rest on few gradients"
        yield Suggestion("warmup_steps", default, f"{why} (arXiv:1908.03265).")
    else:
        why = f"The warmup takes {warmup:,} of {total} ({warmup / plan.steps:.0%})."
        yield _keep("warmup_steps", asked, why)


def _keep(key: str, value: float, why: str) -> Suggestion:
    return Suggestion(key, value, why, keep=True)


def _steps(count: int) -> str:
    return format_count(count, "step")
