"""`get` as a program: from nothing to a model, on after Ctrl+C, and nothing left in the home folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from training_pro.commands.environment import ROOT


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
    out, err = process.communicate()
    assert "Traceback" not in err
    return process.returncode, out, err


@pytest.mark.long
def test_a_model_is_there_and_is_said_where(get, tmp_path):
    code, out, err = told(get("toys/tiny"))
    folder = tmp_path / "user data" / "models" / "toys_tiny"
    assert (code, out) == (0, f"{folder}\n") and (folder / "model.safetensors").is_file()
    assert "toys/tiny at " in err and "  100%: " in err
    assert "To use the model in other commands, add: --model toys_tiny\n" in err
    assert {path.name for path in tmp_path.iterdir()} == {"user data"}
    assert told(get("toys/tiny"))[:2] == (1, "")
    assert told(get("gpt2"))[2].startswith("'gpt2' is neither OWNER/NAME nor the address of a model page. Enter")
    code, out, err = told(get("toys/tiny", "--revision", "old"))
    assert (code, out) == (1, "") and err.splitlines()[-1].startswith("toys/tiny has no revision 'old'.")


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="a program cannot be sent Ctrl+C alone there")
@pytest.mark.timeout(300)
def test_ctrl_c_ends_in_a_sentence_and_the_same_command_goes_on(get, served_hub):
    served_hub.seconds_a_piece = 8.0  # it must not be complete before it is stopped
    process = get("toys/tiny")
    said = ""
    while "model.safetensors" not in [name for name, _ in served_hub.asked]:
        said += process.stderr.read(1) or pytest.fail(said)
    process.send_signal(signal.SIGINT)
    code, out, err = told(process)
    assert (code, out) == (1, "")
    assert "Stopped. " in err and "Start the download again to continue." in err
    served_hub.seconds_a_piece = 0.0
    served_hub.asked.clear()
    assert told(get("toys/tiny"))[0] == 0
    assert "model.safetensors" in [name for name, _ in served_hub.asked]
