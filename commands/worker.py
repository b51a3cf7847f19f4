"""`script.py worker`: works on a model of its own for a tab whose program can't, and ends when nothing is asked.

Requests come in over standard input, as calls of the engine's methods; see `engine/process_engine.py`. Several may
be under way, each in a thread.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from ..core.channel import Channel
from ..core.errors import TrainingProError, first_line
from ..core.jobs import Job, Request
from . import options

IDLE_SECONDS = 600.0


def run(arguments: Sequence[str]) -> int:
    """Answer requests until standard input is closed, or none came for ten minutes."""
    args = options.make_parser("worker", model=True).parse_args(arguments)
    # Libraries print to standard output, which is for messages: theirs goes to standard error.
    channel = Channel(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    host, engine = options.make_host(args), options.make_engine(args)
    jobs: dict[int, Job] = {}
    requests: SimpleQueue[tuple[Any, ...]] = SimpleQueue()

    def receive() -> None:
        try:
            while True:
                requests.put(channel.receive())
        except (EOFError, OSError):
            os._exit(0)  # the program with the tab has ended: nobody waits for what is under way

    def work(number: int, method: str, values: Mapping[str, Any], with_job: bool) -> None:
        job = Job("answer", method)

        def send_events() -> None:
            for event in job.log.follow():
                channel.send((number, "event", event))

        follower = threading.Thread(target=send_events)
        if with_job:
            jobs[number] = job
            follower.start()
        try:
            more = {"host": host, "job": job} if with_job else {"host": host}
            answer = ("result", getattr(engine, method)(**more, **values))
        except TrainingProError as error:
            answer = ("error", (type(error).__name__, vars(error) | {"text": str(error)}))
        except BaseException as error:  # noqa: BLE001 - whoever asked must get an answer
            answer = ("crash", (f"{type(error).__name__}: {first_line(error)}", traceback.format_exc()))
        job.log.close()
        if with_job:
            follower.join()
            del jobs[number]
        channel.send((number, *answer))

    threading.Thread(target=receive, daemon=True).start()
    working: list[threading.Thread] = []
    while True:
        working = [thread for thread in working if thread.is_alive()]
        try:
            number, method, *rest = requests.get(timeout=IDLE_SECONDS)
        except Empty:
            if working:
                continue
            return 0
        if method == "stop":
            if number in jobs:
                jobs[number].control.ask(Request.STOP)
            continue
        working.append(threading.Thread(target=work, args=(number, method, *rest), daemon=True))
        working[-1].start()
