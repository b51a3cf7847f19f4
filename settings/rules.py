"""Rules that need only the settings."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.findings import Finding, advice, note, problem
from .definitions import RANDOM_SEED, TrainingSettings

SPLIT_HINT = "Use a validation split (eval_share 0.05)."
MAX_LORA_RATE, MAX_FULL_RATE = 1e-2, 1e-3
USUAL_FIRST_LOSS = 4.0
DROP_FACTOR = 0.9
HOLD_STEPS = 3
"""Steps in a row that the smoothed loss must stay below the level before the drop counts."""
MAX_USUAL_SPLIT = 0.5


def check_settings(settings: TrainingSettings) -> list[Finding]:
    """Return what prevents a run, and what works but probably not as intended."""
    return [*_check_data(settings), *_check_switches(settings), *_check_learning(settings)]


def _check_data(settings: TrainingSettings) -> Iterator[Finding]:
    """Dataset, seed, end tokens and validation data."""
    what, aside = settings.what, settings.aside
    if not what.data:
        yield problem("data", "Dataset: choose at least one file, for example story.txt.")
    if RANDOM_SEED in (what.seed, what.data_seed):
        yield note(
            "seed",
            "Seed -1: the run picks its seed when it starts, but 'Check' and 'Test one step' use seed 0. The "
            "run may therefore use a different validation split, and different examples from datasets that you "
            "use only in part.",
        )
    if begin := settings.saving.save_on_loss_drop:
        yield note(
            "save_on_loss_drop",
            f"Save when the loss falls below {begin:g}: the first of these checkpoints is saved when the smoothed "
            f"loss is 10% lower, at {DROP_FACTOR * begin:.4g}, and stays there for {HOLD_STEPS} steps.",
        )
    if settings.text.add_eos == "every_block":
        yield advice(
            "add_eos",
            "Add EOS token: 'After every block' teaches the model to stop in the middle of a text. "
            "'At each hard cut' is better.",
        )
    if not aside.eval_data and not aside.eval_share and settings.stopping.early_stopping:
        yield problem(
            "early_stopping",
            f"Early stopping: this needs evaluations, but there is no validation split. {SPLIT_HINT}",
        )
    if not aside.eval_data and not aside.eval_share and settings.saving.keep_best == "accuracy":
        yield problem(
            "keep_best",
            f"Keep the best, by accuracy: there is no validation split to measure the accuracy on. {SPLIT_HINT}",
        )
    training_names = {_dataset_name(name) for name in what.data}
    for name in (name for name in aside.eval_data if _dataset_name(name) in training_names):
        yield problem(
            "eval_data",
            f"Evaluation dataset: {name} is also in the training data. Remove it from either the training "
            "data or the evaluation dataset, or use a validation split instead.",
        )
    if aside.eval_share > MAX_USUAL_SPLIT:
        yield advice(
            "eval_share",
            f"Validation split {aside.eval_share:g}: the run trains on only {1 - aside.eval_share:.0%} of the "
            f"dataset. If {aside.eval_share:g} is the part to train on, enter {1 - aside.eval_share:.4g}.",
        )


def _dataset_name(name: str) -> str:
    """Return the name of a dataset without its share and slash: 'book/:50' is the folder 'book'."""
    return name.partition(":")[0].strip().rstrip("/\\")


def _check_switches(settings: TrainingSettings) -> Iterator[Finding]:
    """The phases of hybrid batching: each in its place, and an even batch for pairs."""
    s, size = settings.switching, settings.steps.batch_size
    if settings.steps.batching != "length_then_order":
        return
    if s.switch_pairs and size % 2:
        yield problem(
            "batch_size",
            f"Pair phase: each batch consists of pairs of neighboring examples, so the batch size must be "
            f"even. It is {size}. Use {size + 1}, or turn the pair phase off.",
        )
    if s.switch_after != "loss":
        if s.switch_pairs and s.second_switch_at <= s.switch_at:
            when = "before" if s.second_switch_at < s.switch_at else "at the same time as"
            yield problem(
                "second_switch_at",
                f"Second switch at {s.second_switch_at}: this is {when} the first switch ({s.switch_at}). "
                f"Use {s.switch_at + 1} or more.",
            )
        return
    if s.switch_pairs and s.second_switch_loss_high >= s.switch_loss_high:
        yield problem(
            "second_switch_loss_high",
            f"Second switch at loss: the upper bound {s.second_switch_loss_high:g} is not below that of "
            f"the first switch ({s.switch_loss_high:g}), so both switches would happen at the same time. "
            "Use a lower value.",
        )
    bands = [("Switch", "switch_loss_low", s.switch_loss_low, s.switch_loss_high)]
    second = ("Second switch", "second_switch_loss_low", s.second_switch_loss_low, s.second_switch_loss_high)
    for name, key, low, high in [*bands, *[second] * s.switch_pairs]:
        if low > high:
            yield problem(
                key, f"{name} at loss: the lower bound {low:g} is above the upper bound {high:g}. Swap them."
            )


def _check_learning(settings: TrainingSettings) -> Iterator[Finding]:
    """Strength of the LoRA, learning rate, stopping and optimizer."""
    lora, rate, optimizer = settings.lora, settings.learning.learning_rate, settings.learning.optimizer
    if lora.strength > 4:
        yield advice(
            "alpha",
            f"The LoRA scaling {lora.strength:.3g} (alpha {lora.effective_alpha:g}, rank {lora.rank}) is high. It "
            "multiplies what the LoRA adds to each layer. "
            f"Try alpha {round(lora.effective_alpha / lora.strength)}.",
        )
    lora_rate = MAX_LORA_RATE / max(1.0, lora.strength)
    max_rate, usual_rate = (MAX_FULL_RATE, 1e-5) if lora.whole_model else (lora_rate, 2e-4)
    if rate > max_rate:
        yield advice(
            "learning_rate",
            f"Learning Rate {rate:g} is far above the usual value ({usual_rate:g}), so training "
            f"may diverge. Try {usual_rate:g}.",
        )
    elif rate * lora.lora_plus > max_rate:
        yield advice(
            "learning_rate",
            f"LoRA+ {lora.lora_plus:g} raises the rate of the LoRA's B matrices to {rate * lora.lora_plus:g}, far "
            f"above the usual value ({usual_rate:g}), so training may diverge. Try a Learning Rate of "
            f"{max_rate / lora.lora_plus / 2:.0e}.",
        )
    if settings.stopping.stop_at_loss >= USUAL_FIRST_LOSS:
        yield advice(
            "stop_at_loss",
            f"Stop at loss {settings.stopping.stop_at_loss:g}: many models start near or below this loss, and "
            "then the run ends within its first steps. Use a lower value, or 0 to turn this off.",
        )
    has_two_states = "adam" in optimizer and not any(suffix in optimizer for suffix in ("8bit", "4bit"))
    if lora.train_head and has_two_states:
        yield advice(
            "optimizer",
            "Train Head: the embeddings and the output layer are trained in full, and the optimizer "
            "stores two additional values for each of their weights. An 8-bit optimizer (adamw_8bit) needs "
            "a quarter of that memory, or half if the model is loaded in 16 bits.",
        )
