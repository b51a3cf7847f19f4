"""A quick preview of the chosen data while the form is being filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ...core.errors import DataError, TrainingProError, first_line
from ...data import dataset_index
from ...data.readers import unsupported
from ...settings.definitions import section_keys
from ...settings.parsing import training_settings
from ..base import PageContext, markup
from . import data_menu
from .field_visibility import DataKind

if TYPE_CHECKING:
    from ...data.report import DatasetReport, SourceReport

MAX_PREVIEW_BYTES = 3_000_000
"""Data up to this size are previewed at once; larger data only when Check is pressed."""
SHARE_FIELD = (
    '<label class="tp-share">use <input type="number" min="1" max="{max}" value="{per_cent}" '
    'data-tp-share="{name}"> % of {name}</label>'
)


EXAMPLE_KEYS = ("data", *section_keys("text", "rows"), "eval_data", "eval_share", "seed", "data_seed")
"""Settings that change the examples."""


@dataclass(frozen=True)
class DataPreview:
    """Kinds and number of examples of the chosen data, as far as they are known quickly."""

    kinds: tuple[DataKind, ...] = ()
    examples: int = 0
    html: str = ""


def preview_data(values: Mapping[str, Any], context: PageContext) -> DataPreview:
    """Preview the chosen data, and list unsupported files in the datasets folder."""
    preview = _chosen_preview(values, context)
    return replace(preview, html=preview.html + _unsupported_note(context))


def _chosen_preview(values: Mapping[str, Any], context: PageContext) -> DataPreview:
    """The preview of the chosen data; only by name if the data are large or the form is incomplete."""
    chosen = values.get("data") or []
    if not chosen:
        return DataPreview(html=_empty_hint(context))
    shares = Markup("").join(map(_share_field, chosen))
    try:
        report = _report(values, context)
    except DataError as error:  # such as a file that has been deleted
        return DataPreview(_kinds_of_names(chosen), html=_quiet_note(str(error)) + shares)
    except TrainingProError as error:  # the form is incomplete
        return DataPreview(_kinds_of_names(chosen), html=_quiet_note(first_line(error)) + shares)
    except OSError:
        return DataPreview(_kinds_of_names(chosen), html=shares)  # Check and Start say what is wrong
    if report is None:
        hint = markup.paragraph("Press Check to see what is in this dataset.", quiet=True)
        return DataPreview(_kinds_of_names(chosen), html=shares + hint)
    summary = markup.paragraph(" ".join([*(s.summary for s in report.sources), *report.problems]), quiet=True)
    return DataPreview(
        _kinds_of_sources(report.sources) or _kinds_of_names(chosen), report.examples, summary + shares
    )


def _empty_hint(context: PageContext) -> str:
    """What to do if no data are chosen; the style sheet hides it as soon as some are, before they are read."""
    hint = Markup('<p class="tp-quiet tp-no-data">Choose a dataset, press Add files, or copy files to {}.</p>')
    return context.read_disk(lambda folders: hint.format(folders.datasets), Markup())


def _unsupported_note(context: PageContext) -> str:
    """Why some of the user's files are missing in the menu."""
    return _quiet_note(context.read_disk(lambda folders: unsupported.describe_unsupported(folders.datasets), ""))


def _quiet_note(text: str) -> str:
    return markup.paragraph(text, quiet=True) if text else ""


def _report(values: Mapping[str, Any], context: PageContext) -> DatasetReport | None:
    if _bytes_of(values["data"], context) > MAX_PREVIEW_BYTES or context.host.model_status().problem:
        return None
    used = {key: values[key] for key in EXAMPLE_KEYS if key in values}  # others may be half typed
    return context.engine.check(training_settings({**used, "name": "look"}), context.host)


def _kinds_of_sources(sources: Iterable[SourceReport]) -> tuple[DataKind, ...]:
    kinds: set[DataKind] = {"rows" if source.rows else "text" for source in sources}
    return tuple(sorted(kinds))


def _kinds_of_names(chosen: Iterable[str]) -> tuple[DataKind, ...]:
    """Guess text or rows from the file names."""
    kinds: set[DataKind] = {
        "rows" if data_menu.dataset_name(name).lower().endswith(dataset_index.ROW_SUFFIXES) else "text"
        for name in chosen
    }
    return tuple(sorted(kinds))


def _share_field(entry: str) -> Markup:
    """A number field for the share of a dataset."""
    name = data_menu.dataset_name(entry)
    try:
        per_cent = f"{dataset_index.parse_share(entry).percent:g}"
    except ValueError:
        per_cent = ""
    return Markup(SHARE_FIELD).format(max=dataset_index.MAX_PERCENT, per_cent=per_cent, name=name)


def _bytes_of(names: Iterable[str], context: PageContext) -> int:
    datasets = dataset_index.find_datasets(list(names), context.host.folders)
    files = [f for d in datasets for f in (d.path.rglob("*") if d.path.is_dir() else [d.path]) if f.is_file()]
    return sum(f.stat().st_size for f in files)
