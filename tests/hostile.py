"""Forty values that no menu offers, as somebody who reaches the page may send them; each has to be refused.

Where code fails to refuse one, it acts on it. So none may ever name something that is really there outside of a
test's own folder, on any system: `is_harmless` says so, and a test asks it before it hands them to anything.
"""

from __future__ import annotations

from pathlib import Path

LINK = "linked"
"""A link that leads out stands under this name in the folders that `planted` makes."""
VALUES = (
    "",
    " ",
    ".",
    "..",
    "...",
    "../models/tiny",
    "../../outside",
    "../../outside/checkpoint-6-user",
    "story/..",
    "story/../../models/tiny",
    "story/checkpoint-4-epoch-1/../../../models",
    "story/checkpoint-4-epoch-1/../../night",
    "./story",
    "story/./checkpoint-4-epoch-1",
    "story//checkpoint-4-epoch-1",
    "/training-pro-not-there",
    "//training-pro-not-there/share",
    "\\\\training-pro-not-there\\share",
    "\\\\?\\Q:\\not-there",
    "..\\models\\tiny",
    "story\\..\\..\\models\\tiny",
    "Q:",
    "Q:\\not-there",
    "Q:story",
    "story:stream",
    "story\x00",
    "story\n",
    "story\x1b[2J",
    "story\x7f",
    "\ud800",
    "story\udcff",
    "con",
    "NUL.txt",
    "com1",
    "story.",
    "story ",
    "x" * 256,
    "\u00fc" * 128,
)
COUNT = 40


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
