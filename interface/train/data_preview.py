"""A quick look at the chosen data while the form is being filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from ...core.errors import TrainingProError
from ...data import dataset_index
from ...data.examples import dataset_share
from ...data.readers import unsupported
from ...data.report import DatasetReport, SourceReport
from ...settings.parsing import training_settings
from ..base import Joined, markup
from . import data_menu
from .field_visibility import Kind

QUICKLY = 3_000_000
"""Data of so many bytes are looked at at once; more, when Check is pressed."""


@dataclass(frozen=True)
class DataLook:
    """What the chosen data are, as far as that can be said in a moment."""

    kinds: tuple[Kind, ...] = ()
    examples: int = 0
    html: str = ""


def look(values: Mapping[str, Any], joined: Joined) -> DataLook:
    """What is chosen, and what lies in the folder and is not read."""
    found = _of_chosen(values, joined)
    return replace(found, html=found.html + _not_read(joined))


def _of_chosen(values: Mapping[str, Any], joined: Joined) -> DataLook:
    """Nothing where that cannot be said quickly, or where the form is not finished."""
    chosen = values.get("data") or []
    if not chosen:
        return DataLook(html=_where_data_go(joined))
    shares = "".join(map(_share, chosen))
    try:
        report = _report(values, joined)
    except (TrainingProError, OSError):
        return DataLook(_by_name(chosen), html=shares)  # Check and Start say what is wrong
    if report is None:
        later = markup.paragraph("Press Check to see what is in these data.", quiet=True)
        return DataLook(_by_name(chosen), html=shares + later)
    said = markup.paragraph(" ".join([*(s.short for s in report.sources), *report.problems]), quiet=True)
    return DataLook(_kinds(report.sources) or _by_name(chosen), report.examples, said + shares)


def _where_data_go(joined: Joined) -> str:
    """The next click where no data are chosen."""
    try:
        folder = joined.host.folders.datasets
    except TrainingProError:
        return ""
    return markup.paragraph(f"Choose data, press Add files, or put files into {folder}.", quiet=True)


def _not_read(joined: Joined) -> str:
    """Why some of the user's files do not stand in the menu."""
    try:
        said = unsupported.said(joined.host.folders.datasets)
    except (TrainingProError, OSError):
        return ""
    return markup.paragraph(said, quiet=True) if said else ""


def _report(values: Mapping[str, Any], joined: Joined) -> DatasetReport | None:
    if joined.host.standing().problem or _bytes_of(values["data"], joined) > QUICKLY:
        return None
    return joined.engine.check(training_settings({**values, "name": "look"}), joined.host)


def _kinds(sources: Iterable[SourceReport]) -> tuple[Kind, ...]:
    found: set[Kind] = {"rows" if source.rows else "text" for source in sources}
    return tuple(sorted(found))


def _by_name(chosen: Iterable[str]) -> tuple[Kind, ...]:
    """What a name says of its kind."""
    found: set[Kind] = {
        "rows" if data_menu.named(name).lower().endswith(dataset_index.ROWS) else "text" for name in chosen
    }
    return tuple(sorted(found))


def _share(entry: str) -> str:
    """How much of a data set to use, to be typed."""
    name = data_menu.named(entry)
    try:
        per_cent = f"{dataset_share.asked(entry).per_cent:g}"
    except ValueError:
        per_cent = ""
    return (
        f'<label class="tp-share">use <input type="number" min="1" max="{dataset_share.MOST}" value="{per_cent}" '
        f'data-tp-share="{escape(name)}"> % of {escape(name)}</label>'
    )


def _bytes_of(names: Iterable[str], joined: Joined) -> int:
    sets = dataset_index.found(list(names), joined.host.folders)
    files = [f for d in sets for f in (d.path.rglob("*") if d.path.is_dir() else [d.path]) if f.is_file()]
    return sum(f.stat().st_size for f in files)
