"""Three hundred values that no menu offers, as somebody who reaches the page may send them; each is refused.

Where code fails to refuse one, it acts on it. So none may ever name something that is really there outside of a
test's own folder, on any system: `is_harmless` says so, and a test asks it before it hands them to anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

LINK = "linked"
"""A link that leads out stands under this name in the folders that `planted` makes."""
ABSENT = "training-pro-not-there"
"""Stands for what an attacker would name: nothing of that name is anywhere."""
TRAVERSALS = (
    *(".", "..", "...", "....", "../", "..\\", "./", ".\\", "../..", "..\\..", ". ", ".. ", " .."),
    *("../models/tiny", "../../outside", "../../outside/checkpoint-6-user", "story/.."),
    *("story/../../models/tiny",),
    *("story/checkpoint-4-epoch-1/../../../models", "story/checkpoint-4-epoch-1/../../night", "./story"),
    *(
        "story/./checkpoint-4-epoch-1",
        "story//checkpoint-4-epoch-1",
        "..\\models\\tiny",
        "story\\..\\..\\models\\tiny",
    ),
    *(
        "../training/presets/mine",
        "../training/datasets/book.txt",
        "../loras/night",
        "../loras",
        "../../user_data",
    ),
    *(f"{'../' * times}outside" for times in range(3, 13)),
    *(f"{'story/../' * times}../../outside" for times in range(1, 8)),
    *(f"{chr(92).join(['..'] * times)}\\outside" for times in range(2, 8)),
    *(f"story/{'../' * times}night" for times in range(3, 9)),
    *("....//....//outside", "..././outside", "story/.../outside", "../story", "..//story", "story/../night"),
    *("story/backup/../../night", "story/Backup-2026-11-20/../../night", "book/../../presets/mine.json"),
)
ABSOLUTE = (
    *(f"{start}{ABSENT}" for start in ("/", "//", "///", "\\", "\\\\", "/./", "/../", "file:///", "file://")),
    *(f"//{ABSENT}/share", f"\\\\{ABSENT}\\share", f"\\\\{ABSENT}\\share\\story", f"//{ABSENT}/share/story"),
    *(f"\\\\?\\Q:\\{ABSENT}", f"\\\\.\\Q:\\{ABSENT}", f"\\\\?\\UNC\\{ABSENT}\\share", f"\\\\.\\pipe\\{ABSENT}"),
    *("\\\\?\\GLOBALROOT\\Device\\Null", f"\\??\\Q:\\{ABSENT}", f"http://{ABSENT}.invalid/story"),
)
DRIVES = (
    *(f"{letter}:" for letter in "QRTUVWXYq"),
    *(f"{letter}:\\{ABSENT}" for letter in "QRTUVWXYq"),
    *("Q:story", "Q:..\\story", "Q:/story", "Q:.", "Q:\\", "Q:/", "qq:story", "1:story", ":story", "story:"),
    *("story:stream", "story::$DATA", "story:$DATA", "story:Zone.Identifier", "story::$INDEX_ALLOCATION"),
    *("a:b:c", "Q:con", "..\\story:stream"),
)
DEVICES = (
    *("con", "CON", "Con", "prn", "aux", "nul", "NUL", "NUL.txt", "nul.json", "con.safetensors", "aux.tar.gz"),
    *("conin$", "CONOUT$", "con .txt", "nul .json", "prn.", "aux "),
    *(f"com{digit}" for digit in "0123456789\u00b9\u00b2\u00b3"),
    *(f"LPT{digit}.txt" for digit in "0123456789\u00b9\u00b2\u00b3"),
)
CONTROL = (
    *(f"story{chr(code)}" for code in (*range(1, 0x20), *range(0x7F, 0xA0))),
    *(
        "story\x00",
        "\x00",
        "story\x00.json",
        "story\x00/../night",
        "\x00/../outside",
        "story\x1b[2J",
        "\x1b]0;a\x07",
    ),
    *("story\r\nX-Header: 1", "a\nb", "\nstory", "\tstory", "story\n\n\n", "\x1b[1A\x1b[2Kstory"),
)
BROKEN_TEXT = (
    *("\ud800", "\udc00", "\udcff", "story\udcff", "\ud800story", "sto\udce9ry", "\udfff\ud800"),
    *("\udcc3\udca9",),
    *("\udc80" * 3, "story/\udcff", "\udcff/story", "story\\\udcff"),
)
ENDINGS = (
    "story.",
    "story ",
    "story. ",
    "story .",
    "story..",
    "story...",
    "story  ",
    "story. .",
    "a. . .",
    "mine.json.",
)
LONG = (
    *(
        "x" * 256,
        "x" * 257,
        "x" * 1000,
        "x" * 4096,
        "x" * 100_000,
        "\u00fc" * 128,
        "\U0001f600" * 64,
        "\u7269" * 86,
    ),
    *("a/" * 500 + "b", "../" * 500 + ABSENT, "a" * 250 + ".jsonx", "." * 256, " " * 256, "story" + " " * 300),
)
OUR_OWN = (
    *("../training/queue.json.lock", "../training/form.json.part", "../loras/trash-np/2026/lora/story"),
    *(
        "../training/queue.1.lock",
        "../training/story.lock",
        "../training/prepared/a.arrow",
        "../logs/evaluations.csv",
    ),
    *(".making-x/../../outside", "./.part", "../.part", "../loras/.part", "../models/.part", "backup/../.part"),
)
LOOK_ALIKES = ("story\u2044..\\outside", "\u202e../outside", "\u2025/../../outside", "\uff0e\uff0e/../night")
VALUES = (
    "",
    " ",
    *TRAVERSALS,
    *ABSOLUTE,
    *DRIVES,
    *DEVICES,
    *CONTROL,
    *BROKEN_TEXT,
    *ENDINGS,
    *LONG,
    *OUR_OWN,
    *LOOK_ALIKES,
)
COUNT = len(VALUES) + 2

NOT_ELSEWHERE = (
    *(
        "\u202estory",
        "story\u2066",
        "\u200bstory",
        "\ufeffstory",
        "st\u043ery",
        "s\u0442ory",
        "\uff0e\uff0e",
        "\u2025",
    ),
    *(
        "\u2024\u2024",
        "\uff0e\uff0e\uff0foutside",
        "..\u2215outside",
        "..\u2044outside",
        "\u29f5outside",
        "%2e%2e%2foutside",
    ),
    *(
        "..%2foutside",
        "%00",
        "story%00",
        "-rf",
        "--help",
        "-",
        "*",
        "?",
        "st*ry",
        "[a-z]",
        "<b>",
        "'; DROP TABLE x",
        "${HOME}",
    ),
    *(
        "story/.part",
        "story/.part/events.jsonl",
        "story/.part/lora",
        ".part/",
        "a/" * 500 + "b",
        f"~/{ABSENT}",
        f"~{ABSENT}",
    ),
    *(
        f"$HOME/{ABSENT}",
        f"%APPDATA%\\{ABSENT}",
        f"$(touch {ABSENT})/x",
        f"`touch {ABSENT}`/x",
        f"|touch {ABSENT}/x",
    ),
    *("{0.__class__}", "{{7*7}}", "%n", "trash-np", "x-np", ".part", ".making-abc", ".story.part"),
    *("queue.json",),
    *(
        "story.lock",
        "form.json.part",
        ".git",
        ".hidden",
        "Backup-2026-11-20",
        "backup",
        "checkpoint-4",
        "run_state.json",
    ),
)
"""Names that a disk may well hold: nothing is wrong in asking for them, and they must not become another place."""


def hostile_values(outside: Path) -> list[str]:
    """All of them: those above, an absolute path, and the link."""
    return [*VALUES, str(outside), LINK]


def some(values: Sequence[str]) -> list[str]:
    """A sample of the values, one of each sort at least; all with TRAINING_PRO_HARDNESS_CASES set."""
    return list(values) if "TRAINING_PRO_HARDNESS_CASES" in os.environ else [*values[:-2:7], *values[-2:]]


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
