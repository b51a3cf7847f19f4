"""Pictures of the page, drawn as SVG from plain numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ...data.report import plan_checks
from ...data.text import Bar, SliceMap
from ...records.report import Mark, svg
from ...schedulers import Phase, Plan, described, multipliers
from ...settings.definitions import TrainingSettings
from ...train_utils import StepPlan, several

WIDTH = 640
MOST_BARS = 300
LANES = {"block": (4, 16), "dementor": (4, 16), "overlap": (22, 12)}
KEY = (("#2f74c0", "blocks", {"block", "dementor"}), ("#c98a10", "overlap blocks", {"overlap"}))


def slice_map(found: SliceMap) -> str:
    """A text from its beginning to its end: blocks, overlap blocks, hard cuts, and how often each part is seen."""
    bars = _bars(_drawn(found))
    label = ", ".join(
        several(count, what)
        for count, what in (
            (found.blocks + found.windows, "block"),
            (found.overlaps, "overlap block"),
            (found.sections, "part"),
        )
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} 62" class="tp-map" role="img" aria-label="{label}">'
        f"{''.join(bars)}{''.join(_heat(found))}{''.join(_cuts(found.hard_cuts))}</svg>"
    )


def colours(maps: Sequence[SliceMap]) -> Iterator[tuple[str, str]]:
    """What each colour of these maps means; only of what is drawn."""
    kinds = {bar.kind for found in maps for bar in _drawn(found)}
    yield from ((colour, words) for colour, words, of in KEY if kinds & of)
    yield "#7a4fb5", "how often seen"
    if any(found.hard_cuts for found in maps):
        yield "#cf3f3f", "hard cuts"


def _drawn(found: SliceMap) -> Sequence[Bar]:
    return found.bars if len(found.bars) <= MOST_BARS else ()


def _bars(bars: Sequence[Bar]) -> Iterator[str]:
    for number, bar in enumerate(bars):
        y, height = LANES[bar.kind]
        shade = "even" if number % 2 else "odd"
        yield _rect(bar.start, bar.end, y, height, f"tp-{bar.kind} tp-{shade}", f"{bar.kind} {number + 1}")


def _heat(found: SliceMap) -> Iterator[str]:
    """Runs of the same count are one rectangle: a whole book is a few hundred at most."""
    most, columns = max(found.seen_along, default=0.0) or 1.0, len(found.seen_along)
    start = 0
    for place in range(1, columns + 1):
        if place < columns and found.seen_along[place] == found.seen_along[start]:
            continue
        times = found.seen_along[start]
        shown = f'fill-opacity="{0.08 + 0.92 * times / most:.2f}"'
        yield _rect(start / columns, place / columns, 40, 14, "tp-heat", f"seen {times:g} times", shown)
        start = place


def _rect(start: float, end: float, y: int, height: int, name: str, words: str, more: str = "") -> str:
    left, width = WIDTH * start, max(0.8, WIDTH * (end - start) - 0.4)
    return (
        f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{height}" class="{name}" {more}>'
        f"<title>{words}</title></rect>"
    )


def _cuts(places: Sequence[float]) -> Iterator[str]:
    for place in places[:: max(1, len(places) // MOST_BARS)]:
        x = f"{WIDTH * place:.1f}"
        yield f'<line x1="{x}" x2="{x}" y1="0" y2="58" class="tp-cut"><title>hard cut</title></line>'


def planned_rates(settings: TrainingSettings, plan: StepPlan) -> tuple[list[Phase], list[float]]:
    """The schedule as it will be: its phases, and the learning rate of each step."""
    phases = plan_checks.phases(settings, plan)
    return phases, [settings.learning.learning_rate * m for m in multipliers(phases, plan.steps)]


def plan_curve(settings: TrainingSettings, plan: StepPlan) -> str:
    """The learning rate of the run to come, with the ends of its epochs and its checkpoints."""
    _, rates = planned_rates(settings, plan)
    return svg((), rates, list(_plan_marks(settings, plan)))


def small_curve(settings: TrainingSettings, plan: StepPlan) -> str:
    """The schedule beside its name: the rate over the run, with the ends of its epochs."""
    phases, rates = planned_rates(settings, plan)
    peak, last = max(rates) or 1.0, max(1, len(rates) - 1)
    every = max(1, len(rates) // 120)
    places = " ".join(f"{200 * n / last:.1f},{42 - 36 * rates[n] / peak:.1f}" for n in range(0, len(rates), every))
    ends = "".join(
        f'<line x1="{200 * step / len(rates):.1f}" x2="{200 * step / len(rates):.1f}" y1="4" y2="42"/>'
        for step in Plan(plan.steps, plan.steps_per_epoch).epoch_ends[:40]
    )
    words = f"{settings.learning.schedule}: {described(phases)}"
    return (
        f'<svg viewBox="0 0 200 46" class="tp-small" role="img" aria-label="{escape(words)}" '
        f'preserveAspectRatio="none"><title>{escape(words)}</title>{ends}<polyline points="{places}"/></svg>'
    )


def _plan_marks(settings: TrainingSettings, plan: StepPlan) -> Iterator[Mark]:
    saving = settings.saving
    for number, step in enumerate(Plan(plan.steps, plan.steps_per_epoch).epoch_ends[:100], start=1):
        words = f"end of epoch {number}" if step % plan.steps_per_epoch == 0 else "end of the run"
        yield Mark(step, words + (", checkpoint" if saving.save_each_epoch else ""))
    if saving.save_every and plan.steps // saving.save_every <= 100:
        yield from (Mark(s, "checkpoint") for s in range(saving.save_every, plan.steps + 1, saving.save_every))
