"""What a message tells to type is what starts script.py there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from training_pro.core import launcher
from training_pro.hosts.webui import WebuiHost


@pytest.mark.parametrize(("system", "words"), [("nt", "py script.py"), ("posix", "python3 script.py")])
def test_also_where_the_webui_is_not_known(monkeypatch, system, words):
    monkeypatch.setattr(launcher, "os", SimpleNamespace(name=system))
    assert launcher.launch_command() == words
    assert WebuiHost().model_status().problem.endswith(f"run Training PRO on its own:  {words} page")
