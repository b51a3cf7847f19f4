"""The pages about the code say what the code is: the picture of the rooms, every path, and the two journeys."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from training_pro.tests.test_architecture import ROOT, is_package, own_imports

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST_FILES = {"A cutoff": 16, "A loss": 12}
"""How many files each journey may pass."""


def journey(title: str) -> list[Path]:
    """The files of a journey, in the order of its page."""
    start = ARCHITECTURE.index(f"**{title}")
    part = re.split(r"\n\*\*|\n## ", ARCHITECTURE[start + 2 :])[0]
    return [Path(name) for name in dict.fromkeys(re.findall(r"`([\w/]+\.py)`", part))]


def imported(file: Path) -> set[Path]:
    """The files that a file's imports reach, through the surface of a package too."""
    reached: set[Path] = set()
    for module, name in own_imports(file):
        for dotted in (module, f"{module}.{name}"):
            path = Path(*dotted.split("."))
            if (ROOT / path).with_suffix(".py").is_file():
                reached.add(path.with_suffix(".py"))
        if is_package(module):
            surface = Path(*module.split(".")) / "__init__.py"
            reached |= {
                Path(*inner.split(".")).with_suffix(".py") for inner, own in own_imports(surface) if own == name
            }
    return reached


def test_the_picture_of_the_rooms_is_the_one_of_the_code():
    command = [sys.executable, str(ROOT / "docs" / "draw_rooms.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run: python3 docs/draw_rooms.py"


def test_every_file_that_a_page_names_is_there():
    missing = [
        (page.name, name)
        for page in [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|md))`", page.read_text(encoding="utf-8"))
        if not (ROOT / name).is_file()
    ]
    assert missing == []


@pytest.mark.parametrize("title", MOST_FILES)
def test_each_file_of_a_journey_is_tied_to_another_one_of_it(title):
    files = journey(title)
    assert 3 <= len(files) <= MOST_FILES[title]
    ties = {file: imported(file) for file in files}
    alone = [
        file
        for file in files
        if not any(file in ties[other] or other in ties[file] for other in set(files) - {file})
    ]
    assert [str(file) for file in alone] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
