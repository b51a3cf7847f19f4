"""A proof counts its cases, and reports them for the table of docs/reliability.md.

A test that counts by itself calls `record_property` with `cases`, `failures`, `worst_seconds`, `worst_megabytes`,
and `what` where its name does not say it. `bench/reliability.py` reads these.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import psutil
import pytest

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis makes the cases")
from hypothesis.strategies import SearchStrategy  # noqa: E402

T = TypeVar("T")

MEGABYTE = 1_000_000
BATCH = 500
"""Cases of one run of hypothesis, which keeps all that it made: 10,000 cases would take 600 MB of this process."""
MEASURED = "TRAINING_PRO_HARDNESS_CASES" in os.environ or "TRAINING_PRO_HARDNESS_HOURS" in os.environ
"""Whether `bench/reliability.py --long` measures: only then limits of seconds and megabytes are asserted."""
HOURS = "TRAINING_PRO_HARDNESS_HOURS"
"""Set by `bench/reliability.py --long`: without it, tests marked `hours` are left out."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    too_long = [item for item in items if item.get_closest_marker("hours") and HOURS not in os.environ]
    if too_long:
        config.hook.pytest_deselected(items=too_long)
        items[:] = [item for item in items if item not in too_long]


def resident_megabytes() -> float:
    return float(psutil.Process().memory_info().rss) / MEGABYTE


def run_cases(attack: Callable[[T], None], drawn: SearchStrategy[T], cases: int) -> None:
    """Draw so many cases, always the same ones, and attack with each."""
    for begun in range(0, cases, BATCH):
        count, all_checks = min(BATCH, cases - begun), list(hypothesis.HealthCheck)

        @hypothesis.seed(begun)
        @hypothesis.settings(max_examples=count, deadline=None, database=None, suppress_health_check=all_checks)
        @hypothesis.given(drawn)
        def attack_with(case: T) -> None:
            attack(case)

        attack_with()


@dataclass
class Proof:
    """Cases of one test: how many, which failed, the slowest, and the most memory above that at the start."""

    cases: int = 0
    failures: list[str] = field(default_factory=list)
    worst_seconds: float = 0.0
    worst_megabytes: float = 0.0
    started_at_megabytes: float = field(default_factory=resident_megabytes)
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Count what happens inside as one case; a failure is kept, and the next case runs."""
        began = self.clock()
        self.cases += 1
        try:
            yield
        except Exception:  # noqa: BLE001 - every failure is a result
            self.failures.append(f"{name}: {traceback.format_exc()}")
        self.worst_seconds = max(self.worst_seconds, self.clock() - began)
        self.worst_megabytes = max(self.worst_megabytes, resident_megabytes() - self.started_at_megabytes)


@pytest.fixture
def proof(record_property: Callable[[str, object], None]) -> Iterator[Proof]:
    """Counts the cases of a test; the test fails at its end if one of them failed."""
    counted = Proof()
    yield counted
    record_property("cases", counted.cases)
    record_property("failures", len(counted.failures))
    record_property("worst_seconds", round(counted.worst_seconds, 2))
    record_property("worst_megabytes", round(counted.worst_megabytes, 1))
    assert counted.cases, "the test had no case"
    assert not counted.failures, "\n".join(counted.failures[:5])
