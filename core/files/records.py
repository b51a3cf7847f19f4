"""Records of ours, read back by the types that their classes declare; a damaged value is told and left out."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..readable import quote
from .atomic_files import parse_json

# A float holds whole numbers up to this one exactly; our counts and times are far smaller.
MAX_NUMBER = 2**53
MAX_FLOAT = 1e300
# Every declared range contains the numbers from 0 to this one.
PLAIN_NUMBER = 10**9
# A time in 2106, which every system can write as a date.
LAST_SECOND = 2**32 - 1
UNIONS = (Union, types.UnionType)
NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}

Record = TypeVar("Record")


@dataclasses.dataclass(frozen=True)
class Between:
    """Bounds of a number, for Annotated."""

    lowest: float
    highest: float


Timestamp = Annotated[float, Between(0, LAST_SECOND)]
Count = Annotated[int, Between(0, MAX_NUMBER)]


def read_record(path: Path, declared: type[Record], otherwise: Record, damage: list[str] | None = None) -> Record:
    """Read a record by its class, a dataclass or a TypedDict, or a list of them; `otherwise` if there is none.

    Values of another type than declared are left out. `damage` gets a sentence about each.
    """
    found: list[str] = []
    try:
        record: Record = check_record(parse_json(path), declared, path.name, found)
        return record
    except FileNotFoundError:
        return otherwise
    except (OSError, ValueError) as error:
        found.append(f"{path.name} can't be read: {error}")
        return otherwise
    finally:
        if damage is not None:
            damage += found


def check_record(value: Any, declared: Any, place: str, damage: list[str]) -> Any:
    """Return a value as its type declares it, without damaged parts; a ValueError says if all of it is."""
    origin, arguments = get_origin(declared), get_args(declared)
    is_right = False
    if declared is Any:
        is_right = True
    elif is_typeddict(declared) or dataclasses.is_dataclass(declared):
        if isinstance(value, Mapping):
            return _check_fields(value, declared, place, damage)
    elif origin is Annotated:
        value, bounds = check_record(value, arguments[0], place, damage), arguments[1]
        is_right = bounds.lowest <= value <= bounds.highest
    elif origin in UNIONS:
        errors = []
        for option in arguments:
            try:
                return check_record(value, option, place, damage)
            except ValueError as error:
                errors.append(error)
        if isinstance(value, (Mapping, list)):  # what is wrong inside it
            raise errors[0]
    elif origin is Literal:
        is_right = value in arguments and type(value) in map(type, arguments)
    elif origin in (list, tuple, Sequence):
        if isinstance(value, (list, tuple)):
            places = {f"{place}, entry {number}": item for number, item in enumerate(value, 1)}
            items = _without_damage(places, arguments[0], damage).values()
            return tuple(items) if origin is tuple else list(items)
    elif origin in (dict, Mapping):
        if isinstance(value, Mapping):
            places = {f"{place}: {key}": item for key, item in value.items()}
            checked = _without_damage(places, arguments[1], damage)
            return {key: checked[at] for key, at in zip(value, places, strict=True) if at in checked}
    elif declared is float:
        is_right = isinstance(value, (int, float)) and type(value) is not bool and abs(value) <= MAX_FLOAT
    elif declared is int:
        is_right = type(value) is int and abs(value) <= MAX_NUMBER
    else:
        is_right = type(value) is declared
    if is_right:
        return value
    raise ValueError(f"{place} is {quote(value)}, which is not {_describe(declared)}.")


def _describe(declared: Any) -> str:
    """Describe the values of a type, in the words of JSON."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is Annotated:
        return _describe(arguments[0])
    if origin in UNIONS:
        return " or ".join(map(_describe, arguments))
    return "a list" if origin in (list, tuple, Sequence) else NAMES.get(declared, "a JSON object")


def _without_damage(values: Mapping[str, Any], declared: Any, damage: list[str]) -> dict[str, Any]:
    """Check values by their places, and leave out the damaged ones."""
    checked = {}
    for place, value in values.items():
        try:
            checked[place] = check_record(value, declared, place, damage)
        except ValueError as error:
            damage.append(str(error))
    return checked


def _check_fields(value: Mapping[str, Any], declared: Any, place: str, damage: list[str]) -> Any:
    """Check the declared values of a record; a TypedDict keeps others as they are, a dataclass leaves them out."""
    hints, required = _fields(declared)
    found: list[str] = []
    values: dict[str, Any] = {}
    for key, item in value.items():
        hint, kind = hints.get(key, Any), type(item)
        # A curve has thousands of values, so most of them are let through without a closer look.
        if kind in _plain_types(hint) and (kind not in (int, float) or 0 <= item <= PLAIN_NUMBER):
            values[key] = item
        else:
            for checked in _without_damage({f"{place}: {key}": item}, hint, found).values():
                values[key] = checked
    if missing := required - values.keys():
        raise ValueError(found[0] if found else f"{place} has no {min(missing)}.")
    damage += found
    if is_typeddict(declared):
        return values
    damage += [f"{place} has an unknown key {quote(key)}." for key in values.keys() - hints.keys()]
    make: Callable[..., Any] = declared
    return make(**{key: item for key, item in values.items() if key in hints})


@lru_cache(maxsize=256)
def _plain_types(declared: Any) -> frozenset[type]:
    """The types whose values need no further look; none for a declaration that has parts."""
    if get_origin(declared) is Annotated:
        return _plain_types(get_args(declared)[0])
    if get_origin(declared) in UNIONS:
        return frozenset().union(*map(_plain_types, get_args(declared)))
    return frozenset({int, float} if declared is float else {declared} if declared in NAMES else ())


@lru_cache(maxsize=64)
def _fields(declared: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The types of the fields of a record, and the keys that it needs."""
    hints = get_type_hints(declared, include_extras=True)
    if is_typeddict(declared):
        return hints, frozenset(declared.__required_keys__)
    absent = dataclasses.MISSING
    fields = [f for f in dataclasses.fields(declared) if f.init]
    needed = (f.name for f in fields if f.default is absent and f.default_factory is absent)
    return hints, frozenset(needed)
