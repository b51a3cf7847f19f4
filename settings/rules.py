"""What must hold between settings; each rule gives a sentence or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .definitions import TrainingSettings

KEEP = "Keep a part aside (eval_share 0.05)."
MOST_RATE, MOST_WHOLE = 1e-2, 1e-3
FIRST_LOSS = 4.0


def problems(settings: TrainingSettings) -> list[str]:
    """Everything that stands in the way, all at once."""
    return [problem for rule in _RULES for problem in rule(settings)]


def notes(settings: TrainingSettings) -> list[str]:
    """What is ignored, and why: nothing to mend."""
    said = []
    if settings.text.chunking == "dementor" and settings.text.overlap:
        said.append("DEMENTOR overlaps by itself: Overlap blocks is ignored.")
    if settings.aside.eval_every and _nothing_is_kept_aside(settings):
        said.append("Evaluate every: nothing is kept aside, so there is nothing to evaluate.")
    if settings.lora.head_rate != 1 and not settings.lora.train_head:
        said.append("Train Head, rate: Train Head is off, so nothing goes by it.")
    return said


def _nothing_is_kept_aside(settings: TrainingSettings) -> bool:
    return not settings.aside.eval_data and not settings.aside.eval_share


def advice(settings: TrainingSettings) -> list[str]:
    """What works, but probably not as meant."""
    return [sentence for rule in _ADVICE for sentence in rule(settings)]


def _data_is_named(settings: TrainingSettings) -> Iterator[str]:
    if not settings.what.data:
        yield "Data: nothing is chosen. Choose a text, for example story.txt."


def _strength(settings: TrainingSettings) -> Iterator[str]:
    lora = settings.lora
    if lora.strength > 4:
        yield (
            f"LoRA strength {lora.strength:.3g} (alpha {lora.alpha:g}, rank {lora.rank}) is high, and the "
            f"training may break down. Try alpha {round(lora.alpha / lora.strength)}."
        )


def _rate(settings: TrainingSettings) -> Iterator[str]:
    rate, lora = settings.learning.learning_rate, settings.lora
    most, usual = (MOST_WHOLE, 1e-5) if lora.whole_model else (MOST_RATE / max(1.0, lora.strength), 2e-4)
    if rate > most:
        yield (
            f"Learning Rate {rate:g} is far above what is usual here ({usual:g}), and the training may break "
            f"down. Try {usual:g}."
        )
    elif rate * lora.lora_plus > most:
        yield (
            f"LoRA+ {lora.lora_plus:g}: half of the LoRA learns at {rate * lora.lora_plus:g}, far above what is "
            f"usual ({usual:g}), and the training may break down. Try a Learning Rate of "
            f"{most / lora.lora_plus / 2:.0e}."
        )


def _stops_at_its_beginning(settings: TrainingSettings) -> Iterator[str]:
    if settings.stopping.stop_at_loss >= FIRST_LOSS:
        yield (
            f"Stop at Loss {settings.stopping.stop_at_loss:g}: most models begin below that on a language they "
            "know, and the run would end with its first steps. Try 1.5, or 0 for no such stop."
        )


def _end_after_every_block(settings: TrainingSettings) -> Iterator[str]:
    if settings.text.add_eos == "every_block":
        yield (
            "End token after every block: the model learns to stop in the middle of a text. "
            "Better: at each hard cut."
        )


def _pairs_fill_batches(settings: TrainingSettings) -> Iterator[str]:
    size = settings.steps.batch_size
    if _changes_over(settings) and settings.switching.switch_pairs and size % 2:
        yield (
            f"Pairs in between: two neighbours stand in one batch, which wants an even batch size. It is {size}; "
            f"use {size + 1}, or leave pairs off."
        )


def _changes_come_in_order(settings: TrainingSettings) -> Iterator[str]:
    s = settings.switching
    if not _changes_over(settings):
        return
    if s.switch_after != "loss" and s.switch_pairs and s.second_switch_at <= s.switch_at:
        when = "before" if s.second_switch_at < s.switch_at else "together with"
        yield (
            f"Second change at {s.second_switch_at}: it comes {when} the first one ({s.switch_at}). "
            f"Use {s.switch_at + 1} or more."
        )
    if s.switch_after == "loss" and s.switch_pairs and s.second_switch_loss_high >= s.switch_loss_high:
        yield (
            f"Second change at loss: its upper bound {s.second_switch_loss_high:g} is not under that of the first "
            f"one, {s.switch_loss_high:g}, so both would come at once. Use a lower one."
        )
    bands = [("Change over", s.switch_loss_low, s.switch_loss_high)]
    bands += [("Second change", s.second_switch_loss_low, s.second_switch_loss_high)] if s.switch_pairs else []
    for name, low, high in bands:
        if s.switch_after == "loss" and low > high:
            yield f"{name} at loss: the lower bound {low:g} is above the upper one, {high:g}. Exchange them."


def _test_data_is_not_learned(settings: TrainingSettings) -> Iterator[str]:
    learned = {_plain(name) for name in settings.what.data}
    for name in settings.aside.eval_data:
        if _plain(name) in learned:
            yield (
                f"Test data: {name} is learned from too. Take it out of one of the two, or keep a share of it "
                "aside instead."
            )


def _plain(name: str) -> str:
    """A data set's name, however it is written: 'book/:50' is the folder 'book'."""
    return name.partition(":")[0].strip().rstrip("/\\")


def _changes_over(settings: TrainingSettings) -> bool:
    return settings.steps.batching == "length_then_order"


def _head_is_large(settings: TrainingSettings) -> Iterator[str]:
    optimizer = settings.learning.optimizer
    keeps_two = "adam" in optimizer and not any(small in optimizer for small in ("8bit", "4bit"))
    if settings.lora.train_head and keeps_two:
        yield (
            "Train Head: embeddings and output layer are trained whole, and the optimizer keeps two more numbers "
            "for each of theirs. An 8-bit optimizer (adamw_8bit) takes a quarter of that, or half where the "
            "model is loaded in 16 bits."
        )


def _evaluations_come(settings: TrainingSettings) -> Iterator[str]:
    if not _nothing_is_kept_aside(settings):
        return
    if settings.stopping.early_stopping:
        yield "Early stopping: it looks at evaluations, and nothing is kept aside for them. " + KEEP
    if settings.saving.keep_best == "accuracy":
        yield "Keep the best, by its accuracy: nothing is kept aside to tell it by. " + KEEP


_RULES: tuple[Callable[[TrainingSettings], Iterator[str]], ...] = (
    _data_is_named,
    _evaluations_come,
    _pairs_fill_batches,
    _changes_come_in_order,
    _test_data_is_not_learned,
)
_ADVICE: tuple[Callable[[TrainingSettings], Iterator[str]], ...] = (
    _strength,
    _rate,
    _stops_at_its_beginning,
    _end_after_every_block,
    _head_is_large,
)
