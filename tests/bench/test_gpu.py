"""The comparison on a GPU, tried without one."""

import json
import subprocess
import sys

import pytest
from training_pro.tests.conftest import ROOT


def run(*words):
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT / "bench", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.mark.long
def test_the_speed_is_measured_with_a_tiny_model():
    words = ("--models", "tiny", "--texts", "short", "--ways", "ours", "unsloth", "--steps", "4")
    done = run("gpu.py", "speed", *words)
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| Training PRO |")]
    assert int(row.split("|")[2].replace(",", "")) > 0
    assert "unsloth: skipped. Name the folder of its libraries." in done.stderr


def test_no_library_is_imported_before_unsloth_which_has_to_come_first():
    run("-c", "import sys, gpu; assert not {'torch', 'transformers', 'peft', 'trl'} & sys.modules.keys()")


def test_a_layer_starts_less_than_half_of_the_operations_of_plain_peft():
    counted = json.loads(run("operations.py", "--json").stdout)
    assert counted["operations_per_layer"] <= 110 < 2 * 110 <= counted["plain"]
    # transformers reads whether the positions of a row begin again; nothing of ours waits within a batch
    assert sum(counted["waits"].values()) == 1
