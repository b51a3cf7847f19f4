"""The settings on the command line: their flags, and their reference (docs/settings.md, `script.py settings`)."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..core.version import launch_command
from ..train_utils import align_columns
from .definitions import SECTIONS, SETTINGS, section_keys
from .setting import Setting, read_line_breaks, show_line_breaks

_INTRODUCTION = """# Settings

This page lists all settings, with the key of each setting in a settings file. On the command line, the flag of a
setting is `--` followed by its key, with `-` in place of `_`. `python3 script.py settings` generates this page.
"""
_KIND_NAMES: dict[str, str] = {
    "text": "text",
    "texts": "a list of strings",
    "names": "a list of names",
    "whole": "a whole number",
    "number": "a number",
    "yes/no": "true or false",
}
_METAVARS = {"names": "NAME", "texts": "TEXT"}


def add_flags(parser: argparse.ArgumentParser, sections: Collection[str] = tuple(SECTIONS)) -> None:
    """Add one flag per setting, grouped by section."""
    for section in sections:
        add_flag_group(parser, section_title(section), section_keys(section))


def add_flag_group(parser: argparse.ArgumentParser, words: str, keys: Sequence[str]) -> None:
    """Add flags for these keys as one titled group. Values stay text; flags not given leave no attribute."""
    group = parser.add_argument_group(words)
    for setting in map(SETTINGS.__getitem__, keys):
        default = f"; default: {_default(setting)}" if _default(setting) else ""
        several: dict[str, Any] = {"nargs": "+", "action": "extend"}
        group.add_argument(
            setting.flag,
            dest=setting.key,
            # A flag that is not given must not override a preset or a settings file.
            default=argparse.SUPPRESS,
            metavar=_METAVARS.get(setting.kind, "VALUE"),
            # argparse formats the help with %, so a percent sign has to be doubled.
            help=f"{setting.label}: {setting.help} ({_accepted_values(setting)}{default})".replace("%", "%%"),
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


def as_arguments(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments for all values that differ from the defaults; parsing them gives the same values."""
    for setting in SETTINGS.values():
        value = values[setting.key]
        if value == (list(setting.default) if isinstance(setting.default, tuple) else setting.default):
            continue
        words = [str(word) for word in (value if isinstance(value, list) else [value])]
        if setting.kind == "texts":
            words = [show_line_breaks(word) for word in words]
        elif setting.key == "hard_cut":  # read as the same, and a line break ends a command in cmd
            words = [word.replace("\n", "\\n") for word in words]
        elif setting.kind == "yes/no":
            words = [word.lower() for word in words]
        # A word with a leading dash would be taken for another flag, and PowerShell drops an empty one.
        if any(not word or word.startswith("-") for word in words):
            yield from (f"{setting.flag}={word}" for word in words)
        else:
            yield from (setting.flag, *words)


def section_title(section: str) -> str:
    """Return the title of a section: the docstring of its class."""
    return (SECTIONS[section].__doc__ or section).strip().rstrip(".")


def render_markdown() -> str:
    """Return the reference as Markdown, with one table per section."""
    lines = [_INTRODUCTION]
    for section in SECTIONS:
        lines += [f"## {section_title(section)}\n", "| key | label | default | values | description |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for setting in map(SETTINGS.__getitem__, section_keys(section)):
            default = f"`{_default(setting)}`" if _default(setting) else "empty"
            help = setting.help + _change_note(setting)
            cells = (f"`{setting.key}`", setting.label, default, _accepted_values(setting), help)
            row = " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
            lines.append(f"| {row} |")
        lines.append("")
    return "\n".join(lines)


def render_lines() -> str:
    """Return the reference for a terminal: a line for each setting, with the start of its help."""
    rows = [(s.key, _default(s) or "-", s.help.partition(". ")[0].rstrip(".")) for s in SETTINGS.values()]
    width = shutil.get_terminal_size().columns
    lines = dict(zip(SETTINGS, align_columns(rows), strict=True))
    parts = [[section_title(n), *(f"  {lines[k]}"[:width] for k in section_keys(n)), ""] for n in SECTIONS]
    full = f"To see one in full: {launch_command()} settings KEY"
    return "\n".join([*(line for part in parts for line in part), full])


def describe(setting: Setting) -> str:
    """Return a setting in full, as a few lines."""
    help = textwrap.fill(setting.help + _change_note(setting), min(100, shutil.get_terminal_size().columns))
    values = f"{setting.flag}: {_accepted_values(setting)}\nDefault: {_default(setting) or 'empty'}"
    return f"{setting.key} ({setting.label})\n{values}\n{help}"


def as_json(settings: Iterable[Setting] = tuple(SETTINGS.values())) -> list[dict[str, Any]]:
    """Return the reference as plain data; bounds, words and choices only for settings that have them."""
    entries = []
    for setting in settings:
        entry = {
            "key": setting.key,
            "label": setting.label,
            "section": setting.section,
            "kind": setting.kind,
            "default": list(setting.default) if isinstance(setting.default, tuple) else setting.default,
        }
        if setting.bounds:
            entry |= {"minimum": setting.bounds[0], "maximum": setting.bounds[1]}
        if setting.words:
            entry["words"] = list(setting.words)
        if setting.choices:
            entry["choices"] = list(setting.choices)
        entries.append({**entry, "live": setting.live, "fixed": setting.fixed, "help": setting.help})
    return entries


def _accepted_values(setting: Setting) -> str:
    """Describe the values that a setting accepts, including one without bounds or choices."""
    if setting.kind == "texts":
        return f"{setting.range()} or {_KIND_NAMES['texts']}"
    return setting.range() or _KIND_NAMES[setting.kind]


def _default(setting: Setting) -> str:
    """Return the default of a setting as typed on a command line, or an empty string."""
    value = setting.default
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else "" if value == () else str(value)


def _change_note(setting: Setting) -> str:
    if setting.live:
        return " You can change this during a run."
    return " You can't change this when you resume a run." if setting.fixed else ""
