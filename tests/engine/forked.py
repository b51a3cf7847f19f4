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


class Forks:
    """Client of the process that forks."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert self._answer() == "ready"

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def begin(self, place: Any, **run: Any) -> int:
        """Start a run; returns its process id once training begins or there is nothing left to train."""
        run |= {"user_data": str(place.folders.user_data), "model": str(place.tiny)}
        self._process.stdin.write(json.dumps(run) + "\n")
        self._process.stdin.flush()
        pid, answer = int(self._answer()), self._answer()
        self._ended = "" if answer == "training" else answer
        return pid

    def end(self) -> str:
        """Return how the run ended: 'finished', 'failed' or 'killed'."""
        return self._ended or self._answer()

    def _answer(self) -> str:
        return self._process.stdout.readline().strip()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _train(run: dict[str, Any]) -> None:
    from training_pro.core.jobs.events import RunPlanned
    from training_pro.hosts.standalone import StandaloneHost, standalone_folders
    from training_pro.tests.tiny import QUICK, training_settings, watched_job

    def watch(job: Any, event: Any) -> None:
        if isinstance(event, RunPlanned):
            _say("training")

    from training_pro.engine.peft_engine import PeftEngine

    resume = run.pop("resume", "")
    host = StandaloneHost(standalone_folders(Path(run.pop("user_data"))), model=run.pop("model"))
    PeftEngine().train(training_settings({**QUICK, **run}), host, watched_job(watch), resume=resume)


def _serve() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    import conftest

    assert conftest.load_script
    from training_pro.engine.training import run as run_module
    from training_pro.records.report import curve_png

    assert run_module.train  # torch, transformers and peft are loaded by now
    gc.freeze()
    curve_png._draw_figure = lambda graph, title, path, marks: path.touch()  # slower than the rest of a tiny run
    _say("ready")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _train(json.loads(line))
                os._exit(0)
            finally:  # a failed child must not continue the loop
                os._exit(1)
        _say(str(child))
        _, status = os.waitpid(child, 0)
        _say("killed" if os.WIFSIGNALED(status) else "finished" if status == 0 else "failed")


if __name__ == "__main__":
    _serve()
