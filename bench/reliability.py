"""Reliability: runs every proof in tests/hardness/ and writes the table of docs/reliability.md.

    python3 bench/reliability.py [--long] [--pieces FILE] [FILE ...]

Every test file runs in a process of its own. The short form leaves out the tests marked `long` or `hours`.
Finished files are kept in the file of pieces, so that the long form can be interrupted: a second call continues
after them. `--anew` forgets them. A test without the properties of `tests/hardness/conftest.py` is one case.
The table is printed, and that of the long form written with `--write`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import bench_utils

HOURS = "TRAINING_PRO_HARDNESS_HOURS"  # as in tests/hardness/conftest.py
PROOFS = bench_utils.ROOT / "tests" / "hardness"
PAGE = bench_utils.ROOT / "docs" / "reliability.md"
MARKS = ("<!-- reliability, long form: begin -->", "<!-- reliability, long form: end -->")
CASES = dict.fromkeys(("test_readers", "test_records", "test_texts"), "10000")
"""Cases of the long form, by file; the others have theirs in the tests marked `hours`."""
PAGE_WIDTH = 125  # columns
HEADING = ("test", "cases", "failures", "longest time, s", "largest increase in memory, MB", "other figures")
LIBRARIES = ("torch", "transformers", "peft", "gradio")
FILE_SECONDS = {False: 900, True: 12 * 3600}


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    what: str
    cases: int
    failures: int
    seconds: float
    megabytes: float | None = None
    figures: str = ""

    def cells(self) -> tuple[object, ...]:
        megabytes = "" if self.megabytes is None else f"{self.megabytes:.0f}"
        return self.what, f"{self.cases:,}", self.failures, f"{self.seconds:.1f}", megabytes, self.figures


def main() -> int:
    args = _parse_args()
    pieces = {} if args.anew or not args.pieces.exists() else json.loads(args.pieces.read_text(encoding="utf-8"))
    files = args.files or sorted(PROOFS.glob("test_*.py"))
    for file in files:
        key = f"{file.stem}{', long' if args.long else ''}"
        if key not in pieces:
            pieces[key] = [asdict(row) for row in run_file(file, long=args.long)]
            args.pieces.write_text(json.dumps(pieces, indent=1), encoding="utf-8")
            print(f"{key}: done", file=sys.stderr, flush=True)
    rows = [Row(**row) for key in sorted(pieces) if key.endswith(", long") == args.long for row in pieces[key]]
    text = describe(rows, long=args.long)
    print(text)
    if args.write and args.long:
        write_table(PAGE, text, MARKS)
    return int(any(row.failures for row in rows))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: every file in tests/hardness")
    parser.add_argument("--long", action="store_true", help="the long proofs, too; takes hours")
    parser.add_argument(
        "--write", action="store_true", help="with --long, write the table into docs/reliability.md"
    )
    parser.add_argument("--anew", action="store_true", help="forget the finished pieces")
    pieces = Path(tempfile.gettempdir()) / "training-pro-reliability.json"
    parser.add_argument("--pieces", type=Path, default=pieces, help="finished files; default: %(default)s")
    return parser.parse_args()


def run_file(file: Path, *, long: bool) -> list[Row]:
    """Run one file of proofs, and return its rows."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        options = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "junit_family=xunit1",
            f"--junitxml={report}",
            f"--basetemp={scratch}/pytest",
        ]
        marks = ["--timeout=0"] if long else ["-m", "not long"]
        environment = {**os.environ, **(long_environment(file.stem) if long else {})}
        command = [sys.executable, "-m", "pytest", *options, *marks, str(file.resolve())]
        try:
            result = subprocess.run(
                command,
                cwd=bench_utils.ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=FILE_SECONDS[long],
            )
        except subprocess.TimeoutExpired:
            return [Row(f"{title(file.stem)} (did not end)", 1, 1, FILE_SECONDS[long])]
        if result.returncode:
            print(result.stdout[-5000:], result.stderr[-2000:], file=sys.stderr)
        if not report.exists():
            return [Row(f"{title(file.stem)} (did not start)", 1, 1, 0.0)]
        return read_report(ElementTree.parse(report), file.stem)


def long_environment(stem: str) -> dict[str, str]:
    """Variables that make the tests of a file run in their long form."""
    return {HOURS: "1", **({"TRAINING_PRO_HARDNESS_CASES": CASES[stem]} if stem in CASES else {})}


def read_report(report: ElementTree.ElementTree, stem: str) -> list[Row]:
    """Rows of a JUnit report: one for each test that counts its cases, and one for all others together."""
    rows: dict[str, Row] = {}
    others = []
    for test in report.iter("testcase"):
        if test.find("skipped") is not None:
            continue
        properties = {entry.get("name", ""): entry.get("value", "") for entry in test.iter("property")}
        failed = test.find("failure") is not None or test.find("error") is not None
        if "cases" not in properties:
            others.append(Row("", 1, int(failed), float(test.get("time", 0))))
            continue
        row = _counted_row(properties, test, failed=failed)
        rows[row.what] = _joined(rows[row.what], row) if row.what in rows else row
    if others:
        failures, seconds = sum(row.failures for row in others), max(row.seconds for row in others)
        rows[""] = Row(f"{title(stem)} (each test is one case)", len(others), failures, seconds)
    return list(rows.values())


def _joined(one: Row, other: Row) -> Row:
    """Two tests of the same thing as one row."""
    megabytes = max(one.megabytes or 0.0, other.megabytes or 0.0)
    seconds = max(one.seconds, other.seconds)
    return Row(one.what, one.cases + other.cases, one.failures + other.failures, seconds, megabytes, other.figures)


def _counted_row(properties: dict[str, str], test: ElementTree.Element, *, failed: bool) -> Row:
    megabytes = properties.get("worst_megabytes")
    return Row(
        properties.get("what") or title(test.get("name", "")),
        int(properties["cases"]),
        max(int(properties.get("failures", 0)), int(failed)),
        float(properties.get("worst_seconds", test.get("time", 0))),
        None if megabytes is None else float(megabytes),
        properties.get("figures", ""),
    )


def title(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ").capitalize()


def describe(rows: Iterable[Row], *, long: bool) -> str:
    """The table with the machine, the versions and the date."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    form = "long" if long else "short"
    machine = f"{platform.system()} on {platform.machine()} with {os.cpu_count()} cores"
    versions = f"Python {platform.python_version()}, {libraries}"
    head = f"We ran the {form} tests on {time.strftime('%Y-%m-%d')}. Machine: {machine}. Versions: {versions}."
    head = textwrap.fill(head, PAGE_WIDTH, break_on_hyphens=False)
    table = [HEADING, ["---"] * len(HEADING), *(row.cells() for row in rows)]
    return "\n".join([head, "", *(f"| {' | '.join(map(str, cells))} |" for cells in table)])


def write_table(page: Path, text: str, marks: tuple[str, str]) -> None:
    """Replace what stands between the two marks of the page."""
    begin, end = marks
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    sys.exit(main())
