"""Files for launchers: each is read by its own program, and runs a command that exists."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from training_pro.core.version import ROOT

FOLDER = ROOT / "docs" / "launch"
COMMAND = re.compile(r"script\.py (\w+)")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_reads_the_slurm_script():
    done = subprocess.run(["bash", "-n", "slurm.sh"], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused = subprocess.run(["bash", "slurm.sh"], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert refused.returncode and "usage: sbatch" in refused.stderr


def test_accelerate_reads_its_config():
    config = pytest.importorskip("accelerate.commands.config.config_args").load_config_from_file(
        str(FOLDER / "data_parallel.yaml")
    )
    assert str(config.distributed_type).endswith("MULTI_GPU")
    assert not config.fsdp_config and not config.deepspeed_config


def test_the_rented_machine_installs_and_resumes():
    task = pytest.importorskip("yaml").safe_load((FOLDER / "skypilot.yaml").read_text("utf-8"))
    assert "--resume" in task["run"] and "script.py get" in task["setup"]


@pytest.mark.parametrize("file", sorted(FOLDER.iterdir()), ids=lambda file: file.name)
def test_each_file_runs_commands_of_ours(file):
    from training_pro.commands.main import COMMANDS

    commands = COMMAND.findall(file.read_text("utf-8"))
    assert commands and set(commands) <= set(COMMANDS)
