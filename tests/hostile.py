"""Values that no menu offers, one of each kind, as somebody who reaches the page may send them; each is refused.

Where code fails to refuse one, it acts on it. So none may ever name something that is really there outside of a
test's own folder, on any system: `is_harmless` says so, and a test asks it before it hands them to anything.
"""

from __future__ import annotations

from pathlib import Path

LINK = "linked"
"""A link that leads out stands under this name in the folders that `plant_link` makes."""
ABSENT = "training-pro-not-there"
"""Stands for what an attacker would name: nothing of that name is anywhere."""
VALUES = (
    *("", " ", ".", "..", "...", "..\\", "./story", "story/..", "story//checkpoint-4-epoch-1", "../models/tiny"),
    *(f"{'../' * 12}outside", "..\\models\\tiny", "story/.../outside", "book/../../presets/mine.json"),
    *(
        f"/{ABSENT}",
        f"//{ABSENT}/share",
        f"\\\\?\\Q:\\{ABSENT}",
        f"file:///{ABSENT}",
        "\\\\?\\GLOBALROOT\\Device\\Null",
    ),
    *("Q:", "Q:story", "story::$DATA"),  # drives, and streams of a file
    *("con", "NUL.txt", "CONOUT$", "aux ", "LPT\u00b9.txt"),  # devices
    *("story\x00", "\x00/../outside", "story\x1b[2J", "story\r\nX-Header: 1", "story\x85"),
    *("\ud800", "\udcff/story"),  # halves of characters
    *("story.", "story ", "a. . ."),  # Windows removes the end
    *("x" * 256, "\u00fc" * 128, "a/" * 500 + "b", "../" * 500 + ABSENT),
    *("../training/queue.json.lock", ".making-x/../../outside"),  # our own files
    *("story\u2044..\\outside", "\uff0e\uff0e/../night"),  # look-alikes of a slash and of a dot
)
NOT_ELSEWHERE = (
    *("\u202estory", "st\u043ery", "\uff0e\uff0e\uff0foutside", "..\u2215outside", "%2e%2e%2foutside", "--help"),
    *("[a-z]", "<b>", "'; DROP TABLE x", "{{7*7}}", f"~/{ABSENT}", f"%APPDATA%\\{ABSENT}", f"$(touch {ABSENT})/x"),
    *("story/.part/events.jsonl", ".part", "trash-np", "queue.json", "story.lock", "backup", "checkpoint-4"),
)
"""Names that a disk may well hold: nothing is wrong in asking for them, and they must not become another place."""


def hostile_values(outside: Path) -> list[str]:
    """All of them: those above, an absolute path, and the link."""
    return [*VALUES, str(outside), LINK]


def is_harmless(value: str, folder: Path, root: Path) -> bool:
    """Tell whether a value, taken as a path in `folder`, names nothing outside of a test's own `root`."""
    if "\x00" in value:
        return True
    try:
        path = (folder / value).resolve()
        return path.is_relative_to(root.resolve()) or not path.exists()
    except (OSError, ValueError):
        return True


def plant_link(folder: Path, outside: Path) -> None:
    """Make the link in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LINK).symlink_to(outside, target_is_directory=True)
