"""Arithmetic of a run (steps, warm-up, accumulation, smoothed loss), and its numbers and names in words."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

SMOOTHING = 0.9  # of the loss: a step moves the smoothed loss by a tenth of the way
MAX_WARMUP = 100
# The time of a token that is only read, relative to that of a token that is trained on: the backward pass costs
# about two forward passes.
FORWARD_SHARE = 1 / 3
YEAR_SECONDS = 365.25 * 86400
# Beyond this a time of day is meaningless, and eventually datetime cannot represent the date.
MAX_CLOCK_SECONDS = 100 * YEAR_SECONDS
MAX_DIGITS = 1000  # of a number in a name; Python refuses to read much longer ones


@dataclass(frozen=True)
class StepPlan:
    """The number of steps of a run; one step is one change of the weights."""

    examples: int
    batch_size: int
    accumulation: int
    epochs: float
    max_steps: int = 0
    processes: int = 1

    @property
    def batches(self) -> int:
        """Batches of each process in an epoch; the last one may be smaller."""
        return math.ceil(math.ceil(self.examples / self.batch_size) / self.processes)

    @property
    def effective_accumulation(self) -> int:
        """The effective accumulation: never more batches than an epoch has."""
        return max(1, min(self.accumulation, self.batches))

    @property
    def examples_per_step(self) -> int:
        """The examples of a step, over all processes."""
        return self.batch_size * self.effective_accumulation * self.processes

    def examples_in_step(self, step: int) -> int:
        """The examples of a step, counted from 1; the last step of an epoch may have fewer."""
        earlier = (step - 1) % self.steps_per_epoch * self.examples_per_step
        return min(self.examples_per_step, self.examples + self.repeated_examples - earlier)

    @property
    def repeated_examples(self) -> int:
        """Examples repeated at the end of an epoch so that every process has the same number of batches."""
        # By accelerate's `even_batches`, from the beginning of the epoch.
        if self.processes == 1:
            return 0
        return self.batches * self.batch_size * self.processes - self.examples

    @property
    def steps_per_epoch(self) -> int:
        return max(1, math.ceil(self.batches / self.effective_accumulation))

    @property
    def steps(self) -> int:
        if self.max_steps:
            return self.max_steps
        return max(1, _round_up(self.epochs * self.steps_per_epoch))

    def occurrences(self, every: int) -> int:
        """How often an action runs that is due before the first step, every `every` steps, and at the end."""
        return math.ceil(self.steps / every) + 1

    def warmup(self, asked: float) -> int:
        """Warm-up in steps: `asked` is a number of steps from 1 on, below 1 a share of the run, with a limit."""
        if asked >= 1:
            return int(asked)
        return min(_round_up(asked * self.steps), MAX_WARMUP, self.steps_per_epoch)


def _round_up(steps: float) -> int:
    """Round up to whole steps, but not because a product such as 0.07 * 100 is slightly above 7."""
    return math.ceil(steps - 1e-9)


def spread_evenly(count: int, limit: int) -> list[int]:
    """At most `limit` of the numbers from 0 to `count` - 1: the middles of equal shares, so not the very first."""
    return sorted({(2 * n + 1) * count // (2 * limit) for n in range(limit)}) if count else []


def known_columns(table: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """A table of texts, its header first, without the columns that are empty below the header."""
    columns = zip(*table, strict=True)
    return list(zip(*(column for column in columns if set(column[1:]) - {"", "-"}), strict=True))


def align_columns(table: Sequence[Sequence[str]]) -> list[str]:
    """A table of texts as lines with aligned columns; none for an empty table."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]


def interval_steps(interval: float, steps: int) -> int:
    """An interval in steps; one below 1 is a share of all steps, and 0 is none."""
    return max(1, _round_up(interval * steps)) if 0 < interval < 1 else int(interval)


def is_logged(step: int, last: int, every: float | str, first: bool) -> bool:
    """Whether a step is logged where every n-th one is; each is if `every` is "auto" or no number of steps."""
    if isinstance(every, str) or not math.isfinite(every):
        return True
    return step == last or (step == 1 and first) or step % max(1, interval_steps(every, last)) == 0


def smooth_loss(previous: float | None, loss: float) -> float:
    """The smoothed loss: it begins at the first step's loss and then moves a tenth of the way."""
    return loss if previous is None else SMOOTHING * previous + (1 - SMOOTHING) * loss


def perplexity(loss: float) -> float:
    """The number of tokens a model hesitates between at each place, by its mean loss."""
    return math.exp(loss) if not loss > 700 else math.inf


def format_digits(value: float, digits: int = 3) -> str:
    """A number with so many significant digits and without an exponent: '0.0000452'."""
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def duration(seconds: float) -> str:
    """A length of time in words: '0.25 s', '45 s', '3 min 20 s', '2 h 05 min'."""
    if 0 < seconds < 9.95:
        return f"{seconds:.2g} s"
    whole_seconds = max(0, round(seconds))
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60:02d} s"
    return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60:02d} min"


def time_of_day(moment: float, now: float) -> str:
    """A moment in words, as seen from `now`: '06:40', '06:40 tomorrow', '06:40 in 3 days'."""
    if moment - now > MAX_CLOCK_SECONDS:
        return f"in {(moment - now) / YEAR_SECONDS:,.0f} years"
    day, today = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    days = (day.date() - today.date()).days
    return f"{day:%H:%M}" + {0: "", 1: " tomorrow"}.get(days, f" in {days} days")


def date_and_time(moment: float) -> str:
    """A moment in local time: '2026-11-21 06:40'."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def size(byte_count: float) -> str:
    """A size in words, in the decimal units of file managers: '98 MB', '1.4 GB'."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        count = byte_count / scale
        if count >= 0.9995:  # would be rounded to 1000 of the smaller unit
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
    return f"{int(byte_count)} bytes"


def plural(count: float, one: str, many: str = "") -> str:
    """The word for a count: 'step' for 1, 'steps' for 0 and 2."""
    return one if count == 1 else many or f"{one}s"


def format_count(count: int, one: str, many: str = "") -> str:
    """'1 step', '2,000 steps'."""
    return f"{count:,} {plural(count, one, many)}"


def format_times(count: int) -> str:
    """'once', '2 times'."""
    return "once" if count == 1 else f"{count:,} times"


def format_times_range(least: int, most: int) -> str:
    """'once', '2 times', '1 to 3 times'."""
    return format_times(most) if least == most else f"{least} to {most} times"


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A sort key that puts 'chapter 2' before 'chapter 10'."""
    parts = re.split(r"(\d+)", name.casefold())
    return [(1, int(p[:MAX_DIGITS]), "") if p.isdecimal() else (0, 0, p) for p in parts]


def checkpoint_name(step: int, reason: str) -> str:
    """The folder name of a checkpoint: 'checkpoint-120', 'checkpoint-120-user', 'checkpoint-120-epoch-2'."""
    return f"checkpoint-{step}" + (f"-{reason}" if reason else "")


def checkpoint_step(folder_name: str) -> int | None:
    """The step in a checkpoint's folder name, or None for another folder."""
    match = re.fullmatch(r"checkpoint-(\d+)(?:-.+)?", folder_name)
    return int(match[1]) if match else None


# Logits that are computed at a time: 34 MB of them on a CPU and 134 MB on a GPU, as float32.
CPU_LOGITS, GPU_LOGITS = 2**23, 2**25


def head_rows(vocabulary: int, *, on_card: bool) -> int:
    """The rows that go through the head at a time: more are faster, up to a point, and take more memory."""
    max_rows = (GPU_LOGITS if on_card else CPU_LOGITS) // vocabulary
    return max(32, max_rows // 32 * 32)
