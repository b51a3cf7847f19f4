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
import time
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
        pid = self.start(place, **run)
        self.wait_for("training")
        return pid

    def start(self, place: Any, **run: Any) -> int:
        """Start a job of JOBS and return its process id at once; with `announce` it says its stages."""
        run |= {"user_data": str(place.folders.user_data), "model": str(place.tiny)}
        self.process.stdin.write(json.dumps(run) + "\n")
        self.process.stdin.flush()
        self.ended = ""
        return int(self.answer())

    def wait_for(self, stage: str) -> bool:
        """Wait until the job says this stage; false if it has ended before."""
        while not self.ended:
            answer = self.answer()
            if answer == stage:
                return True
            self.ended = answer if answer in ENDS else ""
        return False

    def end(self) -> str:
        """Return how the run ended: 'finished', 'failed' or 'killed'."""
        self.wait_for("")
        return self.ended

    def answer(self) -> str:
        return self.process.stdout.readline().strip()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _announce(event: Any, stages: bool) -> None:
    if stages and type(event).__name__ == "Stage":
        _say(event.text.split()[0].lower())
    elif type(event).__name__ == "RunPlanned":
        _say("training")


def _engine() -> Any:
    from training_pro.engine.peft_engine import PeftEngine

    return PeftEngine()


def _train(run: dict[str, Any], host: Any, job: Any) -> None:
    from training_pro.tests.tiny import QUICK, training_settings

    resume = run.pop("resume", "")
    _engine().train(training_settings({**QUICK, **run}), host, job, resume=resume)


def _merge(run: dict[str, Any], host: Any, job: Any) -> None:
    from training_pro.core.engine import MergeRequest

    _say("ready")
    _engine().merge(MergeRequest(run["lora"], run["out"], ""), host, job)


def _export_gguf(run: dict[str, Any], host: Any, job: Any) -> None:
    from training_pro.core.engine import GgufRequest

    _say("ready")
    _engine().export_gguf(GgufRequest(run["lora"], "", ""), host)


def _run_queue(run: dict[str, Any], host: Any, job: Any) -> None:
    """Recover the queue of a program that was killed, and do what waits in it."""
    from training_pro.core.jobs import Session
    from training_pro.records.queue import QueueRunner
    from training_pro.tests.tiny import QUICK

    runner = QueueRunner(host, _engine(), Session())
    runner.recover()
    for values in run["add"]:
        runner.add({**QUICK, **values})
    _say("ready")
    if runner.queue.waiting:
        runner.start()
    while runner.queue.waiting or runner.queue.begun:
        time.sleep(0.01)


JOBS = {"train": _train, "merge": _merge, "gguf": _export_gguf, "queue": _run_queue}


def _do(run: dict[str, Any]) -> None:
    from training_pro.hosts.standalone import StandaloneHost, standalone_folders
    from training_pro.tests.tiny import watched_job

    announced = run.pop("announce", False)
    job = watched_job(lambda job, event: _announce(event, announced))
    host = StandaloneHost(standalone_folders(Path(run.pop("user_data"))), model=run.pop("model"))
    JOBS[run.pop("job", "train")](run, host, job)


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
                _do(json.loads(line))
                os._exit(0)
            finally:  # a failed child must not continue the loop
                os._exit(1)
        _, status = os.waitpid(child, 0)
        _say("killed" if os.WIFSIGNALED(status) else "finished" if status == 0 else "failed")


if __name__ == "__main__":
    _serve()
