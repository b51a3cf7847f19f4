"""The menu of datasets, and uploading files from the browser."""

from __future__ import annotations

import filecmp
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import DataError
from ...core.files import PART_SUFFIX, atomic_write
from ...core.host import Folders
from ...data import dataset_index
from ...data.readers import unsupported
from ...train_utils import size
from ..base import PageContext

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
    duplicate = _find_duplicate(path, folder)
    return AddedFile(path.name, duplicate or _copy_file(path, folder), existed=bool(duplicate))


def _find_duplicate(path: Path, folder: Path) -> str:
    """An existing file of the same type and bytes, because training on both would repeat the data."""
    candidates = (p for p in sorted(folder.iterdir()) if p.is_file() and p.suffix.lower() == path.suffix.lower())
    return next((p.name for p in candidates if filecmp.cmp(p, path, shallow=False)), "")


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
