"""Names of settings in other programs and in the words of users, for the search field and for refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .definitions import SETTINGS

TABLES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("other_names.json").read_text(encoding="utf-8")
)
SPLIT_RATIO = re.compile(r"(\d*\.?\d+)\s*,\s*(\d*\.?\d+)")
WORD = re.compile(r"[^\W_]+")
MIN_WORD = 3  # shorter words do not count where only some of a query are found


@dataclass(frozen=True)
class Named:
    """A setting or a button of the page, with its label and its names elsewhere by program."""

    key: str
    label: str
    names: Mapping[str, Sequence[str]]
    help: str = ""


@cache
def load_names() -> tuple[Named, ...]:
    """Everything that has a name: the settings in the order of their declaration, then buttons."""
    settings = [
        Named(key, s.label, TABLES["settings"].get(key, {}), f"{s.help} {' '.join(map(str, s.choices))}")
        for key, s in SETTINGS.items()
    ]
    buttons = [
        Named(key, names["label"], {of: words for of, words in names.items() if of != "label"})
        for key, names in TABLES["buttons"].items()
    ]
    return (*settings, *buttons)


def find_settings(query: str, others: Sequence[Named] = (), limit: int = 8) -> list[Named]:
    """What a query means, also among `others`: the best match first, where nothing has all words what has most."""
    words, candidates = _words(query), [*load_names(), *others]
    if not words:
        return []
    whole, partly = [], []
    for named in candidates:
        elsewhere = [name for names in named.names.values() for name in names]
        names = [_words(name) for name in (named.key, named.label, *elsewhere)]
        all_words = [word for name in names for word in name]
        partly.append(sum(_has_all(all_words, [word]) for word in words if len(word) >= MIN_WORD))
        if words in names:
            whole.append(4)
        elif any(_has_all(name, words) for name in names):
            whole.append(3)
        else:
            whole.append(2 if _has_all(all_words, words) else int(_has_all(_words(named.help), words)))
    points = whole if any(whole) else partly
    # Python's sort is stable, so equally good matches stay in the order of the form.
    best = sorted(zip(points, candidates, strict=True), key=lambda scored: -scored[0])
    return [named for point, named in best[:limit] if point]


def _words(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]


def _has_all(candidates: Sequence[str], words: Sequence[str]) -> bool:
    """Whether each word is the start of a candidate."""
    return all(any(candidate.startswith(word) for candidate in candidates) for word in words)


def our_value(key: str, value: object) -> str:
    """Our value for one that another program has for a key; empty if there is none or it is ours."""
    if not isinstance(value, str | int) or value in SETTINGS[key].choices:
        return ""
    return str(TABLES["our_values"].get(key, {}).get(str(value).strip().casefold(), ""))


def foreign_value_hint(key: str, value: object) -> str:
    """What to enter instead of a value that another program has for a key; empty for other values."""
    if hint := preset_hint(value):
        return hint
    if not isinstance(value, str | int) or value in SETTINGS[key].choices:
        return ""
    # A switch of another program may be true in JSON and the word "true" on a command line.
    theirs = str(value).strip().casefold()
    if ours := our_value(key, value):
        return f"{value!r} is called {ours!r} in Training PRO."
    if key == "eval_share" and (ratio := SPLIT_RATIO.fullmatch(theirs)):
        training, validation = map(float, ratio.groups())
        if 0 < validation < training:
            share = validation / (training + validation)
            ratio_hint = f"{value!r} is a ratio of training and validation data. Enter only the validation part"
            return f"{ratio_hint}: {share:.4g}."
    sentence = TABLES["values"].get(key, {}).get(theirs, "")
    return f"{value!r} is not a valid value in Training PRO. {sentence}" if sentence else ""


def our_presets(name: str) -> list[str]:
    """The names of our presets for one of Void Trainer's: several where its name says no size; else none."""
    presets: dict[str, list[str]] = TABLES["void_presets"]
    return next((ours for theirs, ours in presets.items() if theirs.casefold() == name.casefold()), [])


def preset_hint(value: object) -> str:
    """What to use instead of one of Void Trainer's configs as a value; empty for other values."""
    ours = our_presets(value) if isinstance(value, str) else []
    which = f"--preset {ours[0]}" if len(ours) == 1 else f"--preset with one of {', '.join(ours)}"
    return f"{value!r} is a preset in Training PRO. Remove this setting, and use {which}." if ours else ""


def our_key(key: str) -> str:
    """The key of the setting that another program calls `key`; empty if there is none."""
    tables = TABLES["settings"]
    return next((ours for ours in SETTINGS if any(key in names for names in tables.get(ours, {}).values())), "")


def why_not_here(key: str) -> str:
    """What to do instead of a parameter of another program that is no setting here; empty for other names."""
    return next((sentence for sentence, names in TABLES["not_here"].items() if key in names), "")
