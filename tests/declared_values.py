"""Values of dataclasses and named tuples, generated from their declared types, with texts that contain markup."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st
from training_pro import chunking
from training_pro.core.jobs import Event
from training_pro.settings.definitions import SETTINGS

EVIL = "\"'></title></pre><script>alert(1)</script> onmouseover=alert(1)"
TEXTS = st.one_of(st.text(max_size=8), st.just(EVIL), st.just(f"{EVIL}\n\n\tChapter: {EVIL}"))
COUNTS = st.one_of(st.integers(0, 3), st.integers(0, 10**12))
FINITE = st.floats(0, 1e9)
ANY_FLOAT = st.one_of(FINITE, st.sampled_from([float("nan"), float("inf"), -1.0]))
PLAIN = st.one_of(st.none(), st.booleans(), COUNTS, ANY_FLOAT, TEXTS, st.tuples(TEXTS))
MOMENTS = st.floats(1.6e9, 4e9)
SETTINGS_VALUES = st.dictionaries(st.sampled_from(sorted(SETTINGS)), PLAIN, max_size=3)
STEP_ENTRIES = st.fixed_dictionaries(
    {
        "current_steps": st.integers(1, 10**9),
        "loss": st.none() | ANY_FLOAT,
        "smoothed_loss": st.none() | ANY_FLOAT,
        "learning_rate": FINITE,
        "epoch": FINITE,
        "tokens": COUNTS,
        "seconds": FINITE,
    }
)
"""Steps as in training_graph.json, where null stands for anything that is not a number."""
VALUES_BY_FIELD: Mapping[str, Any] = {
    # Limits that types do not express: a moment has a date, a run has steps.
    "at": MOMENTS,
    "when": MOMENTS,
    "steps": st.integers(1, 10**9),
    "steps_per_epoch": st.integers(1, 10**9),
    "cards": st.integers(0, 9),
    "maps": st.just(()),  # slice maps hold slice maps
    "key": st.sampled_from(sorted(SETTINGS)),
    "settings": SETTINGS_VALUES,
    "values": SETTINGS_VALUES,
    "fitting": SETTINGS_VALUES,
    "changes": st.dictionaries(st.sampled_from(sorted(SETTINGS)), st.tuples(PLAIN, PLAIN), max_size=3),
    "rates": st.lists(st.floats(0, 1), max_size=4).map(tuple),
    "loss": ANY_FLOAT,
    "smoothed": ANY_FLOAT,
    "perplexity": ANY_FLOAT,
    "gradient_norm": st.one_of(st.none(), ANY_FLOAT),
}


def values_of_type(kind: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of this type, or of a field with this name."""
    if name in VALUES_BY_FIELD:
        return VALUES_BY_FIELD[name]
    strategies = {str: TEXTS, int: COUNTS, float: FINITE, bool: st.booleans(), type(None): st.none(), Path: PATHS}
    if kind in strategies:
        return strategies[kind]
    if kind in (Any, object):
        return PLAIN
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of_type(argument) for argument in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of_type(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of_type, arguments))
    if origin in (Mapping, dict):
        return st.dictionaries(values_of_type(arguments[0]), values_of_type(arguments[1]), max_size=2)
    if origin is Sequence:
        return st.lists(values_of_type(arguments[0]), max_size=3)
    return instances_of(kind)


PATHS = TEXTS.map(lambda text: Path("loras") / text.replace("\0", ""))


def instances_of(kind: type) -> st.SearchStrategy[Any]:
    """Any value of a dataclass or named tuple."""
    hints = typing.get_type_hints(kind, localns=TYPE_CHECKING_NAMES)
    field_names = [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind._fields
    return st.builds(kind, **{name: values_of_type(hints[name], name) for name in field_names})


def event_types(kind: type[Event] = Event) -> Iterator[type[Event]]:
    """Every type of event, including ones added later."""
    for subclass in kind.__subclasses__():
        yield subclass
        yield from event_types(subclass)


TYPE_CHECKING_NAMES = vars(chunking)
"""Names that modules import only under TYPE_CHECKING."""


class Escaped(HTMLParser):
    """Asserts that no text became markup: no script element, no event handler."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        assert [name for name, _ in attrs if name.startswith("on")] == []


def assert_escaped(html: str) -> None:
    assert "<script" not in html
    Escaped(html)
