"""Presets: those that come with Training PRO, those of the user, and the last state of the form."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import SettingsError
from ..core.files import check_record, safe_paths, usable_entries, write_json
from . import files, other_names
from .definitions import SETTINGS
from .name_rules import name_problem
from .parsing import parse_keys

GOALS_FILE = Path(__file__).resolve().parent.parent / "presets" / "goals.json"
TABLES = ("optimizers", "loras")
OWN_KIND, PRESET_FILE = "own", "a preset file"
KINDS = ("goals", *TABLES, OWN_KIND)
# What a box of each kind of setting may hold.
TEXTS, NUMBER = str | list[str] | None, str | float | None
BOX_TYPES: Mapping[str, Any] = {
    **{"text": str, "texts": TEXTS, "names": TEXTS, "choice": TEXTS, "yes/no": bool},
    **{"whole": NUMBER, "number": NUMBER},
}
# Keys that a preset never sets, because they say what a run is about.
EXCLUDED_KEYS = ("name", "data", "eval_data", "exam", "if_exists")
DEFAULT_VALUES = {key: setting.default for key, setting in SETTINGS.items() if key not in EXCLUDED_KEYS}


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a form takes from the settings of a run: not the answer that was for its LoRA."""
    about = {key: SETTINGS[key].default for key in ("eval_data", "exam")}
    return {**DEFAULT_VALUES, **about, **values, "if_exists": SETTINGS["if_exists"].default}


@dataclass(frozen=True)
class Preset:
    """Named values with a description, and what they rest on: a measurement, a paper, or another program."""

    name: str
    label: str
    words: str
    values: Mapping[str, Any]
    source: str = ""
    notes: tuple[str, ...] = ()  # on how its file was read

    @property
    def description(self) -> str:
        source = f"Source: {self.source}." if self.source else ""
        return " ".join(filter(None, (self.words, source, *self.notes)))


# The form of the demo, with which its small model learns the story within minutes: a high learning rate (the best
# one is nearer 1e-3 than 2e-4), short blocks, and 36 steps. After 60 steps it had forgotten general text.
DEMO: Mapping[str, object] = {
    "name": "first-look",
    "data": ["story.txt"],
    "cutoff": "128",
    "batch_size": "4",
    "epochs": "12",
    "learning_rate": "0.001",
    "schedule": "constant",
    "rank": "16",
    "alpha": "16",
    "save_each_epoch": False,
    # The run itself shows the replies: without the LoRA before the first step, then after each third of the run.
    "sample_prompts": "Old Maren Tull ran the ferry at Low Water, and she ran it by",
    "sample_every": "12",
    "sample_length": "60",
    "sample_temperature": "0",
}


def goals() -> list[Preset]:
    """Return the goals: the presets that come with Training PRO."""
    return load_table("goals", GOALS_FILE.parent)


def load_table(kind: str, folder: Path) -> list[Preset]:
    """Return the rows of a table ('optimizers', 'loras'): ours, and those that the user added or replaced."""
    rows = dict[str, Preset]()
    for path in (GOALS_FILE.with_name(f"{kind}.json"), folder / f"{kind}.json"):
        for name, row in files.read_object(path, PRESET_FILE).items() if path.is_file() else ():
            values, place = row.get("values") if isinstance(row, dict) else None, f"{path}, {name!r}: "
            if not isinstance(values, dict):
                example = '{"values": {"rank": 32}}'
                raise SettingsError([f"{place}the values are missing. Add them like this: {example}."])
            texts = {key: str(row.get(key, "")) for key in ("label", "words", "source")}
            texts["words"] = texts["words"] or "A preset from your own JSON file."
            rows[name] = _make_preset(values, place, name, **texts)
    return list(rows.values())


def _make_preset(
    values: Mapping[str, Any], place: str, name: str, words: str, label: str = "", source: str = ""
) -> Preset:
    """Make a preset of the values in a file, also of an older program; refuse unknown ones."""
    loaded = files.convert_values(values, place)
    ours = {key: value for key, value in loaded.values.items() if key not in EXCLUDED_KEYS}
    try:
        parse_keys(ours)
    except SettingsError as error:
        raise SettingsError([f"{place}{problem}" for problem in error.problems]) from None
    notes = loaded.notes
    left_out = loaded.values.keys() - ours.keys()
    if excluded := sorted(key for key in left_out if loaded.values[key] not in (SETTINGS[key].default, [])):
        notes += (f"{place}a preset does not set {', '.join(excluded)}, so this part of the file was ignored.",)
    return Preset(name, label or name, words, ours, source, notes)


def own_names(folder: Path) -> list[str]:
    """Return the names of the user's own presets, sorted; whether one can be used shows when it is read."""
    paths = (path for path in sorted(usable_entries(folder)) if path.suffix == ".json")
    return [path.stem for path in paths if path.stem not in TABLES and not safe_paths.leads_out(path)]


def _read_preset(path: Path) -> Preset:
    """Read a preset file: ours, or a settings file, also of an older program."""
    return _make_preset(files.read_object(path, PRESET_FILE), f"{path.name}: ", path.stem, "Your own preset.")


def save(folder: Path, name: str, values: Mapping[str, Any]) -> None:
    """Save the values under a name; raise SettingsError if it cannot be a file name or is one of ours."""
    if problem := name_problem(name, "preset"):
        raise SettingsError([f"Preset: {problem}"])
    # By casefold, because the file systems of Windows and macOS ignore case.
    tables = (load_table(kind, GOALS_FILE.parent) for kind in ("goals", *TABLES))
    if name.casefold() in (*TABLES, *(row.name for table in tables for row in table)):
        raise SettingsError([f"Preset: {name!r} is the name of a built-in preset. Choose another name."])
    kept = {key: value for key, value in values.items() if key in SETTINGS and key not in EXCLUDED_KEYS}
    parse_keys(kept)
    write_json(_file(folder, name), kept)


def delete(folder: Path, name: str) -> None:
    if name_problem(name, "preset") or name.casefold() in TABLES or not _file(folder, name).is_file():
        raise SettingsError([f"Preset: you have no preset called {name!r}."])
    _file(folder, name).unlink()


def _file(folder: Path, name: str) -> Path:
    return safe_paths.child(folder, f"{name}.json", "Preset", refusal=lambda text: SettingsError([text]))


def find_preset(name: str, folder: Path) -> Preset:
    """Return a preset by its name, the user's own first, or by the path of its file."""
    if name in own_names(folder):
        return _read_preset(folder / f"{name}.json")
    presets, broken = {preset.name: preset for preset in goals()}, list[str]()
    for kind in TABLES:
        try:
            presets |= {preset.name: preset for preset in load_table(kind, folder)}
        except SettingsError as error:  # does not matter for a preset of another kind
            broken += error.problems
    if name in presets:
        return presets[name]
    if _is_file(name):
        return _read_preset(Path(name))
    ours = [preset for preset in other_names.our_presets(name) if preset in presets]
    hint = f"Available presets: {', '.join([*presets, *own_names(folder)])}."
    if ours:
        hint = f"In Training PRO, it is called {ours[0]!r}."
    if len(ours) > 1:
        hint = f"Choose the preset for the size of your model: {', '.join(ours)}."
    raise SettingsError(broken or [f"Unknown preset {name!r}. {hint}"])


def _is_file(path: str) -> bool:
    with suppress(OSError, ValueError):  # too long, or with characters that no path has
        return Path(path).is_file()
    return False


def find_preset_of_kind(kind: str, name: str, folder: Path) -> Preset:
    """Return the preset of this kind and name; presets of other kinds may have the same name."""
    if kind == OWN_KIND and name in own_names(folder):
        return _read_preset(folder / f"{name}.json")
    listed = [] if kind == OWN_KIND else goals() if kind == "goals" else load_table(kind, folder)
    if found := next((preset for preset in listed if preset.name == name), None):
        return found
    raise SettingsError([f"The preset {name!r} no longer exists. Reload the page."])


def find_presets(words: Sequence[str], folder: Path) -> list[Preset]:
    """Return presets by names or paths, given one per word or separated by commas."""
    own = own_names(folder)
    # A name or a path may contain a comma itself.
    groups = [[word] if word in own or _is_file(word) else word.split(",") for word in words]
    return [find_preset(name.strip(), folder) for names in groups for name in names if name.strip()]


def override_note(chosen: Sequence[Preset], over: Collection[str]) -> str:
    """Say in one line where a preset overrides an earlier one, without equal values and the keys in `over`."""
    values, overrides = dict[str, Any](), list[str]()
    for preset in chosen:
        common = {key: preset.values[key] for key in preset.values.keys() & values.keys() - set(over)}
        overrides += [f"{change} ({preset.name})" for change in sorted(describe_changes(values, common))]
        values |= preset.values
    several = "Several presets change the same settings, so the last preset applies"
    return f"{several}: {'; '.join(overrides)}." if overrides else ""


def load_form(path: Path) -> dict[str, Any]:
    """Return the saved state of the form, without unknown keys and damaged values."""
    shown = dict[str, Any]()
    with suppress(SettingsError):
        for key, value in files.read_object(path).items():
            with suppress(KeyError, ValueError):  # the form is saved as typed: its box can show an invalid value
                check_record(value, BOX_TYPES[SETTINGS[key].kind], key, [])
                shown[key] = value
    return shown


def save_form(path: Path, values: Mapping[str, Any]) -> None:
    """Save the state of the form for the next time the page is opened."""
    write_json(path, dict(values))


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Describe what a preset changed: 'LoRA Rank 32 → 64'."""
    return [
        f"{SETTINGS[key].label} {format_value(key, before.get(key))} → {format_value(key, after[key])}"
        for key in differing_keys(before, after)
    ]


def differing_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys of the settings that differ; an invalid value differs from any other."""
    equal = set()
    for key, setting in SETTINGS.items():
        with suppress(ValueError):
            if key in after and setting.read(before.get(key)) == setting.read(after[key]):
                equal.add(key)
    return [key for key in after if key in SETTINGS and key not in equal]


def format_value(key: str, value: object) -> str:
    """Return a value in a few words."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, str) and value in SETTINGS[key].choices:
        return SETTINGS[key].choices[value].partition(":")[0]
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
