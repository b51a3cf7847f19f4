"""Slice parts of texts in processes of their own, one for each core."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from ...chunking import Encoder
from ...core import dist_env
from ..readers.process import start_python
from ..rows import PortableEncoder
from ..text import PartJob, slice_part

MAX_PROCESSES = 16  # each takes some 500 MB of memory
POLL_SECONDS = 0.1
ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false"}
"""Each process has a core; the threads of all tokenizers would get into each other's way."""
LOG = logging.getLogger("training_pro")


def count_cores() -> int:
    """The cores that this program may use; in a run on several GPUs, the share of this process."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // dist_env.world_size())


@dataclass(frozen=True)
class SlicingPool:
    """Slices parts and stores them; in this process where the tokenizer can't be made anew in another one."""

    encode: Encoder
    portable: PortableEncoder | None
    say: Callable[[int, int], None]  # how many parts of how many are sliced
    check_stop: Callable[[], None]  # raises once the user stopped the work
    processes: int = 0  # 0: one for each core

    def slice_all(self, jobs: Sequence[PartJob]) -> None:
        """Slice all parts; once the user stops the work, it ends immediately."""
        left = self._slice_in_processes(self.portable, jobs) if self.portable and len(jobs) > 1 else jobs
        for number, job in enumerate(left):
            self.say(len(jobs) - len(left) + number, len(jobs))
            self.check_stop()
            slice_part(job, self.encode)

    def _slice_in_processes(self, portable: PortableEncoder, jobs: Sequence[PartJob]) -> list[PartJob]:
        """Slice parts in other processes; returns the parts that are left, because a process ended."""
        count = min(self.processes or count_cores(), MAX_PROCESSES, len(jobs))
        with _start_all(portable, count) as processes, ThreadPoolExecutor(count) as threads:
            if not processes:
                return list(jobs)
            idle: SimpleQueue[SlicingProcess] = SimpleQueue()
            for process in processes:
                idle.put(process)
            futures = [threads.submit(_slice_next, idle, job) for job in jobs]
            try:
                self._wait(futures)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for process in processes:
                    process.end()
                raise
        return [job for job, future in zip(jobs, futures, strict=True) if not future.result()]

    def _wait(self, futures: Sequence[Future[bool]]) -> None:
        waiting, said = set(futures), -1
        while waiting:
            self.check_stop()
            if (done := len(futures) - len(waiting)) > said:
                self.say(done, len(futures))
                said = done
            _, waiting = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)


def _slice_next(idle: SimpleQueue[SlicingProcess], job: PartJob) -> bool:
    process = idle.get()
    try:
        return process.slice(job)
    finally:
        idle.put(process)


class SlicingProcess:
    """A started process; one that has ended slices nothing."""

    def __init__(self, portable: PortableEncoder) -> None:
        with ExitStack() as stack:
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            self._process = start_python("data.workers.child", self._errors, {**os.environ, **ONE_THREAD})
            stack.pop_all()  # closed with the process
        self._is_ended = False
        self._send(*portable)

    def slice(self, job: PartJob) -> bool:
        """Slice a part, and return whether the process did it."""
        store = job.text.store
        self._send(str(store.folder), store.largest, job.text.key, vars(job.rules), job.by_lines, job.key)
        if self._process.stdout.readline():  # type: ignore[union-attr]
            return True
        self._log_end()
        return False

    def end(self) -> None:
        """End the process immediately, whatever it is doing."""
        self._is_ended = True
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def _send(self, *values: Any) -> None:
        """Send a line; that the process has ended shows where its answer is waited for."""
        with suppress(OSError):
            self._process.stdin.write(json.dumps(values).encode() + b"\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _log_end(self) -> None:
        """Log why the process ended by itself."""
        if not self._is_ended:
            code = self._process.wait()
            self._errors.seek(0)
            printed = self._errors.read().decode("utf-8", "replace").strip()
            LOG.warning("A process that slices text exited with code %s: %s", code, printed)


@contextmanager
def _start_all(portable: PortableEncoder, count: int) -> Iterator[list[SlicingProcess]]:
    """So many processes, or as many as start; all of them are ended at the end."""
    processes: list[SlicingProcess] = []
    try:
        with suppress(OSError):
            for _ in range(count):
                processes.append(SlicingProcess(portable))
        yield processes
    finally:
        for process in processes:
            process.end()
