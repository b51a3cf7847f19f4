"""What the test files cost, and when the long ones last passed: printed, and kept in `tests/long.md`."""

from __future__ import annotations

import subprocess
from collections import Counter
from datetime import date
from pathlib import Path

LONG_RECORD = Path(__file__).parent / "long.md"
HEAD = "# Long tests\n\n`python3 script.py test -m long [FILE ...]` writes a line for each file that passes.\n\n"
COLUMNS = "| file | passed on | at commit | seconds |\n|---|---|---|---|\n"
SLOWEST = 10


class FileReport:
    """A plugin of pytest that adds up the reports of each file, from all processes."""

    def __init__(self, *, durations: bool, records: bool) -> None:
        self.durations, self.records = durations, records  # only whole files of long tests are recorded
        self.seconds: Counter[str] = Counter()
        self.passed: set[str] = set()
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        if report.failed:
            self.failed.add(file)
        elif report.passed and report.when == "call":
            self.passed.add(file)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.durations:
            terminalreporter.section(f"slowest {SLOWEST} files, of {self.seconds.total():.0f} seconds in all")
            for file, seconds in self.seconds.most_common(SLOWEST):
                terminalreporter.write_line(f"{seconds:7.1f}  {file}")
        if self.records and self.passed - self.failed:
            self.record()

    def record(self) -> None:
        """Write when, and at which commit, each file last passed."""
        old = LONG_RECORD.read_text(encoding="utf-8") if LONG_RECORD.exists() else ""
        lines = {line.split(" | ")[0]: line for line in old.splitlines() if line.startswith("| tests/")}
        git = ["git", "describe", "--always", "--exclude=*", "--dirty=, changed"]
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
        for file in self.passed - self.failed:
            lines[f"| {file}"] = f"| {file} | {date.today()} | {commit or 'unknown'} | {self.seconds[file]:.0f} |"
        LONG_RECORD.write_text(
            HEAD + COLUMNS + "".join(f"{lines[file]}\n" for file in sorted(lines)), encoding="utf-8"
        )
