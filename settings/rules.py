"""Rules that need only the settings. Each rule yields findings, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..core.findings import Finding, advice, note, problem
from .definitions import TrainingSettings

SPLIT_HINT = "Keep a part aside (eval_share 0.05)."
MAX_LORA_RATE, MAX_FULL_RATE = 1e-2, 1e-3
USUAL_FIRST_LOSS = 4.0


def check_settings(settings: TrainingSettings) -> list[Finding]:
    """Return what prevents a run, what works but probably not as intended, and what is ignored."""
    return [finding for rule in _RULES for finding in rule(settings)]


def _ignored_settings(settings: TrainingSettings) -> Iterator[Finding]:
    if settings.text.chunking == "dementor" and settings.text.overlap:
        yield note("overlap", "DEMENTOR overlaps by itself: Overlap blocks is ignored.")
    if settings.aside.eval_every and _has_no_eval_data(settings):
        yield note("eval_every", "Evaluate every: nothing is kept aside, so there is nothing to evaluate.")
    if settings.lora.head_rate != 1 and not settings.lora.train_head:
        yield note("head_rate", "Train Head, rate: Train Head is off, so nothing goes by it.")


def _has_no_eval_data(settings: TrainingSettings) -> bool:
    return not settings.aside.eval_data and not settings.aside.eval_share


def _missing_data(settings: TrainingSettings) -> Iterator[Finding]:
    if not settings.what.data:
        yield problem("data", "Dataset: nothing is chosen. Choose a text, for example story.txt.")


def _high_strength(settings: TrainingSettings) -> Iterator[Finding]:
    lora = settings.lora
    if lora.strength > 4:
        yield advice(
            "alpha",
            f"LoRA strength {lora.strength:.3g} (alpha {lora.alpha:g}, rank {lora.rank}) is high, and the "
            f"training may break down. Try alpha {round(lora.alpha / lora.strength)}.",
        )


def _high_learning_rate(settings: TrainingSettings) -> Iterator[Finding]:
    rate, lora = settings.learning.learning_rate, settings.lora
    max_rate, usual_rate = (
        (MAX_FULL_RATE, 1e-5) if lora.whole_model else (MAX_LORA_RATE / max(1.0, lora.strength), 2e-4)
    )
    if rate > max_rate:
        yield advice(
            "learning_rate",
            f"Learning Rate {rate:g} is far above what is usual here ({usual_rate:g}), and the training may break "
            f"down. Try {usual_rate:g}.",
        )
    elif rate * lora.lora_plus > max_rate:
        yield advice(
            "learning_rate",
            f"LoRA+ {lora.lora_plus:g}: half of the LoRA learns at {rate * lora.lora_plus:g}, far above what is "
            f"usual ({usual_rate:g}), and the training may break down. Try a Learning Rate of "
            f"{max_rate / lora.lora_plus / 2:.0e}.",
        )


def _stops_at_start(settings: TrainingSettings) -> Iterator[Finding]:
    if settings.stopping.stop_at_loss >= USUAL_FIRST_LOSS:
        yield advice(
            "stop_at_loss",
            f"Stop at Loss {settings.stopping.stop_at_loss:g}: most models begin below that on a language they "
            "know, and the run would end with its first steps. Try 1.5, or 0 for no such stop.",
        )


def _eos_after_every_block(settings: TrainingSettings) -> Iterator[Finding]:
    if settings.text.add_eos == "every_block":
        yield advice(
            "add_eos",
            "End token after every block: the model learns to stop in the middle of a text. "
            "Better: at each hard cut.",
        )


def _odd_batch_with_pairs(settings: TrainingSettings) -> Iterator[Finding]:
    size = settings.steps.batch_size
    if _has_switch(settings) and settings.switching.switch_pairs and size % 2:
        yield problem(
            "batch_size",
            "Pair phase: two neighbours stand in one batch, which wants an even batch size. It is "
            f"{size}; use {size + 1}, or leave pairs off.",
        )


def _switch_order(settings: TrainingSettings) -> Iterator[Finding]:
    s = settings.switching
    if not _has_switch(settings):
        return
    if s.switch_after != "loss" and s.switch_pairs and s.second_switch_at <= s.switch_at:
        when = "before" if s.second_switch_at < s.switch_at else "together with"
        yield problem(
            "second_switch_at",
            f"Second switch at {s.second_switch_at}: it comes {when} the first one ({s.switch_at}). "
            f"Use {s.switch_at + 1} or more.",
        )
    if s.switch_after == "loss" and s.switch_pairs and s.second_switch_loss_high >= s.switch_loss_high:
        yield problem(
            "second_switch_loss_high",
            f"Second switch at loss: its upper bound {s.second_switch_loss_high:g} is not under that "
            f"of the first one, {s.switch_loss_high:g}, so both would come at once. Use a lower one.",
        )
    bands = [("Change over", "switch_loss_low", s.switch_loss_low, s.switch_loss_high)]
    if s.switch_pairs:
        bands.append(
            ("Second change", "second_switch_loss_low", s.second_switch_loss_low, s.second_switch_loss_high)
        )
    for name, key, low, high in bands:
        if s.switch_after == "loss" and low > high:
            yield problem(
                key, f"{name} at loss: the lower bound {low:g} is above the upper one, {high:g}. Exchange them."
            )


def _eval_data_in_training_data(settings: TrainingSettings) -> Iterator[Finding]:
    training_names = {_dataset_name(name) for name in settings.what.data}
    for name in settings.aside.eval_data:
        if _dataset_name(name) in training_names:
            yield problem(
                "eval_data",
                f"Evaluation dataset: {name} is learned from too. Take it out of one of the two, or "
                "keep a share of it aside instead.",
            )


def _dataset_name(name: str) -> str:
    """Return the name of a dataset without its share and slash: 'book/:50' is the folder 'book'."""
    return name.partition(":")[0].strip().rstrip("/\\")


def _has_switch(settings: TrainingSettings) -> bool:
    return settings.steps.batching == "length_then_order"


def _large_head(settings: TrainingSettings) -> Iterator[Finding]:
    optimizer = settings.learning.optimizer
    has_two_states = "adam" in optimizer and not any(suffix in optimizer for suffix in ("8bit", "4bit"))
    if settings.lora.train_head and has_two_states:
        yield advice(
            "optimizer",
            "Train Head: embeddings and output layer are trained whole, and the optimizer keeps two more numbers "
            "for each of theirs. An 8-bit optimizer (adamw_8bit) takes a quarter of that, or half where the "
            "model is loaded in 16 bits.",
        )


def _missing_eval_data(settings: TrainingSettings) -> Iterator[Finding]:
    if not _has_no_eval_data(settings):
        return
    if settings.stopping.early_stopping:
        yield problem(
            "early_stopping",
            f"Early stopping: it looks at evaluations, and nothing is kept aside for them. {SPLIT_HINT}",
        )
    if settings.saving.keep_best == "accuracy":
        yield problem(
            "keep_best", f"Keep the best, by its accuracy: nothing is kept aside to tell it by. {SPLIT_HINT}"
        )


_RULES: tuple[Callable[[TrainingSettings], Iterator[Finding]], ...] = (
    _missing_data,
    _missing_eval_data,
    _odd_batch_with_pairs,
    _switch_order,
    _eval_data_in_training_data,
    _high_strength,
    _high_learning_rate,
    _stops_at_start,
    _eos_after_every_block,
    _large_head,
    _ignored_settings,
)
