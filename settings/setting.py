"""The class of a setting, functions that declare settings as dataclass fields, and parsers for their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NoReturn

COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
THOUSANDS_NUMBER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
SettingKind = Literal["text", "texts", "names", "whole", "number", "yes/no", "choice"]


@dataclass(frozen=True)
class Setting:
    """One setting."""

    key: str
    section: str
    kind: SettingKind
    default: Any
    label: str
    help: str
    choices: Mapping[str, str] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    words: tuple[str, ...] = ()  # special values besides those of its kind ('auto' for the cutoff)
    long: bool = False  # a text that may have several lines
    free: bool = False  # a choice that also accepts the user's own names
    one: str = ""  # what a single name of the user's is, where a free choice accepts only one
    live: bool = False  # may change during a run
    fixed: bool = False  # may not change even when the run is resumed
    share: bool = False  # a number of steps that may be a share of the run, which is below 1
    check: Callable[[Any], str] | None = None

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    def read(self, value: object) -> Any:
        """Convert a value from a form, a file or a flag to its type; a ValueError says what is wrong with it."""
        # Each branch takes what JSON, a box of the page and a flag give: 8, 8.0 and "8" are the same whole number.
        match self.kind:
            case "text":
                parsed: Any = value if isinstance(value, str) else self._refuse(value, "is not text.")
            case "texts":
                # A special value, a list of texts, or one text per line, as `show_line_breaks` writes it.
                if isinstance(value, str):
                    lines: list[Any] = [read_line_breaks(line.strip()) for line in value.split("\n")]
                else:
                    lines = list(value) if isinstance(value, (list, tuple)) else [None]
                if not all(isinstance(line, str) for line in lines):
                    self._refuse(value, "is not a list of strings.")
                lines = [line for line in lines if line.strip()] or [self.default]
                parsed = lines[0] if len(lines) == 1 and lines[0] in self.words else tuple(lines)
            case "names":
                parsed = self._read_names(value)
            case "whole" | "number":
                parsed = self._read_number(value)
            case "yes/no":
                words = {"true": True, "yes": True, "on": True, "1": True}
                words |= {"false": False, "no": False, "off": False, "0": False}
                parsed = words.get(str(value).strip().lower())
                if parsed is None:
                    self._refuse(value, "is neither true nor false.")
            case "choice":
                parsed = value
                if not isinstance(value, str) or value not in self.choices:
                    if not self.free or not value:
                        self._refuse(value, f"is not one of {', '.join(self.choices)}.")
                    words_given = re.split(r"[\s,]+", value) if isinstance(value, str) and not self.one else value
                    names = self._read_names(words_given)
                    parsed = " ".join(names) if self.one else names
        if self.check is not None and (problem := self.check(parsed)):
            raise ValueError(f"{self.label}: {problem}")
        return parsed

    def range(self) -> str:
        """Describe the accepted values."""
        if self.choices:
            return ", ".join(self.choices) + (f", or {self.one or 'module names'}" if self.free else "")
        accepted = list(self.words)
        if self.bounds:
            # With all digits: 4294967295, not 4.29497e+09.
            accepted.append(" to ".join(str(int(b)) if b == int(b) else f"{b:g}" for b in self.bounds))
        if self.share:
            accepted.append("a share of the run (below 1)")
        return " or ".join(accepted) if len(accepted) < 3 else f"{', '.join(accepted[:-1])}, or {accepted[-1]}"

    def _refuse(self, value: object, why: str) -> NoReturn:
        raise ValueError(f"{self.label}: {value!r} {why}")

    def _read_names(self, value: object) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else () if value is None else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(v, str) for v in items):
            self._refuse(value, "is not a list of names.")
        return tuple(v.strip() for v in items if v.strip())

    def _read_number(self, value: object) -> int | float | str:
        """Read a number within the bounds, a share of the run below 1, or a special word."""
        if isinstance(value, str) and value.strip() in self.words:
            return value.strip()
        example = self.default if isinstance(self.default, str) else f"{self.default:g}"
        accepted = f" Allowed: {self.range()}." if self.range() else f" Enter a value such as {example}."
        if value is None or value == "":
            raise ValueError(f"{self.label}: this field is empty. Enter a value such as {example}.")
        try:
            number = float("" if isinstance(value, bool) else value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            self._refuse(value, f"is not a number.{comma_hint(value) or accepted}")
        low, high = self.bounds or (-math.inf, math.inf)
        is_share = self.share and 0 < number < 1
        if not (low <= number <= high or is_share) or not math.isfinite(number):
            raise ValueError(f"{self.label}: {value} is out of range.{accepted}")
        if self.kind == "number" or is_share:
            return number
        if number != int(number):
            raise ValueError(f"{self.label}: {value} is not a whole number.{accepted}")
        return int(number)


def _declare(kind: SettingKind, default: object, label: str, help: str, **options: Any) -> Any:
    return field(default=default, metadata={"kind": kind, "label": label, "help": help, **options})


text = partial(_declare, "text")
texts = partial(_declare, "texts")
names = partial(_declare, "names", ())
integer = partial(_declare, "whole")
number = partial(_declare, "number")
boolean = partial(_declare, "yes/no")


def choice(label: str, help: str, choices: Mapping[str, str], **options: Any) -> Any:
    return _declare("choice", next(iter(choices)), label, help, choices=choices, **options)


def show_line_breaks(text: str) -> str:
    r"""Write a text in one line: \n stands for a line break, and \\n for a backslash before an n."""
    return re.sub(r"(\\*)([\nn])", lambda found: found[1] * 2 + ("\\n" if found[2] == "\n" else "n"), text)


def read_line_breaks(line: str) -> str:
    """Read a text that `show_line_breaks` has written."""

    def read(found: re.Match[str]) -> str:
        backslashes = len(found[1])
        return "\\" * (backslashes // 2) + ("\n" if backslashes % 2 else "n")

    return re.sub(r"(\\+)n", read, line)


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
    hint = f" Write {with_point} with a decimal point"
    if THOUSANDS_NUMBER.fullmatch(digits):
        hint += f", or {digits.replace(',', '')} if the comma separates thousands"
    return f"{hint}."
