"""Files written whole: aside first, then renamed, so that a kill at any moment leaves the old or the new."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ...train_utils import size
from ..errors import first_line

PART = ".part"
"""Behind a name, or alone: it is on its way, in or out."""
PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Between tries: a page has read a file in less, and a virus scanner a new one in most cases."""
NEW_FOLDER_SECONDS = (1.6, 3.2, *[5.0] * 9)
"""And then, for a folder of files that were only just written: some scanners hold it for a minute, and others
(npm, VS Code) wait as long on Windows."""
NO_ROOM = 100_000
"""So few bytes are none."""
FULL = ("space left", "(os error 112)", "(os error 39)")
"""In the words of libraries; Windows says it in the user's language, and by these numbers."""

Found = TypeVar("Found")


@contextmanager
def written_whole(path: Path, name: str = "") -> Iterator[Path]:
    """Where to write a file or folder, beside its place: it comes there when all went well, else it goes."""
    aside = path.with_name(name or path.name + PART)
    path.parent.mkdir(parents=True, exist_ok=True)
    if aside.is_dir():  # left by a kill
        cleared_away(aside)
    try:
        yield aside
        moved_when_new(aside, path) if aside.is_dir() else moved(aside, path)
    except BaseException:
        with suppress(OSError):
            cleared_away(aside) if aside.is_dir() else aside.unlink(missing_ok=True)
        raise


@contextmanager
def making_beside(folder: Path) -> Iterator[Path]:
    """Where to make a folder, beside its place: whoever lists what is there never meets half of one.

    What is left there goes as far as no virus scanner holds it: what was made stands in its place by then.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def moved(path: Path, place: Path) -> Path:
    """Rename it, patiently; in one move, so that a kill leaves it here or there."""
    return patiently(lambda: path.replace(place))


def moved_when_new(folder: Path, place: Path) -> Path:
    """The same for a folder that was written just now, which a virus scanner may hold for longer."""
    return patiently(lambda: folder.replace(place), NEW_FOLDER_SECONDS)


def patiently(act: Callable[[], Found], longer: Sequence[float] = ()) -> Found:
    """On Windows nothing is moved or opened while another program looks at it, a virus scanner or a page."""
    for pause in (*PAUSES_SECONDS, *longer):
        try:
            return act()
        except PermissionError:
            time.sleep(pause)
    return act()


def cleared_away(folder: Path) -> None:
    """Remove a folder with all that is in it: also what is read-only, as all in a clone's .git is on Windows."""
    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=_once_more)
    else:
        shutil.rmtree(folder, onerror=_once_more)


def _once_more(remove: Callable[[str], object], path: str, error: object) -> None:
    """Where something could not be removed: as one that may be written, and patiently."""
    if remove not in (os.unlink, os.rmdir):
        raise
    Path(path).chmod(stat.S_IRWXU)
    patiently(lambda: remove(path))


def write_text(path: Path, text: str) -> None:
    """The same bytes on every system: a line end that is in the text already would grow with each writing."""
    with written_whole(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def read_json(path: Path, otherwise: Any) -> Any:
    """What stands in a JSON file, if it is of the same kind as `otherwise`; that where it cannot be read."""
    try:
        found = json.loads(patiently(lambda: path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError):
        return otherwise
    return found if isinstance(found, type(otherwise)) else otherwise


def write_json(path: Path, value: Any) -> None:
    write_text(path, as_json(value, indent=2) + "\n")


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that every program reads: what is no number (NaN, infinity) is null in it."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def settle(folder: Path) -> None:
    """Wait until the files of a folder are on the disk itself, so that a power cut leaves them whole."""
    for file in folder.iterdir():
        if file.is_file():
            with patiently(partial(file.open, "rb+")) as opened:
                os.fsync(opened.fileno())


def is_full(error: Exception, folder: Path) -> bool:
    """Whether the disk is full, or the user's share of it; some libraries say so in their own words, or never."""
    number = getattr(error, "errno", None)
    said = any(words in str(error) for words in FULL)
    return said or number in (errno.ENOSPC, errno.EDQUOT) or free_bytes(folder) < NO_ROOM


def why_not_written(error: Exception, folder: Path) -> str:
    """What stands in the way of writing, in words."""
    if is_full(error, folder):
        return f"the disk is full ({size(free_bytes(folder))} free)"
    if isinstance(error, PermissionError):
        return f"{Path(error.filename or folder).name} may not be written, or another program holds it open"
    if getattr(error, "errno", None) == errno.EROFS:
        return "the folder is read-only"
    return first_line(error)


def free_bytes(folder: Path) -> int:
    """Where a folder stands or will stand."""
    return shutil.disk_usage(standing(folder)).free


def standing(folder: Path) -> Path:
    """The folder, or the one nearest above it that is there."""
    return next((path for path in (folder, *folder.parents) if path.exists()), Path())
