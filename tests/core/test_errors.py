"""What is told of an error that is not our own."""

import pytest
from training_pro.core.errors import first_line


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("\n  size mismatch \nfor all layers\n"), "size mismatch"),
        (RuntimeError(), "RuntimeError"),
        (KeyError("a"), "'a'"),
        (OSError(" \n"), "OSError"),
    ],
)
def test_an_error_says_its_first_line_or_its_kind(error, told):
    assert first_line(error) == told
