"""`get` as a program: from nothing to a model, on after Ctrl+C, and nothing left in the home folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60


@pytest.fixture
def get(served_hub, tiny, tmp_path):
    served_hub.add("toys/tiny", tiny)

    def call(*words):
        command = [sys.executable, "script.py", "get", *words, "--user-data", str(tmp_path / "user data")]
        home = {"HF_HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **home}, stdout=pipe, stderr=pipe, text=True)

    return call


def told(process):
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert "Traceback" not in err
    return process.returncode, out, err


def test_a_model_is_there_and_is_said_where(get, tmp_path):
    code, out, err = told(get("toys/tiny"))
    folder = tmp_path / "user data" / "models" / "toys_tiny"
    assert (code, out) == (0, f"{folder}\n")
    assert (folder / "model.safetensors").is_file()
    assert (
        "toys/tiny at " in err
        and "  100%: " in err
        and "To use the model in other commands, add: --model toys_tiny\n" in err
    )
    assert {path.name for path in tmp_path.iterdir()} == {"user data"}
    assert told(get("toys/tiny"))[:2] == (1, "")


@pytest.mark.skipif(os.name == "nt", reason="a program cannot be sent Ctrl+C alone there")
def test_ctrl_c_ends_in_a_sentence_and_the_same_command_goes_on(get, served_hub, tmp_path):
    served_hub.seconds_a_piece = 1.0
    process = get("toys/tiny")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ["model.safetensors" for name, _ in served_hub.asked if name == "model.safetensors"]:
        assert time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    code, out, err = told(process)
    assert (code, out) == (1, "")
    assert "Stopped. " in err and "Start the download again to continue." in err
    served_hub.seconds_a_piece = 0.0
    served_hub.asked.clear()
    assert told(get("toys/tiny"))[0] == 0
    assert [begin > 0 for name, begin in served_hub.asked if name == "model.safetensors"] == [True]


def test_a_refusal_is_one_sentence(get):
    assert told(get("gpt2"))[2].startswith("'gpt2' is neither OWNER/NAME nor the address of a model page. Enter")
    code, out, err = told(get("toys/tiny", "--revision", "old"))
    assert (code, out) == (1, "") and err.splitlines()[-1].startswith("toys/tiny has no revision 'old'.")
