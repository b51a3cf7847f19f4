"""Watch over the other processes of a distributed run: one that can't be reached ends the run with a message.

A collective call notices a process that was killed, since its connection closes. A machine that is switched off
closes nothing: the call would wait for half an hour.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist

from ...core import dist_env
from ...train_utils import plural

BEAT_SECONDS = 3.0
LOST_AFTER_SECONDS = 30.0
CONNECT_SECONDS = 20.0
KEY = "training-pro-beats-{rank}"

OnLost = Callable[[str], object]


class PeerTimes:
    """When each process was last heard of, by the number of its beats."""

    def __init__(self) -> None:
        self._beats, self._heard = dict[int, int](), dict[int, float]()

    def hear(self, beats: Sequence[int], now: float) -> None:
        for rank, count in enumerate(beats):
            if count and count != self._beats.get(rank):
                self._beats[rank], self._heard[rank] = count, now

    def lost(self, now: float) -> list[int]:
        """The processes that were not heard of for too long; one that still loads its model was never heard of."""
        return [rank for rank, heard in sorted(self._heard.items()) if now - heard > LOST_AFTER_SECONDS]


@contextmanager
def watch_peers(on_lost: OnLost | None = None) -> Iterator[None]:
    """End this process with a message if another one can't be reached during the block."""
    store = _connect() if dist_env.world_size() > 1 else None
    if store is None:
        yield
        return
    times, ended = PeerTimes(), threading.Event()
    for work, arguments in ((_beat, (store, times, ended)), (_watch, (times, ended, on_lost or _end_process))):
        threading.Thread(target=work, args=arguments, name="peer watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _connect() -> dist.TCPStore | None:
    """A connection of our own to the store of the launcher; None if it has none."""
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not address or not port.isdecimal():
        return None
    with suppress(RuntimeError, OSError):
        return dist.TCPStore(address, int(port), is_master=False, timeout=timedelta(seconds=CONNECT_SECONDS))
    return None


def _beat(store: dist.TCPStore, times: PeerTimes, ended: threading.Event) -> None:
    """Count up our own beats and read those of all; a connection that hangs or breaks stops this."""
    ranks = range(dist_env.world_size())
    with suppress(RuntimeError, OSError):
        while not ended.wait(BEAT_SECONDS):
            store.add(KEY.format(rank=dist_env.rank()), 1)
            times.hear([store.add(KEY.format(rank=rank), 0) for rank in ranks], time.monotonic())


def _watch(times: PeerTimes, ended: threading.Event, on_lost: OnLost) -> None:
    while not ended.wait(1.0):
        if lost := times.lost(time.monotonic()):
            on_lost(describe_lost(lost))
            return


def describe_lost(ranks: Sequence[int]) -> str:
    """The message about processes that can't be reached; all of them if it is our own connection that broke."""
    others = [rank for rank in ranks if rank != dist_env.rank()]
    everyone = len(others) == dist_env.world_size() - 1
    named = "Another process" if len(others) == 1 else "The other processes" if everyone else "Other processes"
    return (
        f"{named} of this run ({plural(len(others), 'rank')} {', '.join(map(str, others))}) could not be "
        f"reached for "
        f"{LOST_AFTER_SECONDS:.0f} seconds, so the run ends. Start it again with --resume to continue from the "
        "last checkpoint."
    )


def _end_process(message: str) -> None:
    """End at once: the training thread waits in a collective call, which nothing else ends."""
    os.write(2, f"{message}\n".encode())
    os._exit(1)
