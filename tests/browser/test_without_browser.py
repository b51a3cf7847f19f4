"""Without a browser the browser tests are skipped; with CI=true they fail."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
from training_pro.tests.browser import conftest

NO_CHROMIUM = SimpleNamespace(executable_path="/nowhere/chrome")


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_missing_chromium_is_reported(monkeypatch, ci, outcome):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="there is no Chromium"):
        conftest.chromium(NO_CHROMIUM)
