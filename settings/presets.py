"""Presets: goals that come with Training PRO, the user's own, and the form as it was left."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..core.errors import SettingsError
from ..core.files import patiently, safe_paths, write_json
from .definitions import SETTINGS
from .name_rules import name_problem

GOALS = Path(__file__).resolve().parent.parent / "presets" / "goals.json"
TABLES = ("optimizers", "loras")
OWN = "own"
KINDS = ("goals", *TABLES, OWN)
UNTOUCHED = ("name", "data", "if_exists")
"""What a run is about is never a matter of a preset."""


@dataclass(frozen=True)
class Preset:
    """Values under a name, with what they are for."""

    name: str
    label: str
    words: str
    values: Mapping[str, Any]


def goals() -> list[Preset]:
    """The presets that come with Training PRO."""
    table = json.loads(GOALS.read_text(encoding="utf-8"))
    return [Preset(name, row["label"], row["words"], row["values"]) for name, row in table.items()]


def table(kind: str, folder: Path) -> list[Preset]:
    """The rows of a table ('optimizers', 'loras'): ours, and those that a file of the user's adds or replaces."""
    rows = _rows(GOALS.with_name(f"{kind}.json"))
    if (added := folder / f"{kind}.json").is_file():
        rows |= _rows(added)
    return list(rows.values())


def _rows(path: Path) -> dict[str, Preset]:
    """SettingsError names the file, the row and what is wrong with it."""
    found = _values(path)
    if found is None:
        raise SettingsError([f"{path} is no table of presets: it has to be JSON, a name and values for each row."])
    return {name: _row(path, name, row) for name, row in found.items()}


def _row(path: Path, name: str, row: Any) -> Preset:
    values = row.get("values") if isinstance(row, dict) else None
    if not isinstance(values, dict):
        raise SettingsError([f'{path}, {name!r}: its values are missing. Write {{"values": {{"rank": 32}}}}.'])
    if wrong := [f"{path}, {name!r}: {problem}" for key in values for problem in _problems(key, values[key])]:
        raise SettingsError(wrong)
    return Preset(name, str(row.get("label", name)), str(row.get("words", "A row of your own.")), values)


def _problems(key: str, value: object) -> list[str]:
    if key in UNTOUCHED:
        return [f"{key!r} is never a matter of a preset."]
    if key not in SETTINGS:
        return [f"there is no setting {key!r}."]
    try:
        SETTINGS[key].read(value)
    except ValueError as error:
        return [str(error)]
    return []


def own(folder: Path) -> list[Preset]:
    """The user's own, in the order of their names; files that are no presets are passed over."""
    there = (path for path in sorted(folder.glob("*.json")) if not safe_paths.leads_out(path))
    found = (_read(path) for path in there if path.stem not in TABLES)
    return [preset for preset in found if preset is not None]


def _read(path: Path) -> Preset | None:
    values = _values(path)
    return None if values is None else Preset(path.stem, path.stem, "A preset of your own.", _touching(values))


def _values(path: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(patiently(path.read_bytes))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def save(folder: Path, name: str, values: Mapping[str, Any]) -> None:
    """Keep the values under a name; a SettingsError where the name cannot be a file's, or is one of ours."""
    if problem := name_problem(name, "preset"):
        raise SettingsError([f"Preset: its name {problem}"])
    if name.casefold() in _ours():
        raise SettingsError([f"Preset: {name!r} is a name that comes with Training PRO. Choose another one."])
    write_json(_file(folder, name), _touching(values))


def _ours() -> set[str]:
    """The names of the presets that come with Training PRO, and of the files of tables."""
    ours = [goals(), *(table(kind, GOALS.parent) for kind in TABLES)]
    return {*TABLES, *(preset.name for preset in chain.from_iterable(ours))}


def delete(folder: Path, name: str) -> None:
    if name_problem(name, "preset") or name.casefold() in TABLES or not _file(folder, name).is_file():
        raise SettingsError([f"Preset: there is no preset of your own called {name!r}."])
    _file(folder, name).unlink()


def _file(folder: Path, name: str) -> Path:
    return safe_paths.child(folder, f"{name}.json", "Preset", refusal=lambda text: SettingsError([text]))


def named(name: str, folder: Path) -> Preset:
    """A preset of any kind by its name, the user's own first; SettingsError lists those there are."""
    known, broken = dict[str, Preset](), list[str]()
    for kind in KINDS:
        try:
            known |= {p.name: p for p in of_kind(kind, folder)}
        except SettingsError as error:  # of no matter to a preset that stands elsewhere
            broken += error.problems
    if name not in known:
        raise SettingsError(broken or [f"There is no preset {name!r}. There are: {', '.join(known)}."])
    return known[name]


def chosen(kind: str, name: str, folder: Path) -> Preset:
    """That of its kind, whatever others are called."""
    found = {p.name: p for p in of_kind(kind, folder)}
    if name not in found:
        raise SettingsError([f"The preset {name!r} is not there any more. Open the page anew."])
    return found[name]


def of_kind(kind: str, folder: Path) -> list[Preset]:
    """All goals, rows of one of the tables, or the user's own."""
    if kind == "goals":
        return goals()
    return own(folder) if kind == OWN else table(kind, folder)


def several(asked: Sequence[str], folder: Path) -> list[Preset]:
    """By names that are words of their own, or have commas between them."""
    words = [[word] if (folder / f"{word}.json").is_file() else word.split(",") for word in asked]
    return [named(name.strip(), folder) for names in words for name in names if name.strip()]


def overruled(chosen: Sequence[Preset], over: Collection[str]) -> str:
    """Where a preset wins over one before it, in a line; what both say alike, and keys in `over`, are left out."""
    values, changed = dict[str, Any](), list[str]()
    for preset in chosen:
        both = {key: preset.values[key] for key in preset.values.keys() & values.keys() - set(over)}
        changed += [f"{words} ({preset.name})" for words in sorted(changes(values, both))]
        values |= preset.values
    return f"Presets that set the same, the later one wins: {'; '.join(changed)}." if changed else ""


def left_form(path: Path) -> dict[str, Any]:
    """The form as it was left, as far as this version knows its keys."""
    return {k: v for k, v in (_values(path) or {}).items() if k in SETTINGS}


def leave_form(path: Path, values: Mapping[str, Any]) -> None:
    """Remember the form for the next time the page is opened."""
    write_json(path, dict(values))


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What a preset changed, in words: 'LoRA Rank 32 → 64'."""
    return [
        f"{SETTINGS[key].label} {shown(key, before.get(key))} → {shown(key, after[key])}"
        for key in apart(before, after)
    ]


def apart(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The settings in which the two differ."""
    return [key for key, value in after.items() if key in SETTINGS and not _same(key, before.get(key), value)]


def _touching(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k in SETTINGS and k not in UNTOUCHED}


def _same(key: str, one: object, other: object) -> bool:
    try:
        return bool(SETTINGS[key].read(one) == SETTINGS[key].read(other))
    except ValueError:
        return False


def shown(key: str, value: object) -> str:
    """A value in few words."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, str) and value in SETTINGS[key].choices:
        return SETTINGS[key].choices[value].partition(":")[0]
    return f"{value:g}" if isinstance(value, float) else str(value)
