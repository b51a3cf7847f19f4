"""SVG pictures of the slicing of a text and of the learning rate plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ...data.report import plan_checks
from ...data.text import Bar, SliceMap
from ...records.report import Mark, draw_curve
from ...schedulers import Phase, ScheduleSteps, describe_phases, lr_multipliers
from ...settings.definitions import TrainingSettings
from ...train_utils import StepPlan, format_count

WIDTH = 640
MAX_BARS = 300
LANES = {"block": (4, 16), "dementor": (4, 16), "overlap": (22, 12)}
BAR_LEGEND = (("#2f74c0", "blocks", {"block", "dementor"}), ("#c98a10", "overlap blocks", {"overlap"}))


def slice_map_svg(sliced: SliceMap) -> str:
    """Draw a text as a strip: blocks, overlap blocks, hard cuts, and how often each part is seen."""
    bars = _bars(_visible_bars(sliced))
    label = ", ".join(
        format_count(count, noun)
        for count, noun in (
            (sliced.blocks + sliced.windows, "block"),
            (sliced.overlaps, "overlap block"),
            (sliced.sections, "part"),
        )
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} 62" class="tp-map" role="img" aria-label="{label}">'
        f"{''.join(bars)}{''.join(_heat(sliced))}{''.join(_cuts(sliced.hard_cuts))}</svg>"
    )


def legend_entries(maps: Sequence[SliceMap]) -> Iterator[tuple[str, str]]:
    """The legend of these slice maps, for the kinds that they contain."""
    kinds = {bar.kind for sliced in maps for bar in _visible_bars(sliced)}
    yield from ((color, label) for color, label, members in BAR_LEGEND if kinds & members)
    yield "#7a4fb5", "how often seen"
    if any(sliced.hard_cuts for sliced in maps):
        yield "#cf3f3f", "hard cuts"


def _visible_bars(sliced: SliceMap) -> Sequence[Bar]:
    return sliced.bars if len(sliced.bars) <= MAX_BARS else ()


def _bars(bars: Sequence[Bar]) -> Iterator[str]:
    for n, bar in enumerate(bars):
        y, height = LANES[bar.kind]
        shade = "even" if n % 2 else "odd"
        yield _rect(bar.start, bar.end, y, height, f"tp-{bar.kind} tp-{shade}", f"{bar.kind} {n + 1}")


def _heat(sliced: SliceMap) -> Iterator[str]:
    """Neighboring cells with the same count become one rectangle, so a whole book needs a few hundred at most."""
    highest, columns = max(sliced.seen_along, default=0.0) or 1.0, len(sliced.seen_along)
    start = 0
    for column in range(1, columns + 1):
        if column < columns and sliced.seen_along[column] == sliced.seen_along[start]:
            continue
        times = sliced.seen_along[start]
        opacity = f'fill-opacity="{0.08 + 0.92 * times / highest:.2f}"'
        yield _rect(start / columns, column / columns, 40, 14, "tp-heat", f"seen {times:g} times", opacity)
        start = column


def _rect(
    start: float, end: float, y: int, height: int, css_class: str, tooltip: str, attributes: str = ""
) -> str:
    left, width = WIDTH * start, max(0.8, WIDTH * (end - start) - 0.4)
    return (
        f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{height}" class="{css_class}" {attributes}>'
        f"<title>{tooltip}</title></rect>"
    )


def _cuts(positions: Sequence[float]) -> Iterator[str]:
    for position in positions[:: max(1, len(positions) // MAX_BARS)]:
        x = f"{WIDTH * position:.1f}"
        yield f'<line x1="{x}" x2="{x}" y1="0" y2="58" class="tp-cut"><title>hard cut</title></line>'


def planned_rates(settings: TrainingSettings, plan: StepPlan) -> tuple[list[Phase], list[float]]:
    """The phases of the schedule, and the learning rate of each step."""
    phases = plan_checks.planned_phases(settings, plan)
    return phases, [settings.learning.learning_rate * m for m in lr_multipliers(phases, plan.steps)]


def lr_plan_svg(settings: TrainingSettings, plan: StepPlan) -> str:
    """Draw the planned learning rate, with the ends of the epochs and the checkpoints."""
    _, rates = planned_rates(settings, plan)
    return draw_curve((), rates, list(_plan_marks(settings, plan)))


def small_lr_svg(settings: TrainingSettings, plan: StepPlan) -> str:
    """Draw a small chart of the planned learning rate, with the ends of the epochs."""
    phases, rates = planned_rates(settings, plan)
    peak, last = max(rates) or 1.0, max(1, len(rates) - 1)
    every = max(1, len(rates) // 120)
    points = " ".join(f"{200 * n / last:.1f},{42 - 36 * rates[n] / peak:.1f}" for n in range(0, len(rates), every))
    ends = "".join(
        f'<line x1="{200 * step / len(rates):.1f}" x2="{200 * step / len(rates):.1f}" y1="4" y2="42"/>'
        for step in ScheduleSteps(plan.steps, plan.steps_per_epoch).epoch_ends[:40]
    )
    label = f"{settings.learning.schedule}: {describe_phases(phases)}"
    return (
        f'<svg viewBox="0 0 200 46" class="tp-small" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="none"><title>{escape(label)}</title>{ends}<polyline points="{points}"/></svg>'
    )


def _plan_marks(settings: TrainingSettings, plan: StepPlan) -> Iterator[Mark]:
    saving = settings.saving
    for number, step in enumerate(ScheduleSteps(plan.steps, plan.steps_per_epoch).epoch_ends[:100], start=1):
        label = f"end of epoch {number}" if step % plan.steps_per_epoch == 0 else "end of the run"
        yield Mark(step, label + (", checkpoint" if saving.save_each_epoch else ""))
    if saving.save_every and plan.steps // saving.save_every <= 100:
        yield from (Mark(s, "checkpoint") for s in range(saving.save_every, plan.steps + 1, saving.save_every))
