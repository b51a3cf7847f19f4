"""Keys and choices that files may name and this version does not have; this list shrinks to nothing."""

from __future__ import annotations

from collections.abc import Mapping

KEYS: frozenset[str] = frozenset({})
CHOICES: Mapping[str, tuple[str, ...]] = {}
LISTS: frozenset[str] = frozenset()


def refusal(key: str, value: object) -> str:
    """One sentence that names what this version does not have, or an empty text."""
    if key in KEYS:
        return f"'{key}' is not in this version of Training PRO. Leave it out."
    if value in CHOICES.get(key, ()) or (key in LISTS and isinstance(value, (list, tuple))):
        return f"{key} = {value!r} is not in this version of Training PRO. Choose another value."
    return ""
