"""What Check found, as a readable report: the verdict first."""

from __future__ import annotations

from html import escape

from ..data.report import DatasetReport, SourceReport
from ..data.slice_map import SliceMap
from . import plots, wording

MOST_MAPS = 6
_MOODS = {"ready": "good", "ready with advice": "fair", "not ready": "bad"}


def html(report: DatasetReport, plan: str = "") -> str:
    """The report as a card; `plan` is drawn between its figures and the details."""
    return wording.card(
        f"Check: {report.verdict}",
        wording.bullets(report.problems),
        wording.bullets(report.advice),
        wording.bullets(report.notes, quiet=True),
        _figures(report) if report.examples else "",
        plan,
        _sources(report.sources),
        _maps(report.sources),
        mood=_MOODS[report.verdict],
    )


def _figures(report: DatasetReport) -> str:
    return wording.figures(
        [
            ("examples", f"{report.examples:,}"),
            ("tokens it learns from", f"{report.trained_tokens:,}"),
            (f"longest, of {report.cutoff} tokens", str(report.longest)),
            ("steps an epoch", f"{report.steps_per_epoch:,}"),
            ("steps in all", f"{report.steps:,}"),
            ("characters lost", f"{sum(s.characters_lost for s in report.sources):,}"),
        ]
    )


def _sources(sources: tuple[SourceReport, ...]) -> str:
    if not sources:
        return ""
    head = "".join(
        f"<th>{escape(name)}</th>"
        for name in ("data", "files", "parts", "sentences", "blocks", "overlaps", "left out")
    )
    rows = "".join(_row(source) for source in sources)
    notes = wording.bullets((note for s in sources for note in s.notes), quiet=True)
    return f'<div class="tp-wide"><table class="tp-table"><tr>{head}</tr>{rows}</table></div>{notes}'


def _row(source: SourceReport) -> str:
    cells = [
        f"{source.name}: {source.what}",
        *(
            f"{n:,}"
            for n in (
                source.files,
                source.parts,
                source.sentences,
                source.blocks,
                source.overlaps,
                source.left_out,
            )
        ),
    ]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _maps(sources: tuple[SourceReport, ...]) -> str:
    """How each text is cut and how often its parts are seen; the first few texts."""
    drawn = [(source, name, found) for source in sources for name, found in source.maps][:MOST_MAPS]
    if not drawn:
        return ""
    return "".join(_map(name, found) for _, name, found in drawn) + _MAP_KEY


def _map(name: str, found: SliceMap) -> str:
    seen = found.seen
    words = (
        f"{name}: each sentence is seen {seen.least} to {seen.most} times a pass, {seen.mean:g} on average; "
        f"{found.growth:.2f} times the tokens of the text are trained; {found.proof}"
    )
    return wording.paragraph(words, quiet=True) + plots.slice_map(found)


_MAP_KEY = (
    '<p class="tp-quiet tp-key"><i style="background:#2f74c0"></i>blocks<i style="background:#c98a10"></i>overlap '
    'blocks<i style="background:#7a4fb5"></i>how often seen<i style="background:#cf3f3f"></i>hard cuts</p>'
)
