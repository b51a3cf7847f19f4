"""What Check found, as a readable report: the verdict first."""

from __future__ import annotations

from html import escape

from ..data.report import DatasetReport, SourceReport
from . import wording

_MOODS = {"ready": "good", "ready with advice": "fair", "not ready": "bad"}


def html(report: DatasetReport) -> str:
    """The report as a card."""
    return wording.card(
        f"Check: {report.verdict}",
        wording.bullets(report.problems),
        wording.bullets(report.advice),
        _figures(report) if report.examples else "",
        _sources(report.sources),
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
    return f'<table class="tp-table"><tr>{head}</tr>{rows}</table>{notes}'


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
