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

MAX_NUMBER = 2**53
"""A float holds whole numbers up to this one exactly; our counts and times are far smaller."""
MAX_FLOAT = 1e300
PLAIN_NUMBER = 10**9
"""Every declared range contains the numbers from 0 to this one."""
LAST_SECOND = 2**32 - 1
"""A time in 2106, which every system can write as a date."""
LISTS = (list, tuple, Sequence)
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
    if declared is Any:
        return value
    origin, arguments = get_origin(declared), get_args(declared)
    if is_typeddict(declared) or dataclasses.is_dataclass(declared):
        return _check_fields(value, declared, place, damage)
    if origin is Annotated:
        return _check_bounds(check_record(value, arguments[0], place, damage), arguments[1], place)
    if origin in UNIONS:
        return _check_union(value, declared, place, damage)
    if origin is Literal:
        is_choice = value in arguments and type(value) in map(type, arguments)
        return value if is_choice else _refuse(value, place, declared)
    if origin in LISTS:
        return _check_items(value, declared, place, damage)
    if origin in (dict, Mapping):
        return _check_values(value, arguments[1], place, damage)
    return value if _is_scalar(value, declared) else _refuse(value, place, declared)


def _refuse(value: object, place: str, declared: object) -> Any:
    raise ValueError(f"{place} is {quote(value)}, which is not {_describe(declared)}.")


def _describe(declared: Any) -> str:
    """Describe the values of a type, in the words of JSON."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is Annotated:
        return _describe(arguments[0])
    if origin in UNIONS:
        return " or ".join(filter(None, map(_describe, arguments)))
    if origin in LISTS:
        return "a list"
    return NAMES.get(declared, "a JSON object")


def _is_scalar(value: object, declared: object) -> bool:
    if declared is float:
        return isinstance(value, (int, float)) and type(value) is not bool and abs(value) <= MAX_FLOAT
    if declared is int:
        return type(value) is int and abs(value) <= MAX_NUMBER
    return type(value) is declared


def _check_bounds(value: float, bounds: Between, place: str) -> float:
    return value if bounds.lowest <= value <= bounds.highest else _refuse(value, place, float)


def _check_union(value: Any, declared: Any, place: str, damage: list[str]) -> Any:
    errors = []
    for option in get_args(declared):
        try:
            return check_record(value, option, place, damage)
        except ValueError as error:
            errors.append(error)
    if isinstance(value, (Mapping, list)):  # what is wrong inside it
        raise errors[0]
    return _refuse(value, place, declared)


def _check_items(value: Any, declared: Any, place: str, damage: list[str]) -> Any:
    if not isinstance(value, (list, tuple)):
        return _refuse(value, place, declared)
    checked = (
        _or_leave_out(item, get_args(declared)[0], f"{place}, entry {number}", damage)
        for number, item in enumerate(value, 1)
    )
    items = [item for item in checked if item is not _LEFT_OUT]
    return tuple(items) if get_origin(declared) is tuple else items


def _check_values(value: Any, declared: Any, place: str, damage: list[str]) -> Any:
    if not isinstance(value, Mapping):
        return _refuse(value, place, dict)
    checked = {key: _or_leave_out(item, declared, f"{place}: {key}", damage) for key, item in value.items()}
    return {key: item for key, item in checked.items() if item is not _LEFT_OUT}


_LEFT_OUT = object()


def _or_leave_out(value: Any, declared: Any, place: str, damage: list[str]) -> Any:
    try:
        return check_record(value, declared, place, damage)
    except ValueError as error:
        damage.append(str(error))
        return _LEFT_OUT


def _check_fields(value: Any, declared: Any, place: str, damage: list[str]) -> Any:
    """Check the declared values of a record; a TypedDict keeps others as they are, a dataclass leaves them out."""
    if not isinstance(value, Mapping):
        return _refuse(value, place, declared)
    hints = declared_types(declared)
    found: list[str] = []
    checked = {
        key: item
        if _is_plainly_right(item, hints.get(key, Any))
        else _or_leave_out(item, hints.get(key, Any), f"{place}: {key}", found)
        for key, item in value.items()
    }
    values = {key: item for key, item in checked.items() if item is not _LEFT_OUT}
    if missing := _required_keys(declared) - values.keys():
        raise ValueError(found[0] if found else f"{place} has no {min(missing)}.")
    damage += found
    if is_typeddict(declared):
        return values
    damage += [f"{place} has an unknown key {quote(key)}." for key in values.keys() - hints.keys()]
    make: Callable[..., Any] = declared
    return make(**{key: item for key, item in values.items() if key in hints})


def _is_plainly_right(value: Any, declared: Any) -> bool:
    """Whether a value is of a right type and within all bounds, said fast: a curve has thousands of them."""
    kind = type(value)
    return kind in _plain_types(declared) and (kind not in (int, float) or 0 <= value <= PLAIN_NUMBER)


@lru_cache(maxsize=256)
def _plain_types(declared: Any) -> frozenset[type]:
    """The types whose values need no further look; none for a declaration that has parts."""
    if get_origin(declared) is Annotated:
        return _plain_types(get_args(declared)[0])
    if get_origin(declared) in UNIONS:
        return frozenset().union(*map(_plain_types, get_args(declared)))
    return frozenset({int, float} if declared is float else {declared} if declared in NAMES else ())


@lru_cache(maxsize=64)
def declared_types(declared: Any) -> Mapping[str, Any]:
    return get_type_hints(declared, include_extras=True)


@lru_cache(maxsize=64)
def _required_keys(declared: Any) -> frozenset[str]:
    if is_typeddict(declared):
        return frozenset(declared.__required_keys__)
    absent = dataclasses.MISSING
    fields = dataclasses.fields(declared)
    return frozenset(f.name for f in fields if f.init and f.default is absent and f.default_factory is absent)
