"""The settings as flags of a command line."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from .definitions import SECTIONS, SETTINGS
from .reference import default, takes, title
from .setting import Setting


def add_to(parser: argparse.ArgumentParser, sections: Collection[str] = tuple(SECTIONS)) -> None:
    """One flag a setting, by section. What they are given stays text, and only what was given is there."""
    for section in sections:
        add_some(parser, title(section), [key for key, setting in SETTINGS.items() if setting.section == section])


def add_some(parser: argparse.ArgumentParser, words: str, keys: Sequence[str]) -> None:
    """A flag for each of these, under a title."""
    group = parser.add_argument_group(words)
    for setting in map(SETTINGS.__getitem__, keys):
        group.add_argument(setting.flag, dest=setting.key, **_kept(_several(setting)), **_shown(setting))


def given(namespace: argparse.Namespace) -> dict[str, object]:
    """The settings among the parsed flags: only those that were given, as text."""
    return {key: _single(SETTINGS[key], value) for key, value in vars(namespace).items() if key in SETTINGS}


_METAVARS = {"names": "NAME", "texts": "TEXT"}


def _several(setting: Setting) -> bool:
    return setting.kind in ("names", "texts") or setting.free


def _kept(several: bool) -> dict[str, Any]:
    return {"default": argparse.SUPPRESS, **({"nargs": "+", "action": "extend"} if several else {})}


def _shown(setting: Setting) -> dict[str, Any]:
    usual = f"; default: {default(setting)}" if default(setting) else ""
    help = f"{setting.help} ({takes(setting)}{usual})".replace("%", "%%")
    return {"metavar": _METAVARS.get(setting.kind, "VALUE"), "help": help}


def _single(setting: Setting, value: Any) -> object:
    """One word for a setting that takes a choice or a list of names is the choice."""
    return value[0] if setting.kind == "choice" and isinstance(value, list) and len(value) == 1 else value


def as_words(values: Mapping[str, Any]) -> Iterator[str]:
    """What differs from the defaults, as it would be typed: `add_to` and `given` read the same out of it."""
    for setting in SETTINGS.values():
        value = values[setting.key]
        if value != (list(setting.default) if isinstance(setting.default, tuple) else setting.default):
            yield from _typed(setting.flag, [_word(v) for v in (value if isinstance(value, list) else [value])])


def _typed(flag: str, words: list[str]) -> Iterator[str]:
    """What begins with a dash would be taken for another flag, and PowerShell leaves an empty word out."""
    if any(not word or word.startswith("-") for word in words):
        yield from (f"{flag}={word}" for word in words)
    else:
        yield from (flag, *words)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
