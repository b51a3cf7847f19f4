"""The pages about the code name files that are there, and the README is short."""

from __future__ import annotations

import re

from training_pro.tests.test_architecture import ROOT


def test_every_file_that_a_page_names_is_there():
    missing = [
        (page.name, name)
        for page in [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|md))`", page.read_text(encoding="utf-8"))
        if not (ROOT / name).is_file()
    ]
    assert missing == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
