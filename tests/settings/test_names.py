"""Which names a LoRA may have."""

import pytest
from training_pro.settings.names import LONGEST_NAME, name_problem


@pytest.mark.parametrize(
    "name",
    ["my-story", "Story 2", "a", "x" * LONGEST_NAME, "Märchen_ß", "物語", "console", "np", "story-np2", "com10"],
)
def test_good_names(name):
    assert name_problem(name) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("x" * (LONGEST_NAME + 1), f"has {LONGEST_NAME + 1} characters"),
        ("v1.5", "has a dot"),
        (".hidden", "has a dot"),
        ("..", "is a path"),
        ("../x", "is a path"),
        ("a/b", "is a path"),
        ("/etc/passwd", "is a path"),
        ("a\\b", "is a path"),
        ("C:\\x", "is a path"),
        ("C:x", "is a path"),
        ("what?", "has the character '?'"),
        ("a:b c", "is a path"),
        ("ab:c", "has the character ':'"),
        ("tab\there", "has the character '\\t'"),
        ("nul\x00", "has the character '\\x00'"),
        (" story", "Windows cannot store"),
        ("story ", "Windows cannot store"),
        ("con", "Windows cannot store"),
        ("LPT1", "Windows cannot store"),
        ("story-np", "ends in -np"),
        ("-story", "begins with -"),
    ],
)
def test_bad_names(name, said):
    problem = name_problem(name)
    assert said in problem
    assert problem.endswith(".")
