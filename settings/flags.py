"""Command-line flags for the settings."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from .definitions import SECTIONS, SETTINGS
from .reference import accepted_values, format_default, section_title
from .setting import Setting, read_line_breaks, show_line_breaks


def add_flags(parser: argparse.ArgumentParser, sections: Collection[str] = tuple(SECTIONS)) -> None:
    """Add one flag per setting, grouped by section. Values stay text; flags not given leave no attribute."""
    for section in sections:
        add_flag_group(
            parser,
            section_title(section),
            [key for key, setting in SETTINGS.items() if setting.section == section],
        )


def add_flag_group(parser: argparse.ArgumentParser, words: str, keys: Sequence[str]) -> None:
    """Add flags for these keys as one titled group."""
    group = parser.add_argument_group(words)
    for setting in map(SETTINGS.__getitem__, keys):
        default = f"; default: {format_default(setting)}" if format_default(setting) else ""
        several: dict[str, Any] = {"nargs": "+", "action": "extend"}
        group.add_argument(
            setting.flag,
            dest=setting.key,
            default=argparse.SUPPRESS,
            metavar=_METAVARS.get(setting.kind, "VALUE"),
            help=f"{setting.help} ({accepted_values(setting)}{default})".replace("%", "%%"),
            **(several if setting.kind in ("names", "texts") or setting.free else {}),
        )


def given_settings(namespace: argparse.Namespace) -> dict[str, object]:
    """Return the settings that were given among the parsed flags, as text."""
    given: dict[str, object] = {key: value for key, value in vars(namespace).items() if key in SETTINGS}
    for key, value in given.items():
        if SETTINGS[key].kind == "texts" and isinstance(value, list):
            given[key] = [read_line_breaks(text) for text in value]
        elif SETTINGS[key].kind == "choice" and isinstance(value, list) and len(value) == 1:
            given[key] = value[0]  # a choice, or a list of one name
    return given


_METAVARS = {"names": "NAME", "texts": "TEXT"}


def as_arguments(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments for all values that differ from the defaults; parsing them gives the same values."""
    for setting in SETTINGS.values():
        value = values[setting.key]
        if value != (list(setting.default) if isinstance(setting.default, tuple) else setting.default):
            words = [_format_word(setting, word) for word in (value if isinstance(value, list) else [value])]
            if any(not word or word.startswith("-") for word in words):
                # A word with a leading dash would be taken for another flag, and PowerShell drops an empty one.
                yield from (f"{setting.flag}={word}" for word in words)
            else:
                yield from (setting.flag, *words)


def _format_word(setting: Setting, value: object) -> str:
    if setting.kind == "texts":
        return show_line_breaks(str(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
