"""Threads wait without spinning where we start the process, and as the user chose if he did."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from training_pro.tests.conftest import ROOT

PROGRAM = textwrap.dedent("""
    import os, runpy, sys
    sys.argv = ["script.py", "--help"]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit:
        pass
    print(os.environ.get("OMP_WAIT_POLICY"), "torch" in sys.modules)
""")


@pytest.mark.parametrize(("chosen", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_that_wait_do_not_spin_in_a_program_that_we_start(chosen, expected):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": chosen} if chosen else {}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == f"{expected} False"
