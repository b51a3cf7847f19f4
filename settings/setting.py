"""What a setting is: all there is to say about it, said once; how it is declared, and how a value is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
Kind = Literal["text", "texts", "names", "whole", "number", "yes/no", "choice"]


@dataclass(frozen=True)
class Setting:
    """One setting. `words` says what else than a value of its kind it takes ('auto' for the cutoff).

    A choice that is `free` takes names of the user's own beside those listed; where `one` says what, only one.
    What is `live` may change while a run goes on, what is `fixed` not even when it goes on later.
    """

    key: str
    section: str
    kind: Kind
    default: Any
    label: str
    help: str
    choices: Mapping[str, str] = field(default_factory=dict)
    minimum: float | None = None
    maximum: float | None = None
    words: tuple[str, ...] = ()
    free: bool = False
    one: str = ""
    live: bool = False
    fixed: bool = False
    check: Callable[[Any], str] | None = None

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    def read(self, value: object) -> Any:
        """The value as its type, from a form, a file or a flag; a ValueError says what is wrong with it."""
        read = _READERS[self.kind](self, value)
        if self.check is not None and (problem := self.check(read)):
            raise ValueError(f"{self.label}: {problem}")
        return read

    def range(self) -> str:
        """What it takes, in words."""
        if self.choices:
            return ", ".join(self.choices) + self._own_names()
        bounds = ""
        if self.minimum is not None and self.maximum is not None:
            bounds = f"{_plain(self.minimum)} to {_plain(self.maximum)}"
        elif self.minimum is not None:
            bounds = f"{_plain(self.minimum)} or more"
        return " or ".join([*self.words, *([bounds] if bounds else [])])

    def _own_names(self) -> str:
        if not self.free:
            return ""
        return f", or {self.one or 'names of your own'}"


def text(default: str, label: str, help: str, **more: Any) -> Any:
    return _declared("text", default, label, help, more)


def texts(default: str, label: str, help: str, **more: Any) -> Any:
    return _declared("texts", default, label, help, {"words": (default,), **more})


def names(label: str, help: str, **more: Any) -> Any:
    return _declared("names", (), label, help, more)


def whole(default: int | str, label: str, help: str, **more: Any) -> Any:
    return _declared("whole", default, label, help, more)


def number(default: float, label: str, help: str, **more: Any) -> Any:
    return _declared("number", default, label, help, more)


def yes_no(default: bool, label: str, help: str, **more: Any) -> Any:
    return _declared("yes/no", default, label, help, more)


def choice(label: str, help: str, choices: Mapping[str, str], **more: Any) -> Any:
    return _declared("choice", next(iter(choices)), label, help, {"choices": choices, **more})


def _declared(kind: str, default: object, label: str, help: str, more: Mapping[str, Any]) -> Any:
    return field(default=default, metadata={"kind": kind, "label": label, "help": help, **more})


def _plain(bound: float) -> str:
    """A bound with all its digits: 4294967295, not 4.29497e+09."""
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _text(setting: Setting, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{setting.label}: {value!r} is not a text.")
    return value


def _texts(setting: Setting, value: object) -> str | tuple[str, ...]:
    """One of its words, or texts: a list of them, or one a line in which \\n stands for a line end."""
    if isinstance(value, str):
        lines = [line.strip().replace("\\n", "\n") for line in value.split("\n")]
    elif isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        lines = list(value)
    else:
        raise ValueError(f"{setting.label}: {value!r} is not a list of texts.")
    lines = [line for line in lines if line.strip()]
    if not lines:
        return str(setting.default)
    return lines[0] if len(lines) == 1 and lines[0] in setting.words else tuple(lines)


def _names(setting: Setting, value: object) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(v, str) for v in items):
        raise ValueError(f"{setting.label}: {value!r} is not a list of names.")
    return tuple(v.strip() for v in items if v.strip())


def _number(setting: Setting, value: object) -> Any:
    if isinstance(value, str) and value.strip() in setting.words:
        return value.strip()
    if value is None or value == "":
        raise ValueError(f"{setting.label}: is empty.{_example(setting)}")
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(
            f"{setting.label}: {value!r} is not a number.{comma_said(value) or _hint(setting)}"
        ) from None
    below = setting.minimum is not None and number < setting.minimum
    above = setting.maximum is not None and number > setting.maximum
    if below or above or not math.isfinite(number):
        raise ValueError(f"{setting.label}: {value} is out of range.{_hint(setting)}")
    return number


def _whole(setting: Setting, value: object) -> Any:
    number = _number(setting, value)
    if isinstance(number, str):
        return number
    if number != int(number):
        raise ValueError(f"{setting.label}: {value} is not a whole number.{_hint(setting)}")
    return int(number)


def _yes_no(setting: Setting, value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    read = known.get(str(value).strip().lower())
    if read is None:
        raise ValueError(f"{setting.label}: {value!r} is neither true nor false.")
    return read


def _choice(setting: Setting, value: object) -> Any:
    if isinstance(value, str) and value in setting.choices:
        return value
    if setting.one and value:
        return " ".join(_names(setting, value))
    if setting.free and value:
        return _names(setting, re.split(r"[\s,]+", value) if isinstance(value, str) else value)
    raise ValueError(f"{setting.label}: {value!r} is not one of {', '.join(setting.choices)}.")


def comma_said(value: object) -> str:
    """What to write where a comma stands in a number; nothing is guessed, since 1,500 may mean either."""
    written = value.strip() if isinstance(value, str) else ""
    if not COMMA.fullmatch(written):
        return ""
    point = re.sub(r"^([+-]?)\.", r"\g<1>0.", written.replace(",", "."))
    whole = f", or {written.replace(',', '')} if the comma parts thousands" if THOUSANDS.fullmatch(written) else ""
    return f" Write {point}, with a point{whole}."


def _hint(setting: Setting) -> str:
    taken = setting.range()
    return f" It takes {taken}." if taken else _example(setting)


def _example(setting: Setting) -> str:
    usual = setting.default if isinstance(setting.default, str) else f"{setting.default:g}"
    return f" Give something like {usual}."


_READERS: Mapping[str, Callable[[Setting, object], Any]] = {
    "text": _text,
    "texts": _texts,
    "names": _names,
    "whole": _whole,
    "number": _number,
    "yes/no": _yes_no,
    "choice": _choice,
}
