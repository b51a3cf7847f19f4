"""Overused phrases: what counts as one, and what is listed."""

import subprocess
import sys

from training_pro.tests.conftest import ROOT

CODE = """
import phrases
author = ["The sea was calm, and the sea was calm again. Nobody came."] * 2
without = ["A shiver ran down her spine.", "A shiver ran down her spine, and the sea was calm."]
with_lora = ["The sea was calm. A shiver ran.", "Nobody came."]
found = phrases.find_overuse(author, (without, with_lora))
assert "sea was calm" not in found and "a shiver ran" in found
words = 6 + 11
assert found["ran down her spine"] == [0, 2000 / words, 0] and found["a shiver ran"][2] == 1000 / 9
assert phrases.worst_of(found)[0] in ("a shiver ran down her", "shiver ran down her spine")
assert "shiver ran down" not in phrases.worst_of(found)
assert phrases.find_overuse(["a b c a b c"], (["a b c a b c"], ["a b c"])) == {}
"""


def test_a_phrase_is_overused_that_a_side_repeats_and_the_author_hardly_has():
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT / "bench", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
