"""Suggested settings: key, value and reason; the page applies them with one click."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...settings.definitions import TrainingSettings
from ...train_utils import StepPlan, plural
from ..examples import Source, TextSource, batch_order, truncation

MIN_STEPS, MAX_EPOCHS = 30, 10
LONG_EPOCH_STEPS = 500
SAVES_PER_EPOCH = 5
SettingValue = int | float | str | bool | tuple[str, ...]
"""The types of a setting's value."""


@dataclass(frozen=True)
class Suggestion:
    """A setting that fits the data better."""

    key: str
    value: SettingValue
    why: str

    @property
    def words(self) -> str:
        """The value as the page and the console show it."""
        return format_value(self.value)


def format_value(value: SettingValue) -> str:
    """Format a value by its type: numbers without trailing zeros, texts on one line, lists with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(map(format_value, value)) or "nothing"
    if isinstance(value, str):
        return "".join(_escape(character) for character in value) or "nothing"
    return str(value)


def _escape(character: str) -> str:
    """Escape an unprintable character as in a setting: a line break as \\n."""
    return character if character.isprintable() else repr(character)[1:-1]


def suggest_settings(
    settings: TrainingSettings, plan: StepPlan, *, longest_row: int, cutoff: int, context: int
) -> Iterator[Suggestion]:
    """Yield settings worth changing, the cutoff first."""
    auto_cutoff = truncation.auto_cutoff(longest_row, context)
    if longest_row > cutoff and auto_cutoff > cutoff:
        yield Suggestion(
            "cutoff", auto_cutoff, f"The longest row has {longest_row} tokens, the cutoff is {cutoff}."
        )
    if plan.effective_accumulation < plan.accumulation:
        yield Suggestion(
            "accumulation",
            plan.effective_accumulation,
            f"An epoch has {plan.batches} {plural(plan.batches, 'batch', 'batches')}.",
        )
    if plan.warmup(settings.learning.warmup_steps) > plan.steps / 2:
        yield Suggestion(
            "warmup_steps",
            0.05,
            f"The warm-up takes more than half of the {plan.steps} {plural(plan.steps, 'step')}.",
        )
    if not settings.steps.max_steps and plan.steps < MIN_STEPS:
        epochs = min(MAX_EPOCHS, -(-MIN_STEPS // plan.steps_per_epoch))
        if epochs > settings.steps.epochs:
            steps = f"{plan.steps} {plural(plan.steps, 'step')}"
            yield Suggestion(
                "epochs", float(epochs), f"{steps} in all {plural(plan.steps, 'is', 'are')} few to learn from."
            )
    if not settings.saving.save_every and min(plan.steps_per_epoch, plan.steps) > LONG_EPOCH_STEPS:
        every = round(plan.steps_per_epoch / SAVES_PER_EPOCH, -2)
        yield Suggestion("save_every", every, f"An epoch is {plan.steps_per_epoch:,} steps long.")


def padding_shares(lengths: Sequence[int], batch: int, seed: int) -> dict[str, float]:
    """Return the share of padding for each order of the examples, and with packing."""
    import numpy as np

    numbers = np.arange(len(lengths))
    orders = {
        "shuffled": batch_order.shuffle(numbers, seed, 0),
        "by_length": batch_order.order_by_length(numbers, lengths, batch, seed, 0),
        "sequential": numbers,
    }
    array = np.asarray(lengths)
    return {name: _padding_share(array[order], batch) for name, order in orders.items()} | {"packed": 0.0}


def _padding_share(lengths: Any, batch: int) -> float:
    import numpy as np

    starts = np.arange(0, len(lengths), batch)
    widest = np.maximum.reduceat(lengths, starts)
    counts = np.diff(np.append(starts, len(lengths)))
    computed = int((widest * counts).sum())
    return round(1 - int(lengths.sum()) / computed, 4) if computed else 0.0


ORNAMENT_LINE = re.compile(r"^[ \t]*((?:[*#=~_•-][ \t]?){3,}|⁂)[ \t]*$", re.MULTILINE)
HEADING_WORDS = (
    "chapter|kapitel|chapitre|cap[ií]tulo|capitolo|hoofdstuk|rozdział|глава|part|teil|partie|parte|act|scene"
)
HEADING_NUMBERS = r"\d+|[ivxlc]+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
HEADING = re.compile(rf"^({HEADING_WORDS})[ \t]+(?:{HEADING_NUMBERS})\b.{{0,60}}$", re.MULTILINE | re.IGNORECASE)
ORNAMENT_SIGNS = "*#=~_•⁂"  # signs that are used nowhere else, so lines with them may be indented
MIN_MATCHES, MAX_CHARS = 2, 10**7


def suggest_hard_cuts(sources: Sequence[Source]) -> Iterator[Suggestion]:
    """Suggest a hard cut for the first text that has none but has other marks."""
    for source in sources:
        if isinstance(source, TextSource) and len(source.sliced.sections) == 1:
            mark, count = _most_common_mark(source.sliced.text[:MAX_CHARS])
            if count >= MIN_MATCHES:
                reason = (
                    f"{source.name}: {mark!r} stands {count} times at the beginning of a line, and divides it."
                )
                yield Suggestion("hard_cut", mark if mark[0] in ORNAMENT_SIGNS else f"\\n{mark}", reason)
                return


def _most_common_mark(text: str) -> tuple[str, int]:
    """Return the most common mark and its count; of headings only the word, since their numbers differ."""
    marks = Counter(match[1].rstrip() for pattern in (ORNAMENT_LINE, HEADING) for match in pattern.finditer(text))
    return marks.most_common(1)[0] if marks else ("", 0)
