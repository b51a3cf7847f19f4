"""The menu of datasets, and uploading files from the browser."""

from __future__ import annotations

import filecmp
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ...core.errors import DataError, TrainingProError, first_line
from ...core.files import PART_SUFFIX, atomic_write
from ...core.host import Folders
from ...data import dataset_index
from ...data.readers import unsupported
from ...settings.definitions import section_keys
from ...settings.parsing import training_settings
from ...train_utils import size
from ..base import PageContext, markup, setting_layout

if TYPE_CHECKING:
    from ...data.report import DatasetReport, SourceReport

# Data up to this size are previewed at once; larger data only when Check is pressed.
MAX_PREVIEW_BYTES = 3_000_000
SHARE_FIELD = (
    '<label class="tp-share">use <input type="number" min="1" max="{max}" value="{per_cent}" '
    'data-tp-share="{name}"> % of {name}</label>'
)


# Settings that change the examples.
EXAMPLE_KEYS = ("data", *section_keys("text", "rows"), "eval_data", "eval_share", "seed", "data_seed")


@dataclass(frozen=True)
class DataPreview:
    """Kinds and number of examples of the chosen data, as far as they are known quickly."""

    kinds: tuple[setting_layout.DataKind, ...] = ()
    examples: int = 0
    html: str = ""


def preview_data(values: Mapping[str, Any], context: PageContext) -> DataPreview:
    """Preview the chosen data, and list unsupported files in the datasets folder."""
    preview = _chosen_preview(values, context)
    return replace(
        preview,
        html=preview.html
        + _quiet_note(context.read_disk(lambda folders: unsupported.describe_unsupported(folders.datasets), "")),
    )


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


def _quiet_note(text: str) -> str:
    return markup.paragraph(text, quiet=True) if text else ""


def _report(values: Mapping[str, Any], context: PageContext) -> DatasetReport | None:
    if _bytes_of(values["data"], context) > MAX_PREVIEW_BYTES or context.host.model_status().problem:
        return None
    used = {key: values[key] for key in EXAMPLE_KEYS if key in values}  # others may be half typed
    return context.engine.check(training_settings({**used, "name": "look"}), context.host)


def _kinds_of_sources(sources: Iterable[SourceReport]) -> tuple[setting_layout.DataKind, ...]:
    kinds: set[setting_layout.DataKind] = {"rows" if source.rows else "text" for source in sources}
    return tuple(sorted(kinds))


def _kinds_of_names(chosen: Iterable[str]) -> tuple[setting_layout.DataKind, ...]:
    """Guess text or rows from the file names."""
    kinds: set[setting_layout.DataKind] = {
        "rows" if dataset_name(name).lower().endswith(dataset_index.ROW_SUFFIXES) else "text" for name in chosen
    }
    return tuple(sorted(kinds))


def _share_field(entry: str) -> Markup:
    """A number field for the share of a dataset."""
    name = dataset_name(entry)
    try:
        per_cent = f"{dataset_index.parse_share(entry).percent:g}"
    except ValueError:
        per_cent = ""
    return Markup(SHARE_FIELD).format(max=dataset_index.MAX_PERCENT, per_cent=per_cent, name=name)


def _bytes_of(names: Iterable[str], context: PageContext) -> int:
    datasets = dataset_index.find_datasets(list(names), context.host.folders)
    files = [f for d in datasets for f in (d.path.rglob("*") if d.path.is_dir() else [d.path]) if f.is_file()]
    return sum(f.stat().st_size for f in files)


MAX_UPLOAD_BYTES = 2 * 10**9
MAX_NAME_CHARS = 80


def dataset_choices(context: PageContext) -> list[tuple[str, str]]:
    """Labels and names of all datasets; those of the project are marked as examples."""
    datasets = context.read_disk(dataset_index.list_datasets, ())
    return [(f"{d.name} (an example)" if d.example else d.name, d.name) for d in datasets]


def set_share(chosen: Sequence[str], name: str, per_cent: str) -> list[str]:
    """The chosen datasets, with a new share for one of them. Check reports a share that is no number."""
    changed = name if per_cent.strip() in ("", "100") else f"{name}:{per_cent.strip()}"
    return [changed if dataset_name(entry) == name else entry for entry in chosen]


def dataset_name(entry: str) -> str:
    """The name of the dataset in an entry such as 'notes.md:50'."""
    try:
        return dataset_index.parse_share(entry).name
    except ValueError:
        return entry.rpartition(":")[0]


def existing_entries(entries: Sequence[str], folders: Folders) -> list[str]:
    """Those of these entries whose datasets exist, also if no menu lists them, such as a file in a folder."""
    return [entry for entry in entries if _exists(dataset_name(entry), folders)]


def _exists(name: str, folders: Folders) -> bool:
    try:
        return bool(dataset_index.find_datasets([name], folders))
    except DataError:
        return False


@dataclass(frozen=True)
class AddedFile:
    """An uploaded file and its name in the datasets folder; `existed` if the same bytes were already there."""

    uploaded: str
    name: str
    existed: bool

    @property
    def message(self) -> str:
        if not self.existed:
            return f"Added: {self.name}."
        note = "" if self.uploaded == self.name else f" as {self.name}"
        return f"{self.uploaded} already exists{note}, so it was selected instead of being added again."


def add_files(folders: Folders, uploaded: Sequence[str]) -> list[AddedFile]:
    """Copy uploaded files into the datasets folder, under safe, free names; existing files are kept."""
    folder = folders.datasets
    paths = [Path(path) for path in uploaded]
    if unreadable := [path.name for path in paths if path.suffix.lower() not in dataset_index.DATA_SUFFIXES]:
        problem = f"{', '.join(unreadable)} can't be used as a dataset."
        remedies = ((name, unsupported.find_remedy(Path(name))) for name in unreadable)
        advice = "".join(f" {name}: {remedy}." for name, remedy in remedies if remedy)
        raise DataError(f"{problem} Choose {', '.join(dataset_index.DATA_SUFFIXES)} files.{advice}")
    for path in paths:
        if path.stat().st_size > MAX_UPLOAD_BYTES:
            raise DataError(
                f"{path.name} is {size(path.stat().st_size)}, but an upload can be at most "
                f"{size(MAX_UPLOAD_BYTES)}. Copy it to {folder} instead."
            )
    folder.mkdir(parents=True, exist_ok=True)
    return [_add_file(path, folder) for path in paths]


def merge_chosen(chosen: Iterable[str], files: Iterable[AddedFile]) -> list[str]:
    """The chosen datasets and the new files, without duplicates."""
    names = list(chosen)
    for file in files:
        if file.name not in map(dataset_name, names):
            names.append(file.name)
    return names


def _add_file(path: Path, folder: Path) -> AddedFile:
    # An existing file of the same type and bytes, because training on both would repeat the data.
    candidates = (p for p in sorted(folder.iterdir()) if p.is_file() and p.suffix.lower() == path.suffix.lower())
    duplicate = next((p.name for p in candidates if filecmp.cmp(p, path, shallow=False)), "")
    return AddedFile(path.name, duplicate or _copy_file(path, folder), existed=bool(duplicate))


def _copy_file(path: Path, folder: Path) -> str:
    target = _free_path(folder, safe_name(path.name))
    with atomic_write(target, f".{target.name}{PART_SUFFIX}") as partial:
        shutil.copyfile(path, partial)
    return target.name


def suggest_lora_name(data: str, model: str) -> str:
    """A short name for a LoRA, from its dataset and its model, without dots."""
    parts = [Path(data.rstrip("/")).stem, *([model] if model else [])]
    return re.sub(r"[^\w-]+", "_", "-".join(parts)).strip("_-")[:50]


def is_suggested(name: str, data: str) -> bool:
    """Whether a name was suggested for this dataset, with any model."""
    stem = suggest_lora_name(data, "")
    return name == stem or name.startswith(f"{stem}-")


def safe_name(name: str) -> str:
    """A file name without characters that are unsafe in paths."""
    stem, suffix = Path(name).stem, Path(name).suffix
    safe_stem = re.sub(r"[^\w .()-]+", "_", stem).strip(" .") or "text"
    return safe_stem[:MAX_NAME_CHARS] + re.sub(r"[^\w.]+", "", suffix)


def _free_path(folder: Path, name: str) -> Path:
    path, number = folder / name, 2
    while path.exists():
        path = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
        number += 1
    return path
