"""Which names a LoRA may have: what the webui lists, PEFT loads and every system can store."""

from __future__ import annotations

import re

LONGEST_NAME = 60
_RESERVED = re.compile(r"(?i)^(con|prn|aux|nul|com\d|lpt\d)$")


def name_problem(name: str) -> str:
    """What is wrong with a LoRA's name and what to do, or an empty text."""
    if not name.strip():
        return "is empty. Give the LoRA a name, for example 'my-story'."
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters; at most {LONGEST_NAME} are possible. Choose a shorter one."
    if ".." in name or re.search(r"[/\\]|^[A-Za-z]:", name):
        return f"{name!r} is a path. Give a plain name; the LoRA is saved in the LoRA folder under it."
    if "." in name:
        return f"{name!r} has a dot, and a LoRA with a dot in its name cannot be put on. Use - or _ instead."
    if found := re.search(r'[<>:"|?*\x00-\x1f]', name):
        return f"{name!r} has the character {found[0]!r}, which not every system can store. Leave it out."
    if name != name.strip() or _RESERVED.match(name):
        return f"{name!r} is a name that Windows cannot store. Choose another one."
    if name.endswith("-np"):
        return f"{name!r} ends in -np, and the webui hides such folders. Choose another ending."
    if name.startswith("-"):
        return f"{name!r} begins with -, which a command line takes for a flag. Choose another beginning."
    return ""


def shard_size_problem(text: str) -> str:
    """What is wrong with the size of a file, or nothing."""
    if re.fullmatch(r"[1-9][0-9]*(KB|MB|GB)", text):
        return ""
    return f"{text!r} is no size. Write it as 500MB or 5GB."
