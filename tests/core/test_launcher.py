"""How script.py is started, and how it starts a process."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from training_pro.core import launcher
from training_pro.hosts.webui import WebuiHost
from training_pro.tests.conftest import ROOT

PROGRAM = """
import os, runpy, sys
sys.argv = ["script.py", "--help"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit:
    print(os.environ.get("OMP_WAIT_POLICY"), "torch" in sys.modules)
"""


@pytest.mark.parametrize(("system", "words"), [("nt", "py script.py"), ("posix", "python3 script.py")])
def test_a_message_tells_to_type_what_starts_it_there(monkeypatch, system, words):
    monkeypatch.setattr(launcher, "os", SimpleNamespace(name=system))
    assert launcher.launch_command() == words
    assert WebuiHost().model_status().problem.endswith(f"run Training PRO on its own:  {words} page")


@pytest.mark.parametrize(("chosen", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_that_wait_do_not_spin_in_a_program_that_we_start(chosen, expected):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | chosen
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{expected} False"
