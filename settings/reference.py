"""The reference of all settings, for docs/settings.md and `script.py settings`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .definitions import SECTIONS, SETTINGS
from .setting import Setting

_INTRODUCTION = """# Settings

Each setting as it stands in a settings file, and as a flag of the command line: `--` and its key, with `-` for
`_`. This page is made from the settings themselves by `python3 script.py settings`.
"""
_ANYTHING: dict[str, str] = {
    "text": "a text",
    "texts": "texts",
    "names": "names",
    "whole": "a whole number",
    "number": "a number",
    "yes/no": "true, false",
}


def markdown() -> str:
    """The reference as a page: one table a section."""
    return "\n".join([_INTRODUCTION, *(_section(name) for name in SECTIONS)])


def as_json() -> list[dict[str, Any]]:
    """The reference as plain data: bounds or choices stand where a setting has them."""
    return [_plain(setting) for setting in SETTINGS.values()]


def title(section: str) -> str:
    """What a section is about, in words."""
    return (SECTIONS[section].__doc__ or section).strip().rstrip(".")


def takes(setting: Setting) -> str:
    """What a setting takes, in words, also where it has neither bounds nor choices."""
    if setting.kind == "texts":
        return f"{setting.range()} or {_ANYTHING['texts']}"
    return setting.range() or _ANYTHING[setting.kind]


def default(setting: Setting) -> str:
    """A setting's default as one would type it; nothing for an empty one."""
    value = setting.default
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else "" if value == () else str(value)


def _section(name: str) -> str:
    return "\n".join([f"## {title(name)}", "", *_table([s for s in SETTINGS.values() if s.section == name]), ""])


def _table(settings: list[Setting]) -> Iterator[str]:
    yield "| key | label | default | takes | what it does |"
    yield "| --- | --- | --- | --- | --- |"
    for setting in settings:
        usual, help = default(setting), setting.help + _changing(setting)
        cells = (f"`{setting.key}`", setting.label, f"`{usual}`" if usual else "empty", takes(setting), help)
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _changing(setting: Setting) -> str:
    if setting.live:
        return " May be changed while a run goes on."
    return " A run that is gone on with has to have the same." if setting.fixed else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(setting: Setting) -> dict[str, Any]:
    usual = list(setting.default) if isinstance(setting.default, tuple) else setting.default
    bounds = {"minimum": setting.minimum, "maximum": setting.maximum}
    also: dict[str, Any] = {"words": list(setting.words), "choices": list(setting.choices)}
    return {
        "key": setting.key,
        "label": setting.label,
        "section": setting.section,
        "kind": setting.kind,
        "default": usual,
        **{name: bound for name, bound in bounds.items() if bound is not None},
        **{name: values for name, values in also.items() if values},
        "live": setting.live,
        "fixed": setting.fixed,
        "help": setting.help,
    }
