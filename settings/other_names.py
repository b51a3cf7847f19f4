"""Names of settings in other programs and in the words of users: for the search field and docs/coming-from.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .definitions import SETTINGS

PROGRAMS = {
    "original": "The original Training PRO",
    "webui": "The webui's Training tab",
    "void": "Void Trainer",
    "hybrid": "The feature request for hybrid training",
    "libraries": "transformers, PEFT and TRL",
    "guide": "The Novice's LLM Training Guide",
    "notes": "The training notes on TrainingArguments",
}
SWITCH = {"true": "on", "false": "off"}
OUR_VALUES = {
    "schedule": {"constant_with_warmup": "constant"},
    "optimizer": {"adamw": "adamw_torch", "adamw8bit": "adamw_8bit", "adafactor": "adafactor"},
    "targets": {"all": "all-linear"},
    "batching": {
        "group_by_length": "by_length", "true": "by_length", "false": "shuffled", "random": "shuffled",
        "hybrid": "length_then_order",
    },
    "too_long": {"truncate": "cut_end"},
    "train_on": {
        "all": "everything", "true": "everything", "assistant": "replies", "false": "replies",
        "last": "last_reply",
    },
    "add_eos": {"every block": "every_block", "only blocks between hard cuts": "hard_cut"},
    "format": {"input-output": "auto"},
    "max_steps": {"-1": "0"},
    "eval_every": {"epoch": "0"},
    "gradient_checkpointing": SWITCH,
    "packing": SWITCH,
    "attention": {"xformers": "sdpa", "true": "sdpa"},
}  # fmt: skip
"""Values of other programs that are refused here, in lowercase, and ours."""
WORD = re.compile(r"[^\W_]+")
SPLIT_RATIO = re.compile(r"(\d*\.?\d+)\s*,\s*(\d*\.?\d+)")
MIN_WORD = 3  # shorter words do not count where only some of a query are found


@dataclass(frozen=True)
class Named:
    """A setting or a button of the page, with its label and its names elsewhere by program."""

    key: str
    label: str
    names: dict[str, list[str]]
    help: str = ""

    @property
    def all_names(self) -> list[list[str]]:
        """All names of it, each as a list of words."""
        return [
            _words(name) for name in (self.key, self.label, *(n for names in self.names.values() for n in names))
        ]


@cache
def _load_tables() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name("other_names.json").read_text(encoding="utf-8")
    )
    return tables


@cache
def load_names() -> tuple[Named, ...]:
    """Everything that has a name: the settings in the order of their declaration, then buttons."""
    tables = _load_tables()
    settings = [
        Named(key, s.label, tables["settings"].get(key, {}), f"{s.help} {' '.join(map(str, s.choices))}")
        for key, s in SETTINGS.items()
    ]
    buttons = [
        Named(key, names["label"], {of: words for of, words in names.items() if of != "label"})
        for key, names in tables["buttons"].items()
    ]
    return (*settings, *buttons)


def find_settings(query: str, others: Sequence[Named] = (), limit: int = 8) -> list[Named]:
    """What a query means, also among `others`: the best match first, where nothing has all words what has most."""
    words = _words(query)
    for score in (_score_all, _score_some):
        scores = [(score(words, named), named) for named in (*load_names(), *others)]
        if found := [named for points, named in sorted(scores, key=lambda pair: -pair[0]) if points]:
            return found[:limit]
    return []


def _score_all(words: Sequence[str], named: Named) -> int:
    """How well all words match: a whole name, the start of one, several names together, or the help."""
    names = named.all_names
    if not words or words in names:
        return 4 if words else 0
    if any(_contains(name, words) for name in names):
        return 3
    if _contains([word for name in names for word in name], words):
        return 2
    return int(_contains(_words(named.help), words))


def _score_some(words: Sequence[str], named: Named) -> int:
    names = [word for name in named.all_names for word in name]
    return sum(_contains(names, [word]) for word in words if len(word) >= MIN_WORD)


def _contains(candidates: Sequence[str], words: Sequence[str]) -> bool:
    return all(any(candidate.startswith(word) for candidate in candidates) for word in words)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]


def our_value(key: str, value: object) -> str:
    """Our value for one that another program has for a key of OUR_VALUES; empty if there is none or it is ours."""
    if not isinstance(value, str | int) or value in SETTINGS[key].choices:
        return ""
    return OUR_VALUES[key].get(str(value).strip().casefold(), "")


def foreign_value_hint(key: str, value: object) -> str:
    """What to enter instead of a value that another program has for a key; empty for other values."""
    if hint := preset_hint(value):
        return hint
    if key in OUR_VALUES and (ours := our_value(key, value)):
        return f"{value!r} is called {ours!r} in Training PRO."
    if not isinstance(value, str):
        return ""
    if key == "eval_share" and (ratio := SPLIT_RATIO.fullmatch(value.strip())):
        training, validation = map(float, ratio.groups())
        if 0 < validation < training:
            share = validation / (training + validation)
            ratio_hint = f"{value!r} is a ratio of training and validation data. Enter only the validation part"
            return f"{ratio_hint}: {share:.4g}."
    sentence = _load_tables()["values"].get(key, {}).get(value.strip().casefold(), "")
    return f"{value!r} is not a valid value in Training PRO. {sentence}" if sentence else ""


def our_presets(name: str) -> list[str]:
    """The names of our presets for one of Void Trainer's: several where its name says no size; else none."""
    presets: dict[str, list[str]] = _load_tables()["void_presets"]
    return next((ours for theirs, ours in presets.items() if theirs.casefold() == name.casefold()), [])


def preset_hint(value: object) -> str:
    """What to use instead of one of Void Trainer's configs as a value; empty for other values."""
    ours = our_presets(value) if isinstance(value, str) else []
    which = f"--preset {ours[0]}" if len(ours) == 1 else f"--preset with one of {', '.join(ours)}"
    return f"{value!r} is a preset in Training PRO. Remove this setting, and use {which}." if ours else ""


def our_key(key: str) -> str:
    """The key of the setting that another program calls `key`; empty if there is none."""
    names = (named for named in load_names() if named.key in SETTINGS)
    return next((n.key for n in names if any(key in there for there in n.names.values())), "")


@cache
def load_options() -> tuple[Named, ...]:
    """What is an option of the command line and no setting, with the flag as its key."""
    return tuple(
        Named(flag, names["label"], {of: words for of, words in names.items() if of in PROGRAMS}, names["help"])
        for flag, names in _load_tables()["options"].items()
    )


def why_not_here(key: str) -> str:
    """What to do instead of a parameter of another program that is no setting here; empty for other names."""
    options = (option for option in load_options() if any(key in names for names in option.names.values()))
    return next((option.help for option in options), str(_load_tables()["not_here"].get(key, "")))


def render_markdown() -> str:
    """The page docs/coming-from.md: a table of names for each program, and what is no setting here."""
    tables, lines, told = _load_tables(), [_INTRODUCTION], set[tuple[str, str]]()
    for program, title in PROGRAMS.items():
        names = []
        for named in (*load_names(), *load_options()):
            theirs = [(name, named.key) for name in named.names.get(program, ())]
            if new := [pair[0] for pair in theirs if pair not in told or program == "hybrid"]:
                key = _as_code({named.key} - tables["buttons"].keys())
                names.append(f"| {_as_code(new)} | {named.label} | {key} |")
            told.update(theirs)
        lines += _table(f"## {title}\n", "name | label in Training PRO | key in Training PRO", names)
        statements = [f"| {theirs} | {ours} |" for theirs, ours in tables["statements"].get(program, {}).items()]
        lines += _table("", "statement | what is true in Training PRO", statements) if statements else []
    configs = [f"| {_as_code([theirs])} | {_as_code(ours)} |" for theirs, ours in tables["void_presets"].items()]
    lines += _table(_VOID_PRESETS, "name in Void Trainer | name in Training PRO", configs)
    ours = {key: {value: f"`{name}`" for value, name in values.items()} for key, values in OUR_VALUES.items()}
    values = [
        f"| `{key}` | `{value}` | {answer} |"
        for table in (ours, tables["values"])
        for key, answers in table.items()
        for value, answer in answers.items()
    ]
    title = "## Values that are different in Training PRO\n"
    lines += _table(title, "setting | value in the other tool | value in Training PRO", values)
    not_here = [f"| `{key}` | {sentence} |" for key, sentence in tables["not_here"].items()]
    title = "## Names that are not settings of Training PRO\n"
    lines += _table(title, "name in the other tool | what to do in Training PRO", not_here)
    return "\n".join(lines)


def _table(title: str, columns: str, rows: Sequence[str]) -> list[str]:
    return [*filter(None, [title]), f"| {columns} |", f"|{' --- |' * (columns.count('|') + 1)}", *rows, ""]


def _as_code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_INTRODUCTION = """# Coming from another tool

This page shows where to find the settings that you know from other tools and from training guides. The search
field above the form finds a setting by any of these names. You can load settings files from the original Training
PRO and from the webui's Training tab as they are. Their values are converted. A name that a table above lists
with the same setting is left out. The second table of a section lists what the tool or the guide says, and what
is true in Training PRO. To generate this page again, run
`python3 script.py settings --coming-from > docs/coming-from.md`.
"""

_VOID_PRESETS = """## Presets of Void Trainer

The optimizer and LoRA configs of Void Trainer are presets here (`--preset`). In Training PRO, the size in the name
of a preset is the size of the model. In Void Trainer, it is the size of the LoRA. Void Trainer recommends the
largest LoRAs for the smallest models, so its S corresponds to our XL. If the name of a Void Trainer preset
does not include a size, choose the Training PRO preset that fits the size of your model.
"""
