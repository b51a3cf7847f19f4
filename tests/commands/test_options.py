"""What several commands say alike."""

from __future__ import annotations

import sys

import pytest
from training_pro.commands import options


@pytest.mark.parametrize(
    ("system", "said"), [("linux", ""), ("darwin", ""), ("win32", options.CLOSING_WARNING + "\n")]
)
def test_only_on_windows_a_window_that_is_closed_would_save_nothing(monkeypatch, capsys, system, said):
    monkeypatch.setattr(sys, "platform", system)
    options.warn_about_closing()
    assert capsys.readouterr().err == said
