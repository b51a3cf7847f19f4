"""The datasets that exist: the user's own, and the project's read-only examples; their names and shares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..core.errors import DataError, SavingError
from ..core.files import safe_paths, usable_entries
from ..core.host import Folders
from ..settings.name_rules import NAME_AND_PERCENT
from ..settings.setting import comma_hint
from ..train_utils import natural_key
from .readers import documents, row_files, unsupported

TEXT_SUFFIXES = (".txt", ".md", *documents.READERS)
ROW_SUFFIXES = row_files.SUFFIXES
DATA_SUFFIXES = TEXT_SUFFIXES + ROW_SUFFIXES
MAX_PERCENT = 10_000
CHATS, INSTRUCT = "chats:", "instruct"  # chats:CHARACTER and chats:instruct are TextGen's own logs


class DatasetShare(NamedTuple):
    """A dataset's name, and the percentage of it to use."""

    name: str
    percent: float = 100.0


WHOLE_DATASET = DatasetShare("")


def parse_share(name: str) -> DatasetShare:
    """Parse an entry such as 'notes.md:50' into name and percentage.

    Raises ValueError with the reason where the number is invalid.
    """
    match = NAME_AND_PERCENT.fullmatch(name.strip())
    if not match:
        return DatasetShare(name)
    try:
        per_cent = float(match["per_cent"])
    except ValueError:
        per_cent = 0.0
    if not 0 < per_cent <= MAX_PERCENT:
        hint = comma_hint(match["per_cent"]) or f" Use a number above 0 and at most {MAX_PERCENT}."
        raise ValueError(f"{name!r}: {match['per_cent']} is not a valid percentage.{hint}")
    return DatasetShare(match["name"], per_cent)


@dataclass(frozen=True)
class DatasetEntry:
    """A file or folder to learn from; the `name` of a folder ends in /, but not that of TextGen's own chats."""

    name: str
    path: Path
    example: bool = False
    share: DatasetShare = WHOLE_DATASET


def list_datasets(folders: Folders) -> list[DatasetEntry]:
    """The user's datasets, the examples whose names no dataset of the user has, and the chats in TextGen."""
    datasets: dict[str, DatasetEntry] = {}
    for folder, example in ((folders.datasets, False), (folders.examples, True)):
        found = []
        for path in usable_entries(folder):
            if unsupported.is_hidden(path.name):
                continue
            if bool(dataset_files(path)) if path.is_dir() else path.suffix.lower() in DATA_SUFFIXES:
                found.append(DatasetEntry(path.name + "/" * path.is_dir(), path, example))
        for dataset in sorted(found, key=lambda dataset: natural_key(dataset.name)):
            datasets.setdefault(dataset.name, dataset)
    characters = sorted((path.name for path in usable_entries(folders.chats / "chat")), key=natural_key)
    for name in (f"{CHATS}{character}" for character in (INSTRUCT, *characters)):
        if (chats := _chats_folder(name, folders)) and any(chats.glob("*.json")):
            datasets[name] = DatasetEntry(name, chats)
    return list(datasets.values())


def _chats_folder(name: str, folders: Folders) -> Path | None:
    """The folder of the logs that a name such as chats:Maren means; no link out of TextGen's logs is followed."""
    if not name.startswith(CHATS):
        return None
    character = name.removeprefix(CHATS)
    root = folders.chats if character == INSTRUCT else folders.chats / "chat"
    with suppress(SavingError, OSError):
        path = safe_paths.child(root, character, "Dataset")
        return path if path.is_dir() else None
    return None


def is_chats(path: Path) -> bool:
    """Whether this is a folder of TextGen's own logs, logs/instruct or logs/chat/CHARACTER."""
    *_, logs, chat, name = ("", "", *path.parts)
    return path.is_dir() and ((logs, chat) == ("logs", "chat") or (chat, name) == ("logs", INSTRUCT))


def find_datasets(names: Sequence[str], folders: Folders) -> list[DatasetEntry]:
    """The datasets of these names; a DataError lists all that were not found."""
    datasets, problems = list[DatasetEntry](), list[str]()
    for name in names:
        try:
            share = parse_share(name)
        except ValueError as error:
            problems.append(f"Dataset: {error}")
            continue
        stem = share.name.rstrip("/\\")
        if chats := _chats_folder(stem, folders):
            datasets.append(DatasetEntry(stem, chats, share=share))
            continue
        if _is_outside(stem) and not stem.startswith(CHATS):
            problems.append(
                f"Dataset: {name!r} is a path, but a name is needed. "
                f"Enter the name of a file or folder in {folders.datasets}."
            )
            continue
        own, example = _existing(folders.datasets, stem), _existing(folders.examples, stem)
        if not (path := own or example):
            problems.append(
                f"Dataset: there is no dataset named {name!r} in {folders.datasets}. "
                f"Available: {_existing_names(folders)}."
            )
            continue
        try:
            if path.is_file():
                unsupported.refuse_unsupported(path, stem)
            datasets.append(DatasetEntry(stem + "/" * path.is_dir(), path, not own, share))
        except DataError as error:
            problems.append(str(error))
    found = [dataset.name.rstrip("/") for dataset in datasets]
    problems += [
        f"Dataset: {name!r} is listed more than once. List it only once. To use it twice, write {name}:200 (200%)."
        for name in sorted({name for name in found if found.count(name) > 1})
    ]
    if problems:
        raise DataError("\n".join(problems))
    return datasets


# How every command resolves a DATA argument, for its help.
LOOKUP_ORDER = (
    "the name of a dataset, a path relative to the current folder (./NAME is always a path), or the name of an "
    "example dataset"
)


def locate_dataset(name: str, folders: Folders) -> Path:
    """The path of a dataset; a DataError names the places that were searched."""
    stem = name.rstrip("/\\")
    if chats := _chats_folder(stem, folders):
        return chats
    may_be_a_name = not _is_outside(stem) and not stem.startswith(("./", ".\\"))
    roots = (folders.datasets, None, folders.examples) if may_be_a_name else (None,)
    for root in roots:
        if path := _existing(root, stem if root else name):
            return path
    raise DataError(
        f"There is no dataset {name!r} in {folders.datasets}, and no file {absolute_path(name)}. Available: "
        f"{_existing_names(folders)}."
    )


def _existing_names(folders: Folders) -> str:
    return ", ".join(dataset.name for dataset in list_datasets(folders)) or "none yet"


def absolute_path(name: str) -> Path:
    """The absolute path, from the current folder."""
    path = Path(name)
    return path.resolve() if ".." in path.parts else path.absolute()  # resolve() would also follow links


def dataset_name_at(name_with_share: str, folders: Folders) -> str:
    """The name of the dataset at this path, with its share: a run learns only from the datasets' folders."""
    try:
        name = parse_share(name_with_share).name
    except ValueError as error:
        raise DataError(f"Dataset: {error}") from error
    located_path = locate_dataset(name, folders)
    if name.startswith(CHATS):
        return name_with_share
    for root in (folders.datasets, folders.examples):
        for path in (located_path, located_path.resolve()):
            if path.is_relative_to(root):
                return name_with_share.replace(name, path.relative_to(root).as_posix(), 1)
    raise DataError(
        f"Dataset: {name!r} is at {located_path}, but a run only reads datasets in {folders.datasets}. "
        "Copy it there, or create a link to it there."
    )


def _is_outside(name: str) -> bool:
    """Whether a name is a path out of the folder, or the folder itself."""
    # On any system: C: and a backslash are a path on Windows, where a shared settings file may be opened.
    parts = Path(name).parts
    return Path(name).is_absolute() or not parts or ":" in name or ".." in re.split(r"[/\\]", name)


def _existing(root: Path | None, name: str) -> Path | None:
    """The path of a file or folder in `root` or the current folder, if there is one. Links are followed."""
    try:
        path = absolute_path(name)
        if root:
            path = safe_paths.descendant(root, name, "Data", refusal=DataError, follow_links=True)
        return path if path.is_dir() or path.is_file() else None
    except (DataError, OSError):  # an impossible name, or one that is longer than the system allows
        return None


def dataset_files(path: Path, kinds: Sequence[str] = DATA_SUFFIXES) -> list[Path]:
    """The file itself, or the files of these kinds in a folder."""
    if not path.is_dir():
        return [path]
    files = unsupported.visible_files(path, lambda file: file.suffix.lower() in kinds)
    return [file for file in files if not safe_paths.has_impossible_character(str(file.relative_to(path)))]
