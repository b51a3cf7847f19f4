"""The comparison on a GPU, tried without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "bench" / "gpu.py")]


def run(*arguments):
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.mark.long
def test_the_speed_is_measured_with_a_tiny_model():
    done = run("speed", "--models", "tiny", "--texts", "short", "--ways", "ours", "unsloth", "--steps", "4")
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| Training PRO |")]
    assert int(row.split("|")[2].replace(",", "")) > 100
    assert "unsloth: skipped. Name the folder of its libraries." in done.stderr


@pytest.mark.long
def test_the_memory_is_measured_with_a_tiny_model():
    done = run("memory", "--models", "tiny", "--loadings", "float32")
    rows = [line for line in done.stdout.splitlines() if line.startswith("| float32 |")]
    assert len(rows) == 9
    assert all(float(row.split("|")[6]) > 0.1 for row in rows)


def test_no_library_is_imported_before_unsloth_which_has_to_come_first():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); sys.argv = ['gpu.py']\n"
        "import gpu\n"
        "assert not {'torch', 'transformers', 'peft', 'trl'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
