"""SVG pictures of the slicing of a text and of the learning rate plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...records.report import Mark, draw_curve, svg
from ...schedulers import Phase, ScheduleSteps, describe_phases, lr_multipliers
from ...settings.definitions import TrainingSettings
from ...train_utils import StepPlan, format_count, interval_steps, plural

if TYPE_CHECKING:
    from ...data.text import Bar, SliceMap

WIDTH = 640
MAX_BARS = 300
LANES = {"block": (4, 16), "dementor": (4, 16), "overlap": (22, 12)}
HEAT_LANE = (40, 14)
BAR_LEGEND = (("#2f74c0", "blocks", {"block", "dementor"}), ("#c98a10", "overlap blocks", {"overlap"}))


def slice_map_svg(sliced: SliceMap) -> str:
    """Draw a text as a strip: blocks, overlap blocks, hard cuts, and how often each part is seen."""
    counts = (
        format_count(sliced.blocks + sliced.windows, "block"),
        format_count(sliced.overlaps, "overlap block"),
        format_count(sliced.sections, "section"),
    )
    parts = [*_bars(_visible_bars(sliced)), *_heat(sliced), *_cuts(sliced.hard_cuts)]
    return svg.picture(WIDTH, 62, "tp-map", ", ".join(counts), parts)


def legend_entries(maps: Sequence[SliceMap]) -> Iterator[tuple[str, str]]:
    """The legend of these slice maps, for the kinds that they contain."""
    kinds = {bar.kind for sliced in maps for bar in _visible_bars(sliced)}
    yield from ((color, label) for color, label, members in BAR_LEGEND if kinds & members)
    yield "#7a4fb5", "how often the model sees each part (stronger color: more often)"
    if any(sliced.hard_cuts for sliced in maps):
        yield "#cf3f3f", "hard cuts"


def _visible_bars(sliced: SliceMap) -> Sequence[Bar]:
    return sliced.bars if len(sliced.bars) <= MAX_BARS else ()


def _bars(bars: Sequence[Bar]) -> Iterator[str]:
    for n, bar in enumerate(bars):
        css_class = f"tp-{bar.kind} tp-{'even' if n % 2 else 'odd'}"
        yield _segment(bar.start, bar.end, LANES[bar.kind], f"{bar.kind} {n + 1}", class_=css_class)


def _heat(sliced: SliceMap) -> Iterator[str]:
    """Neighboring cells with the same count become one rectangle, so a whole book needs a few hundred at most."""
    highest, columns = max(sliced.seen_along, default=0.0) or 1.0, len(sliced.seen_along)
    start = 0
    for column in range(1, columns + 1):
        if column < columns and sliced.seen_along[column] == sliced.seen_along[start]:
            continue
        times = sliced.seen_along[start]
        opacity = f"{0.08 + 0.92 * times / highest:.2f}"
        seen, style = f"seen {times:g} {plural(times, 'time')}", {"class_": "tp-heat", "fill_opacity": opacity}
        yield _segment(start / columns, column / columns, HEAT_LANE, seen, **style)
        start = column


def _segment(start: float, end: float, lane: tuple[int, int], title: str, **attributes: str) -> str:
    """A part of the text in a lane: its top and height."""
    width = max(0.8, WIDTH * (end - start) - 0.4)
    return svg.bar(float(WIDTH * start), lane[0], width, lane[1], title, **attributes)


def _cuts(positions: Sequence[float]) -> Iterator[str]:
    for position in positions[:: max(1, len(positions) // MAX_BARS)]:
        yield svg.vertical_line(float(WIDTH * position), 0, 58, "tp-cut", "hard cut")


def planned_rates(settings: TrainingSettings, plan: StepPlan) -> tuple[list[Phase], list[float]]:
    """The phases of the schedule, and the learning rate of each step."""
    phases = settings.learning.phases(plan)
    return phases, [settings.learning.learning_rate * m for m in lr_multipliers(phases, plan.steps)]


def lr_plan_svg(settings: TrainingSettings, plan: StepPlan) -> str:
    """Draw the planned learning rate, with the ends of the epochs and the checkpoints."""
    _, rates = planned_rates(settings, plan)
    return draw_curve((), rates, list(_plan_marks(settings, plan)))


def lr_plan_legend(settings: TrainingSettings) -> dict[str, str]:
    """The legend of the planned learning rate, by color."""
    saving = settings.saving
    ends = "end of an epoch" + (" (with a checkpoint)" if saving.save_each_epoch else "")
    return {"#c98a10": "planned learning rate", "#2f9e5b": ends + (", or a checkpoint" * bool(saving.save_every))}


def small_lr_svg(settings: TrainingSettings, plan: StepPlan) -> str:
    """Draw a small chart of the planned learning rate, with the ends of the epochs."""
    phases, rates = planned_rates(settings, plan)
    x = svg.scale(0, max(1, len(rates) - 1), 0, 200)
    y = svg.scale(0, max(rates) or 1.0, 42, 6)
    ends = ScheduleSteps(plan.steps, plan.steps_per_epoch).epoch_ends[:40]
    epochs = [svg.vertical_line(200 * step / len(rates), 4, 42) for step in ends]
    line = svg.polyline((x(n), y(rates[n])) for n in range(0, len(rates), max(1, len(rates) // 120)))
    label = f"{settings.learning.schedule}: {describe_phases(phases)}"
    return svg.picture(200, 46, "tp-small", label, [*epochs, line], title=label, preserveAspectRatio="none")


def _plan_marks(settings: TrainingSettings, plan: StepPlan) -> Iterator[Mark]:
    saving = settings.saving
    for number, step in enumerate(ScheduleSteps(plan.steps, plan.steps_per_epoch).epoch_ends[:100], start=1):
        label = f"end of epoch {number}" if step % plan.steps_per_epoch == 0 else "end of the run"
        yield Mark(step, label + (", checkpoint" if saving.save_each_epoch else ""))
    every = interval_steps(saving.save_every, plan.steps)
    if every and plan.steps // every <= 100:
        yield from (Mark(s, "checkpoint") for s in range(every, plan.steps + 1, every))
