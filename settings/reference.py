"""Reference of all settings, for docs/settings.md and `script.py settings`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from ..core.version import launch_command
from ..train_utils import align_columns
from .definitions import SECTIONS, SETTINGS, section_keys
from .setting import Setting

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


def render_markdown() -> str:
    """Return the reference as Markdown, with one table per section."""
    return "\n".join([_INTRODUCTION, *(line for name in SECTIONS for line in _section(name))])


def render_lines() -> str:
    """Return the reference for a terminal: a line for each setting, with the start of its help."""
    rows = [(s.key, format_default(s) or "-", s.help.partition(". ")[0].rstrip(".")) for s in SETTINGS.values()]
    width = shutil.get_terminal_size().columns
    lines = dict(zip(SETTINGS, align_columns(rows), strict=True))
    parts = [[section_title(n), *(f"  {lines[k]}"[:width] for k in section_keys(n)), ""] for n in SECTIONS]
    full = f"To see one in full: {launch_command()} settings KEY"
    return "\n".join([*(line for part in parts for line in part), full])


def describe(setting: Setting) -> str:
    """Return a setting in full, as a few lines."""
    help = textwrap.fill(setting.help + _change_note(setting), min(100, shutil.get_terminal_size().columns))
    values = f"{setting.flag}: {accepted_values(setting)}\nDefault: {format_default(setting) or 'empty'}"
    return f"{setting.key} ({setting.label})\n{values}\n{help}"


def as_json(settings: Iterable[Setting] = tuple(SETTINGS.values())) -> list[dict[str, Any]]:
    """Return the reference as plain data; bounds and choices only for settings that have them."""
    return [_as_dict(setting) for setting in settings]


def section_title(section: str) -> str:
    """Return the title of a section: the docstring of its class."""
    return (SECTIONS[section].__doc__ or section).strip().rstrip(".")


def accepted_values(setting: Setting) -> str:
    """Describe the values that a setting accepts, including one without bounds or choices."""
    if setting.kind == "texts":
        return f"{setting.range()} or {_KIND_NAMES['texts']}"
    return setting.range() or _KIND_NAMES[setting.kind]


def format_default(setting: Setting) -> str:
    """Return the default of a setting as typed on a command line, or an empty string."""
    value = setting.default
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else "" if value == () else str(value)


def _section(name: str) -> Iterator[str]:
    yield f"## {section_title(name)}\n"
    yield "| key | label | default | values | description |"
    yield "| --- | --- | --- | --- | --- |"
    for setting in (setting for setting in SETTINGS.values() if setting.section == name):
        default = f"`{format_default(setting)}`" if format_default(setting) else "empty"
        help = setting.help + _change_note(setting)
        cells = (f"`{setting.key}`", setting.label, default, accepted_values(setting), help)
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"
    yield ""


def _change_note(setting: Setting) -> str:
    if setting.live:
        return " You can change this during a run."
    return " You can't change this when you resume a run." if setting.fixed else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _as_dict(setting: Setting) -> dict[str, Any]:
    default_value = list(setting.default) if isinstance(setting.default, tuple) else setting.default
    lists: dict[str, Any] = {"words": list(setting.words), "choices": list(setting.choices)}
    return {
        "key": setting.key,
        "label": setting.label,
        "section": setting.section,
        "kind": setting.kind,
        "default": default_value,
        **dict(zip(("minimum", "maximum"), setting.bounds or (), strict=False)),
        **{name: values for name, values in lists.items() if values},
        "live": setting.live,
        "fixed": setting.fixed,
        "help": setting.help,
    }
