"""Paths from names given by a page or a command: a name that leads out of its folder is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from .errors import SavingError, TrainingProError
from .readable import quote

# The most folders that a name may contain; each one is checked.
MAX_DEPTH = 30
# The longest file name that the common file systems allow (NTFS, APFS, ext4).
MAX_NAME_BYTES = 255
# Path separators of all systems; a colon follows a drive letter or begins an alternate data stream.
PATH_SEPARATORS = re.compile(r"[/\\:]")
# Control characters, and halves of characters: bytes on the disk that are not UTF-8.
IMPOSSIBLE_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Device names reserved by Windows, with any suffix.
DEVICE_NAMES = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3]) *(\..*)?")

# The error type raised for a refused name.
ErrorFactory = Callable[[str], TrainingProError]


def child(
    folder: Path, name: str, what: str, *, refusal: ErrorFactory = SavingError, follow_links: bool = False
) -> Path:
    """Return the path of an entry of `folder`; refuse anything but a plain name, and a link that leads out."""
    # Only the link itself is read; the entry need not exist. `follow_links` is for entries that are only read and
    # that users may link into the folder themselves: models and datasets.
    if problem := name_fault(name):
        raise refusal(f"{what}: {quote(name)} {problem}. Enter the name of a file or folder in {folder}.")
    path = folder / name
    if not follow_links and leads_out(path):
        raise refusal(
            f"{what}: {quote(name)} links to a location outside {folder}. Replace the link with the file or "
            "folder itself."
        )
    return path


def descendant(
    folder: Path, name: str, what: str, *, refusal: ErrorFactory = SavingError, follow_links: bool = False
) -> Path:
    """Return the path of an entry below `folder` (NAME/checkpoint-40); `child` checks each element."""
    elements = re.split(r"[/\\]", name) if isinstance(name, str) else [name]
    if len(elements) > MAX_DEPTH or (len(elements) > 1 and any(map(name_fault, elements))):
        raise refusal(f"{what}: {quote(name)} is a path. Enter the name of a file or folder in {folder}.")
    path = folder
    for element in elements:
        path = child(path, element, what, refusal=refusal, follow_links=follow_links)
    return path


def name_fault(name: object) -> str:
    """Say why a value is not a plain file name on every system; empty if it is one."""
    if not isinstance(name, str) or not name.strip():
        return "is not a valid name"
    if has_impossible_character(name):
        return "contains a character that is not allowed in file names"
    if len(name.encode()) > MAX_NAME_BYTES:
        return "is too long for a file name"
    if PATH_SEPARATORS.search(name) or not name.strip(". "):
        return "is a path"
    if name.endswith((".", " ")):
        return "ends in a dot or a space, which Windows removes"
    return "is a name that Windows reserves for a device" if DEVICE_NAMES.fullmatch(name) else ""


def has_impossible_character(name: str) -> bool:
    """Whether a name has a control character, or half of a character: bytes on the disk that are not UTF-8."""
    return bool(IMPOSSIBLE_CHARACTERS.search(name))


def leads_out(path: Path) -> bool:
    """Whether an entry is a link to a target outside of its own folder."""
    try:
        return path.resolve().parent != path.parent.resolve()
    except (OSError, RuntimeError, ValueError):  # a link to itself, or a name that the system does not allow
        return True
