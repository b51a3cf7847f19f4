"""Which data there are to choose from, and adding files of one's own from the browser."""

from __future__ import annotations

import filecmp
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import DataError, TrainingProError
from ...core.files import PART, written_whole
from ...core.host import Folders
from ...data import dataset_index
from ...data.examples import dataset_share
from ...data.readers import unsupported
from ...train_utils import size
from ..base import Joined

LARGEST = 2 * 10**9
LONGEST_NAME = 80


def choices(joined: Joined) -> list[tuple[str, str]]:
    """The data sets there are; the project's own are marked as examples."""
    try:
        found = dataset_index.listed(joined.host.folders)
    except (TrainingProError, OSError):
        return []
    return [(f"{d.name} (an example)" if d.example else d.name, d.name) for d in found]


def with_share(chosen: Sequence[str], name: str, per_cent: str) -> list[str]:
    """The chosen data, of one of them so much per cent; what is no number is told by Check."""
    asked = name if per_cent.strip() in ("", "100") else f"{name}:{per_cent.strip()}"
    return [asked if named(entry) == name else entry for entry in chosen]


def named(entry: str) -> str:
    """The data set of an entry such as 'notes.md:50'."""
    try:
        return dataset_share.asked(entry).name
    except ValueError:
        return entry.rpartition(":")[0]


def still_there(names: Sequence[str], choices: Sequence[tuple[str, str]]) -> list[str]:
    """Those of these names that can still be chosen."""
    there = {value for _, value in choices}
    return [name for name in names if named(name) in there]


@dataclass(frozen=True)
class Taken:
    """An uploaded file under the name it has among the data sets; `known` if the same bytes were there before."""

    uploaded: str
    name: str
    known: bool

    @property
    def words(self) -> str:
        if not self.known:
            return f"Added: {self.name}."
        told = "" if self.uploaded == self.name else f" as {self.name}"
        return f"{self.uploaded} is there already{told}: it is chosen, and not added again."


def take_in(folders: Folders, uploaded: Sequence[str]) -> list[Taken]:
    """Copy uploaded files among the data sets, under safe names that are free; those that are there stay."""
    folder = folders.datasets
    sources = [Path(path) for path in uploaded]
    if strange := [path.name for path in sources if path.suffix.lower() not in dataset_index.KINDS]:
        raise DataError(
            f"{', '.join(strange)} cannot be learned from. Choose {', '.join(dataset_index.KINDS)} files."
            + "".join(
                f" {name}: {what_to_do}." for name in strange if (what_to_do := unsupported.remedy(Path(name)))
            )
        )
    for path in sources:
        if path.stat().st_size > LARGEST:
            raise DataError(
                f"{path.name} has {size(path.stat().st_size)}; at most {size(LARGEST)} go through the browser. "
                f"Copy it into {folder} yourself."
            )
    folder.mkdir(parents=True, exist_ok=True)
    return [_taken(path, folder) for path in sources]


def chosen_with(chosen: Iterable[str], taken: Iterable[Taken]) -> list[str]:
    """What is chosen with these besides, none twice."""
    found = list(chosen)
    for one in taken:
        if one.name not in map(named, found):
            found.append(one.name)
    return found


def _taken(path: Path, folder: Path) -> Taken:
    known = _same(path, folder)
    return Taken(path.name, known or _copied(path, folder), known=bool(known))


def _same(path: Path, folder: Path) -> str:
    """The file of the same kind and the same bytes that is there already: both would be learned from twice."""
    alike = (p for p in sorted(folder.iterdir()) if p.is_file() and p.suffix.lower() == path.suffix.lower())
    return next((p.name for p in alike if filecmp.cmp(p, path, shallow=False)), "")


def _copied(path: Path, folder: Path) -> str:
    target = _free(folder, safe_name(path.name))
    with written_whole(target, f".{target.name}{PART}") as aside:
        shutil.copyfile(path, aside)
    return target.name


def name_for(data: str, model: str) -> str:
    """A name for a LoRA, out of what it learns from and the model it sits on: no dots, not long."""
    parts = [Path(data.rstrip("/")).stem, *([model] if model else [])]
    return re.sub(r"[^\w-]+", "_", "-".join(parts)).strip("_-")[:50]


def safe_name(name: str) -> str:
    """A file name without anything that a system or a path could stumble over."""
    stem, suffix = Path(name).stem, Path(name).suffix
    clean = re.sub(r"[^\w .()-]+", "_", stem).strip(" .") or "text"
    return clean[:LONGEST_NAME] + re.sub(r"[^\w.]+", "", suffix)


def _free(folder: Path, name: str) -> Path:
    path, number = folder / name, 2
    while path.exists():
        path = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
        number += 1
    return path
