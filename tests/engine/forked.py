"""Runs in forked processes, to be killed: one process loads the libraries, and each run is a fork of it.

As a program it reads one run per line and answers with the child's process id, 'training' when the loop begins,
and how the run ended. It has no other threads when it forks, so a fork is safe, and starts in milliseconds.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENDS = ("finished", "failed", "killed")


class Forks:
    """Client of the process that forks."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)
        assert self.answer() == "ready"

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def begin(self, place: Any, **run: Any) -> int:
        """Start a run; returns its process id once training begins or there is nothing left to train."""
        run |= {"user_data": str(place.folders.user_data), "model": str(place.tiny)}
        self.process.stdin.write(json.dumps(run) + "\n")
        self.process.stdin.flush()
        pid, self.said = int(self.answer()), ""
        while self.said not in ("training", *ENDS):
            self.said = self.answer()
        return pid

    def end(self) -> str:
        """Return how the run ended: 'finished', 'failed' or 'killed'."""
        while self.said not in ENDS:
            self.said = self.answer()
        return self.said

    def answer(self) -> str:
        return self.process.stdout.readline().strip()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _train(run: dict[str, Any]) -> None:
    from training_pro.core.jobs import RunPlanned
    from training_pro.hosts.standalone import standalone_folders
    from training_pro.tests.tiny import Workspace, watched_job

    job = watched_job(lambda job, event: _say("training") if isinstance(event, RunPlanned) else None)
    Workspace(standalone_folders(Path(run.pop("user_data"))), Path(run.pop("model"))).train(job=job, **run)


def _serve() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    import conftest

    assert conftest.load_script
    from training_pro.engine.training import run as run_module
    from training_pro.records.report import charts

    assert run_module.train  # torch, transformers and peft are loaded by now
    gc.freeze()
    charts.draw_graph = lambda graph, title, path, *more: path.touch()  # slower than the rest of a tiny run
    _say("ready")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _say(str(os.getpid()))  # before anything else that this process says
                _train(json.loads(line))
                os._exit(0)
            finally:  # a failed child must not continue the loop
                os._exit(1)
        _, status = os.waitpid(child, 0)
        _say("killed" if os.WIFSIGNALED(status) else "finished" if status == 0 else "failed")


if __name__ == "__main__":
    _serve()
