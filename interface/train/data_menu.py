"""The menu of datasets: what is known of the chosen data, files that are uploaded, and the name that follows."""

from __future__ import annotations

import filecmp
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...core.errors import DataError, TrainingProError, first_line
from ...core.files import PART_SUFFIX, atomic_write
from ...core.host import Folders
from ...data import dataset_index
from ...data.dataset_index import CHATS
from ...data.readers import count_replies, row_files, unsupported
from ...settings.definitions import section_keys
from ...settings.parsing import training_settings
from ...train_utils import format_count, plural
from ..base import PageContext, form, markup

# Data up to this size are previewed at once; larger data only when Check is pressed.
MAX_PREVIEW_BYTES = 3_000_000
MAX_NAME_CHARS = 80
SHARE_FIELD = (
    '<label class="tp-share">use <input type="number" min="1" max="{max}" value="{per_cent}" '
    'data-tp-share="{name}"> % of {name}</label>'
)
# Settings that change the examples.
EXAMPLE_KEYS = (
    "data",
    *section_keys("text", "rows"),
    "objective",
    "preferences",
    "eval_data",
    "eval_share",
    "seed",
    "data_seed",
)


@dataclass(frozen=True)
class DataPreview:
    """Kinds and number of examples of the chosen data, as far as they are known quickly."""

    kinds: tuple[form.DataKind, ...] = ()
    examples: int = 0
    html: str = ""


def preview_data(values: Mapping[str, Any], context: PageContext) -> DataPreview:
    """Preview the chosen data, and list unsupported files in the datasets folder."""
    chosen = values.get("data") or []
    # By their names only, if they don't exist.
    kinds: set[form.DataKind] = {
        "rows" if dataset_name(name).lower().endswith(dataset_index.ROW_SUFFIXES) else "text" for name in chosen
    }
    parts, note, examples = list[Markup](), "", 0
    if not chosen:
        # The style sheet hides this as soon as something is chosen, before it is read.
        hint = Markup('<p class="tp-quiet tp-no-data">Choose a dataset, press Add files, or copy files to {}.</p>')
        parts.append(context.read_disk(lambda folders: hint.format(folders.datasets), Markup()))
    else:
        try:
            datasets = dataset_index.find_datasets(list(chosen), context.host.folders)
            files = (file for dataset in datasets for file in dataset_index.dataset_files(dataset.path))
            kinds = {"rows" if row_files.is_row_file(file) else "text" for file in files}
            paths = (path for d in datasets for path in (d.path.rglob("*") if d.path.is_dir() else [d.path]))
            is_small = sum(path.stat().st_size for path in paths if path.is_file()) <= MAX_PREVIEW_BYTES
            # A worker would take memory from a run in a process of its own.
            is_busy = context.in_run and context.host.own_process is not None
            if is_small and not is_busy and not context.host.model_status().problem:
                used = {key: values[key] for key in EXAMPLE_KEYS if key in values}  # others may be half typed
                report = context.engine.check(training_settings({**used, "name": "look"}), context.host)
                note = " ".join([*(f"{next(source.lines())}." for source in report.sources), *report.problems])
                kinds = {"rows" if source.rows else "text" for source in report.sources} or kinds
                examples = report.examples
            else:
                note = "Press Check to see what is in this dataset."
        except DataError as error:  # such as a file that has been deleted
            note = str(error)
        except TrainingProError as error:  # the form is incomplete
            note = first_line(error)
        except OSError:  # Check and Start say what is wrong
            pass
    not_supported = context.read_disk(lambda folders: unsupported.describe_unsupported(folders.datasets), "")
    if note:
        parts.append(markup.paragraph(note, quiet=True))
    for entry in chosen:
        try:
            per_cent = f"{dataset_index.parse_share(entry).percent:g}"
        except ValueError:
            per_cent = ""
        field = {"max": dataset_index.MAX_PERCENT, "per_cent": per_cent, "name": dataset_name(entry)}
        parts.append(Markup(SHARE_FIELD).format(**field))
    if not_supported:
        parts.append(markup.paragraph(not_supported, quiet=True))
    return DataPreview(tuple(sorted(kinds)), examples, markup.join(parts))


def dataset_choices(context: PageContext) -> list[tuple[str, str]]:
    """Labels and names of all datasets; those of the project are marked as examples, and chats are counted."""
    choices = list[tuple[str, str]]()
    for data in context.read_disk(dataset_index.list_datasets, ()):
        label = f"{data.name} (an example)" if data.example else data.name
        if data.name.startswith(CHATS):
            with suppress(OSError):  # Check says what can't be read
                chats, replies = count_replies(data.path)
                label += f" ({format_count(chats, 'chat')}, {format_count(replies, 'reply', 'replies')})"
        choices.append((label, data.name))
    return choices


def dataset_name(entry: str) -> str:
    """The name of the dataset in an entry such as 'notes.md:50'."""
    try:
        return dataset_index.parse_share(entry).name
    except ValueError:
        return entry.rpartition(":")[0]


def existing_entries(entries: Sequence[str], folders: Folders) -> list[str]:
    """Those of these entries whose datasets exist, also if no menu lists them, such as a file in a folder."""
    existing = []
    for entry in entries:
        with suppress(DataError):
            if dataset_index.find_datasets([dataset_name(entry)], folders):
                existing.append(entry)
    return existing


def add_files(folders: Folders, uploaded: Sequence[str], chosen: list[str]) -> str:
    """Copy uploaded files into the datasets folder, under safe, free names, and add them to the chosen datasets.

    Existing files are kept, and an example that was chosen gives way to them. Returns a message.
    """
    folder = folders.datasets
    paths = [Path(path) for path in uploaded]
    if unreadable := [path.name for path in paths if path.suffix.lower() not in dataset_index.DATA_SUFFIXES]:
        problem = f"{', '.join(unreadable)} can't be used as a dataset."
        remedies = ((name, unsupported.find_remedy(Path(name))) for name in unreadable)
        advice = "".join(f" {name}: {remedy}." for name, remedy in remedies if remedy)
        raise DataError(f"{problem} Choose {', '.join(dataset_index.DATA_SUFFIXES)} files.{advice}")
    folder.mkdir(parents=True, exist_ok=True)
    messages, before = [], [*chosen]
    for path in paths:
        # An existing file of the same type and bytes, because training on both would repeat the data.
        same_type = (
            p for p in sorted(folder.iterdir()) if p.is_file() and p.suffix.lower() == path.suffix.lower()
        )
        duplicate = next((p.name for p in same_type if filecmp.cmp(p, path, shallow=False)), "")
        name = duplicate or safe_name(path.name)
        if duplicate:
            place = "" if path.name == name else f" as {name}"
            messages.append(f"{path.name} already exists{place}, so it was selected instead of being added again.")
        else:
            number, stem, suffix = 2, Path(name).stem, Path(name).suffix
            while (folder / name).exists():
                name = f"{stem}-{number}{suffix}"
                number += 1
            with atomic_write(folder / name, f".{name}{PART_SUFFIX}") as partial:
                shutil.copyfile(path, partial)
            messages.append(f"Added: {name}.")
        if name not in map(dataset_name, chosen):
            chosen.append(name)
    examples = {entry.name for entry in dataset_index.list_datasets(folders) if entry.example}
    if before and examples.issuperset(map(dataset_name, before)):  # the example was there for a first look
        del chosen[: len(before)]
        messages.append(f"{', '.join(before)} {plural(len(before), 'is', 'are')} no longer chosen.")
    return " ".join(messages)


def suggest_lora_name(data: str, model: str) -> str:
    """A short name for a LoRA, from its dataset and its model, without dots."""
    parts = [Path(data.rstrip("/")).stem, *([model] if model else [])]
    return re.sub(r"[^\w-]+", "_", "-".join(parts)).strip("_-")[:50]


def safe_name(name: str) -> str:
    """A file name without characters that are unsafe in paths."""
    stem, suffix = Path(name).stem, Path(name).suffix
    safe_stem = re.sub(r"[^\w .()-]+", "_", stem).strip(" .") or "text"
    return safe_stem[:MAX_NAME_CHARS] + re.sub(r"[^\w.]+", "", suffix)
