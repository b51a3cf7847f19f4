"""Coverage-guided fuzzing: atheris makes the cases of the hostile tests, and keeps those that reach new code.

    python3 bench/fuzzing.py [--cases 10000] [--only WORD] [--write]

The tests are those of `tests/hardness/` that draw their cases with `run_cases`. Each runs in a process of its own,
where the code of Training PRO reports what it reaches. Libraries read files in that same process, not in a child.
Needs `pip install atheris`, which exists for Linux and macOS.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_utils

TESTS = ("test_readers.py", "test_texts.py", "test_records.py")
DRAWN = re.compile(r"^tests/hardness/\S+::test_(?:a_hostile_file|slicing_of|any_|a_damaged_value_costs)\S*$", re.M)
MARKS = ("<!-- fuzzing: begin -->", "<!-- fuzzing: end -->")
PAGE = bench_utils.ROOT / "docs" / "reliability.md"
MAX_BYTES = 100_000  # of a case
SECONDS = 300  # of a test, whose cases end then
HANG_SECONDS, MEGABYTES = 120, 8000
STATUS = re.compile(r"^#(\d+)\s+(INITED|DONE)\s+cov: (\d+)", re.M)


@dataclass(frozen=True)
class Fuzzed:
    """The result of one test: its cases, and the branches that its seed inputs and all inputs reached."""

    name: str
    cases: int
    failure: str
    seconds: float
    reached_first: int
    reached: int


def main() -> int:
    args = _parse_args()
    if args.child:
        return fuzz_test(args.child, args.cases)
    results = [fuzz_in_process(test, args.cases) for test in collect() if args.only in test]
    for result in results:
        if result.failure:
            print(f"{result.name}:\n{result.failure}\n", file=sys.stderr)
    print(describe(results))
    if args.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        text = f"{before}{MARKS[0]}\n\n{describe(results)}\n\n{MARKS[1]}{after}"
        PAGE.write_text(text, encoding="utf-8", newline="\n")
    return int(any(result.failure for result in results))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="of each test, at most; default: %(default)s")
    parser.add_argument("--only", default="", help="only tests whose name contains this word")
    parser.add_argument("--write", action="store_true", help="write the table into docs/reliability.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def collect() -> list[str]:
    """The tests that draw their cases, in pytest's notation."""
    command = [sys.executable, "-m", "pytest", "--co", "-q", *(f"tests/hardness/{file}" for file in TESTS)]
    listed = subprocess.run(command, cwd=bench_utils.ROOT, capture_output=True, text=True, check=True).stdout
    return DRAWN.findall(listed)


def fuzz_in_process(test: str, cases: int) -> Fuzzed:
    """Fuzz one test in a process of its own, which ends when all cases are done, or with the first failure."""
    began = time.monotonic()
    command = [sys.executable, __file__, "--child", test, "--cases", str(cases)]
    done = subprocess.run(command, cwd=bench_utils.ROOT, capture_output=True, check=False)
    output, log = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    states = {kind: (int(count), int(reached)) for count, kind, reached in STATUS.findall(log)}
    count, reached = states.get("DONE", (0, 0))
    failure = "" if not done.returncode and count else f"{output[-3000:]}\n{log[-3000:]}"
    name = test.partition("::")[2].removeprefix("test_").replace("_", " ")
    print(f"{name}: {count:,} cases, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return Fuzzed(name, count, failure, time.monotonic() - began, states.get("INITED", (0, 0))[1], reached)


def describe(results: list[Fuzzed]) -> str:
    head = ["test", "cases", "failures", "branches reached by the seed inputs", "by all inputs"]
    rows = [
        (row.name, f"{row.cases:,}", int(bool(row.failure)), f"{row.reached_first:,}", f"{row.reached:,}")
        for row in results
    ]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in [head, ["---"] * len(head), *rows])


def fuzz_test(test: str, cases: int) -> int:
    """Run a test of pytest whose cases come from atheris. atheris ends this process after the last one."""
    import atheris
    import pytest

    with atheris.instrument_imports(include=["training_pro", "pypdf", "docx"]):
        bench_utils.load()
        return int(pytest.main(["-q", "-s", "-n0", "-p", "no:cacheprovider", test], plugins=[Fuzzing(cases)]))


class Fuzzing:
    """A plugin of pytest that replaces how tests draw their cases, count failures and read files."""

    def __init__(self, cases: int) -> None:
        self._cases = cases
        self._module: Any = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            self._module = item.module
            item.module.run_cases = self._run_cases
        _module("tests.hardness.conftest").Proof.case = _case
        _module("data.readers.reader_process").ReaderProcess.items = _items_here

    def _run_cases(self, attack: Callable[[Any], None], drawn: Any, _: int) -> None:
        """Give atheris the attack: with the bytes of a file, or with what hypothesis makes of random bytes."""
        import atheris
        import hypothesis

        checks = list(hypothesis.HealthCheck)
        settings = hypothesis.settings(database=None, deadline=None, suppress_health_check=checks)
        kind = os.environ["PYTEST_CURRENT_TEST"].partition("[")[2].partition("]")[0]
        is_file = kind in getattr(self._module, "SOURCES", ())
        fuzzed = attack if is_file else settings(hypothesis.given(drawn)(attack)).hypothesis.fuzz_one_input
        with tempfile.TemporaryDirectory() as corpus:
            for number, content in enumerate([self._module.example_bytes(kind)] if is_file else random_inputs()):
                (Path(corpus) / str(number)).write_bytes(content)
            limits = [f"-runs={self._cases}", f"-max_total_time={SECONDS}", f"-max_len={MAX_BYTES}"]
            limits += [f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MEGABYTES}"]
            atheris.Setup([sys.argv[0], *limits, "-seed=1", "-len_control=0", corpus], fuzzed)
            atheris.Fuzz()


def random_inputs() -> list[bytes]:
    """First inputs of the tests whose cases hypothesis makes of bytes: it needs some hundreds of them."""
    source = random.Random(1)
    return [source.randbytes(2 ** source.randint(6, 13)) for _ in range(64)]


@contextmanager
def _case(_proof: Any, name: str) -> Iterator[None]:
    """A failure ends the process at once, because atheris never returns to count them."""
    began = time.process_time()
    yield
    assert time.process_time() - began < HANG_SECONDS, name


def _items_here(_process: Any, function: str, _budget: Any, *arguments: Any) -> Iterator[Any]:
    """What the process that reads files makes, made in this one, so that atheris sees what the file reaches."""
    refusal, reader = _module("core.errors").DataError, _module("data.readers.reader_process")
    for answer in reader.make_answers(function, arguments):
        kind, value = json.loads(answer)
        if kind == "end":
            return
        if kind in ("refused", "failed"):
            raise refusal(value if kind == "refused" else value[0])
        yield value


def _module(name: str) -> Any:
    """A module of Training PRO; tests and inner modules have no types here."""
    return importlib.import_module(f"training_pro.{name}")


if __name__ == "__main__":
    sys.exit(main())
