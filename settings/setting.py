"""The class of a setting, functions that declare settings as dataclass fields, and parsers for their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
THOUSANDS_NUMBER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
SettingKind = Literal["text", "texts", "names", "whole", "number", "yes/no", "choice"]


@dataclass(frozen=True)
class Setting:
    """One setting. `words` are special values besides those of its kind ('auto' for the cutoff).

    A `free` choice also accepts the user's own names, or only a single one if `one` describes it. A `live` setting
    may change during a run; a `fixed` one may not change even when the run is resumed. A number of steps that may
    be a `share` of the run can be below 1.
    """

    key: str
    section: str
    kind: SettingKind
    default: Any
    label: str
    help: str
    choices: Mapping[str, str] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    words: tuple[str, ...] = ()
    free: bool = False
    one: str = ""
    live: bool = False
    fixed: bool = False
    share: bool = False
    check: Callable[[Any], str] | None = None

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    def read(self, value: object) -> Any:
        """Convert a value from a form, a file or a flag to its type; a ValueError says what is wrong with it."""
        parsed = _READERS[self.kind](self, value)
        if self.check is not None and (problem := self.check(parsed)):
            raise ValueError(f"{self.label}: {problem}")
        return parsed

    def range(self) -> str:
        """Describe the accepted values."""
        if self.choices:
            return ", ".join(self.choices) + (f", or {self.one or 'module names'}" if self.free else "")
        numbers = [" to ".join(map(_format_bound, self.bounds))] if self.bounds else []
        accepted = [*self.words, *numbers, *["a share of the run (below 1)"] * self.share]
        return " or ".join(accepted) if len(accepted) < 3 else f"{', '.join(accepted[:-1])}, or {accepted[-1]}"


def text(default: str, label: str, help: str, **options: Any) -> Any:
    return _declare("text", default, label, help, options)


def texts(default: str, label: str, help: str, **options: Any) -> Any:
    return _declare("texts", default, label, help, {"words": (default,), **options})


def names(label: str, help: str, **options: Any) -> Any:
    return _declare("names", (), label, help, options)


def integer(default: int | str, label: str, help: str, **options: Any) -> Any:
    return _declare("whole", default, label, help, options)


def number(default: float | str, label: str, help: str, **options: Any) -> Any:
    return _declare("number", default, label, help, options)


def boolean(default: bool, label: str, help: str, **options: Any) -> Any:
    return _declare("yes/no", default, label, help, options)


def choice(label: str, help: str, choices: Mapping[str, str], **options: Any) -> Any:
    return _declare("choice", next(iter(choices)), label, help, {"choices": choices, **options})


def _declare(kind: str, default: object, label: str, help: str, extra: Mapping[str, Any]) -> Any:
    return field(default=default, metadata={"kind": kind, "label": label, "help": help, **extra})


def _format_bound(bound: float) -> str:
    """Return a bound with all its digits: 4294967295, not 4.29497e+09."""
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _read_text(setting: Setting, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{setting.label}: {value!r} is not text.")
    return value


def _read_texts(setting: Setting, value: object) -> str | tuple[str, ...]:
    """Read a special value, a list of texts, or one text per line, as `show_line_breaks` writes it."""
    if isinstance(value, str):
        lines = [read_line_breaks(line.strip()) for line in value.split("\n")]
    elif isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        lines = list(value)
    else:
        raise ValueError(f"{setting.label}: {value!r} is not a list of strings.")
    lines = [line for line in lines if line.strip()]
    if not lines:
        return str(setting.default)
    return lines[0] if len(lines) == 1 and lines[0] in setting.words else tuple(lines)


def show_line_breaks(text: str) -> str:
    r"""Write a text in one line: \n stands for a line break, and \\n for a backslash before an n."""
    return re.sub(r"(\\*)([\nn])", lambda found: found[1] * 2 + ("\\n" if found[2] == "\n" else "n"), text)


def read_line_breaks(line: str) -> str:
    """Read a text that `show_line_breaks` has written."""

    def read(found: re.Match[str]) -> str:
        backslashes = len(found[1])
        return "\\" * (backslashes // 2) + ("\n" if backslashes % 2 else "n")

    return re.sub(r"(\\+)n", read, line)


def _read_names(setting: Setting, value: object) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(v, str) for v in items):
        raise ValueError(f"{setting.label}: {value!r} is not a list of names.")
    return tuple(v.strip() for v in items if v.strip())


def _read_number(setting: Setting, value: object) -> Any:
    if isinstance(value, str) and value.strip() in setting.words:
        return value.strip()
    if value is None or value == "":
        raise ValueError(f"{setting.label}: this field is empty.{_example_hint(setting)}")
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{setting.label}: {value!r} is not a number.{comma_hint(value) or _range_hint(setting)}"
        ) from None
    low, high = setting.bounds or (-math.inf, math.inf)
    is_share = setting.share and 0 < number < 1
    if not (low <= number <= high or is_share) or not math.isfinite(number):
        raise ValueError(f"{setting.label}: {value} is out of range.{_range_hint(setting)}")
    return number


def _read_whole(setting: Setting, value: object) -> Any:
    number = _read_number(setting, value)
    if isinstance(number, str) or (setting.share and 0 < number < 1):
        return number
    if number != int(number):
        raise ValueError(f"{setting.label}: {value} is not a whole number.{_range_hint(setting)}")
    return int(number)


def _read_yes_no(setting: Setting, value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    parsed = words.get(str(value).strip().lower())
    if parsed is None:
        raise ValueError(f"{setting.label}: {value!r} is neither true nor false.")
    return parsed


def _read_choice(setting: Setting, value: object) -> Any:
    if isinstance(value, str) and value in setting.choices:
        return value
    if setting.one and value:
        return " ".join(_read_names(setting, value))
    if setting.free and value:
        return _read_names(setting, re.split(r"[\s,]+", value) if isinstance(value, str) else value)
    raise ValueError(f"{setting.label}: {value!r} is not one of {', '.join(setting.choices)}.")


def shortest_number(value: float) -> str:
    """The shortest digits that are read as the same number: 0.0003, 2152539448."""
    short = f"{value:g}"
    return short if float(short) == value else str(value)


def comma_hint(value: object) -> str:
    """Return how to write a number that has a comma. Nothing is guessed, because 1,500 may mean either."""
    digits = value.strip() if isinstance(value, str) else ""
    if not COMMA_NUMBER.fullmatch(digits):
        return ""
    with_point = re.sub(r"^([+-]?)\.", r"\g<1>0.", digits.replace(",", "."))
    without_comma = (
        f", or {digits.replace(',', '')} if the comma separates thousands"
        if THOUSANDS_NUMBER.fullmatch(digits)
        else ""
    )
    return f" Write {with_point} with a decimal point{without_comma}."


def _range_hint(setting: Setting) -> str:
    accepted = setting.range()
    return f" Allowed: {accepted}." if accepted else _example_hint(setting)


def _example_hint(setting: Setting) -> str:
    example = setting.default if isinstance(setting.default, str) else f"{setting.default:g}"
    return f" Enter a value such as {example}."


_READERS: Mapping[str, Callable[[Setting, object], Any]] = {
    "text": _read_text,
    "texts": _read_texts,
    "names": _read_names,
    "whole": _read_whole,
    "number": _read_number,
    "yes/no": _read_yes_no,
    "choice": _read_choice,
}
