"""Notices on results whose form or model has changed."""

from __future__ import annotations

import pytest
from training_pro.interface.base.outdated import NOTICES, ResultInputs, notice, style

CHECKED = ResultInputs({"rank": 32, "learning_rate": "3e-4", "data": ["a.txt"]}, "toy")


@pytest.mark.parametrize(
    ("values", "model", "differs"),
    [
        (CHECKED.values, "toy", False),
        ({**CHECKED.values, "learning_rate": "0.0003"}, "toy", False),
        ({**CHECKED.values, "rank": 64}, "toy", True),
        ({**CHECKED.values, "rank": "a word"}, "toy", True),
        ({**CHECKED.values, "data": []}, "toy", True),
        (CHECKED.values, "another", True),
        (CHECKED.values, "", True),
    ],
)
def test_a_result_is_outdated_if_a_new_one_could_differ(values, model, differs):
    assert CHECKED.differs(ResultInputs(values, model)) is differs


def test_the_style_sheet_shows_the_notice_of_its_kind():
    assert style([]) == ""
    for kind in NOTICES:
        assert f"tp-outdated-{kind}" in notice(kind) and f"tp-outdated-{kind} " in style([kind])
