"""Which data sets there are: the user's own, and the project's examples, which are only read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import DataError
from ..core.files import safe_paths
from ..core.host import Folders
from ..train_utils import natural_key
from .examples import EVERYTHING, Share, dataset_share
from .folder_files import is_hidden, seen
from .readers import documents, unsupported
from .rows import row_dataset

TEXTS = (".txt", ".md", *documents.READERS)
ROWS = (*row_dataset.READERS, *row_dataset.DATABASES)
KINDS = TEXTS + ROWS


@dataclass(frozen=True)
class DataSet:
    """A file or a folder to learn from; `name` ends in / for a folder."""

    name: str
    path: Path
    example: bool = False
    share: Share = EVERYTHING


def listed(folders: Folders) -> list[DataSet]:
    """The user's data sets, then the examples that none of them hides."""
    own = _in(folders.datasets, example=False)
    names = {d.name for d in own}
    return own + [d for d in _in(folders.examples, example=True) if d.name not in names]


def found(names: Sequence[str], folders: Folders) -> list[DataSet]:
    """The data sets of these names; DataError names all that cannot be had."""
    sets, problems = [], []
    for name in names:
        try:
            sets.append(_found(name, folders))
        except DataError as error:
            problems.append(str(error))
    problems += _doubled([one.name.rstrip("/") for one in sets])
    if problems:
        raise DataError("\n".join(problems))
    return sets


def _doubled(names: Sequence[str]) -> Iterator[str]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"Data: {name!r} is named twice. Name it once; {name}:200 learns from it twice."


def _found(name: str, folders: Folders) -> DataSet:
    try:
        share = dataset_share.asked(name)
    except ValueError as error:
        raise DataError(f"Data: {error}") from error
    plain = share.name.rstrip("/\\")
    if _leads_out(plain):
        raise DataError(f"Data: {name!r} is a path. Give the name of a file or folder in {folders.datasets}.")
    for root, example in ((folders.datasets, False), (folders.examples, True)):
        path = _below(root, plain)
        if path is not None and _stands(path):
            if path.is_file():
                unsupported.refuse(path, plain)
            return DataSet(plain + "/" * path.is_dir(), path, example, share)
    there = ", ".join(d.name for d in listed(folders)) or "nothing yet"
    raise DataError(f"Data: there is no {name!r} in {folders.datasets}. There is: {there}.")


LOOKED_FOR = "a data set by its name, else a path from the current folder (./NAME: only that), else an example"
"""What is named on a command line, for every command."""


def located(asked: str, folders: Folders) -> Path:
    """Where that is; DataError names the places where it was looked for."""
    plain, here = asked.rstrip("/\\"), from_here(asked)
    may_be_a_name = not _leads_out(plain) and not plain.startswith(("./", ".\\"))
    places = [_below(folders.datasets, plain), here, _below(folders.examples, plain)] if may_be_a_name else [here]
    for place in places:
        if place is not None and _stands(place):
            return place
    there = ", ".join(d.name for d in listed(folders)) or "nothing yet"
    raise DataError(
        f"There is no {asked!r}: neither among the data sets, in {folders.datasets}, nor as {here}. "
        f"Data sets: {there}."
    )


def from_here(asked: str) -> Path:
    """As a path from the current folder."""
    path = Path(asked)
    return path.resolve() if ".." in path.parts else path.absolute()  # a link stays where it lies


def named_at(asked: str, folders: Folders) -> str:
    """The same as the name of a data set, with its per cent: a run learns from nothing that lies elsewhere."""
    try:
        name = dataset_share.asked(asked).name
    except ValueError as error:
        raise DataError(f"Data: {error}") from error
    place = located(name, folders)
    for root in (folders.datasets, folders.examples):
        for path in (place, place.resolve()):
            if path.is_relative_to(root):
                return asked.replace(name, path.relative_to(root).as_posix(), 1)
    raise DataError(
        f"Data: {name!r} is {place}, and a run learns from what lies in {folders.datasets}. Put it there, or a "
        "link to it."
    )


def _leads_out(name: str) -> bool:
    """Whether a name is a path out of the folder, on any system, or the folder itself."""
    parts = Path(name).parts
    return Path(name).is_absolute() or not parts or ":" in name or ".." in re.split(r"[/\\]", name)


def _below(root: Path, name: str) -> Path | None:
    """A data set by its name, None where no file can have it; what users link into the folder is only read."""
    try:
        return safe_paths.descendant(root, name, "Data", refusal=DataError, follow_links=True)
    except DataError:
        return None


def _stands(path: Path) -> bool:
    try:
        return path.is_dir() or path.is_file()
    except OSError:  # a name longer than the system can have
        return False


def _in(folder: Path, *, example: bool) -> list[DataSet]:
    if not folder.is_dir():
        return []
    found = [
        DataSet(p.name + "/" * p.is_dir(), p, example)
        for p in folder.iterdir()
        if not is_hidden(p.name) and (_holds_data(p) if p.is_dir() else p.suffix.lower() in KINDS)
    ]
    return sorted(found, key=lambda d: natural_key(d.name))


def _holds_data(folder: Path) -> bool:
    return bool(files(folder))


def files(path: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    """The file itself, or those of a folder, of these kinds."""
    return seen(path, lambda file: file.suffix.lower() in kinds) if path.is_dir() else [path]
