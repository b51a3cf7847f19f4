"""Records read back by their declared types."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest
from training_pro.core.files import Count, Timestamp, check_record, read_json, read_record


class Place(TypedDict):
    step: Count


class Entry(Place, total=False):
    loss: float | None
    kind: Literal["a", "b"]
    by_source: dict[str, float]


@dataclass(frozen=True)
class Run:
    name: str
    values: Mapping[str, Any]
    at: Timestamp = 0.0
    entries: tuple[Entry, ...] = ()


GOOD = {"name": "a", "values": {"x": [1]}, "at": 1.5, "entries": [{"step": 1, "loss": None}]}


def read(value, declared=Run):
    damage = []
    return check_record(value, declared, "f", damage), damage


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ({"step": 1, "loss": "x"}, [{"step": 1}]),
        ({"step": -1}, []),
        ({"step": 1, "kind": "c"}, [{"step": 1}]),
        ({"step": 1, "loss": math.inf}, [{"step": 1}]),
        ({"step": 1, "by_source": {"a": 1, "b": []}}, [{"step": 1, "by_source": {"a": 1}}]),
        ({"step": 1, "more": {"of": "another program"}}, [{"step": 1, "more": {"of": "another program"}}]),
        (7, []),
    ],
)
def test_a_damaged_value_is_left_out_and_told(entry, kept):
    run, damage = read({**GOOD, "entries": [entry]})
    assert list(run.entries) == kept
    assert len(damage) == (kept != [entry])
    assert all(sentence.startswith("f: entries, entry 1") for sentence in damage)


def test_a_record_without_a_value_it_needs_is_none_and_no_calendar_has_any_time():
    for damaged in ({"name": 3}, {"values": []}, {"values": None}):
        with pytest.raises(ValueError, match="f: "):
            read({**GOOD, **damaged})
    run, damage = read({**GOOD, "at": 1e18})
    assert run.at == 0.0 and damage == ["f: at is '1e+18', which is not a number."]


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"1" * 5000, b"\xed\xa0\x80", b"7"])
def test_a_file_that_is_no_record_is_told(tmp_path, text):
    path, damage = tmp_path / "f.json", []
    assert read_record(path, Run, None, damage) is None and damage == []  # it is not there
    path.write_bytes(text)
    assert read_record(path, Run, None, damage) is None
    assert len(damage) == 1 and damage[0].startswith("f.json")
    assert read_json(path, {}) == {}
    path.write_text(json.dumps({"a\udcff": ["\ud800", "\U0001f600"]}))  # half of a character
    assert read_json(path, {}) == {"a\ufffd": ["\ufffd", "\U0001f600"]}
