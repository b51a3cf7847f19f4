"""The machine kept awake while a run goes on, and let go of again: also when the run fails or its process dies."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

ES_CONTINUOUS, ES_SYSTEM_REQUIRED = 0x80000000, 0x00000001
SECONDS = 3.0  # so long a helper may take to begin, and to end

Say = Callable[[str], object]


class _CannotError(Exception):
    """Why this machine cannot be kept awake."""


@contextmanager
def awake(say: Say, *, platform: str = sys.platform) -> Iterator[None]:
    """Inside, the machine does not fall asleep by itself; where that cannot be had, one sentence says so."""
    with ExitStack() as held:
        try:
            held.enter_context(_WAYS.get(platform, _nothing)())
        except _CannotError as error:
            say(f"The machine cannot be kept awake: {error}. It may go to sleep during the run.")
        yield


@contextmanager
def _windows() -> Iterator[None]:
    """Of this thread, which is the run's; Windows itself lets go when the thread ends."""
    execution_state = ctypes.windll.kernel32.SetThreadExecutionState  # type: ignore[attr-defined]
    if not execution_state(ES_CONTINUOUS | ES_SYSTEM_REQUIRED):
        raise _CannotError("Windows refuses it")
    try:
        yield
    finally:
        execution_state(ES_CONTINUOUS)


@contextmanager
def _macos() -> Iterator[None]:
    """caffeinate ends with our process, however that ends."""
    helper = _started(["caffeinate", "-i", "-w", str(os.getpid())])
    try:
        yield
    finally:
        _ended(helper)


@contextmanager
def _linux() -> Iterator[None]:
    """systemd-inhibit holds on for as long as its `cat` reads from our pipe, which closes with our process."""
    hold = ["--what=idle:sleep", "--mode=block", "--who=Training PRO", "--why=A run goes on", "sh", "-c"]
    helper = _started(["systemd-inhibit", *hold, "echo held; exec cat"])
    try:
        _wait_until_held(helper)
        yield
    finally:
        _ended(helper)


@contextmanager
def _nothing() -> Iterator[None]:
    raise _CannotError("no way is known on this system")
    yield


def _started(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """A helper without a terminal, so that it can ask nobody for a password."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise _CannotError(f"{words[0]} cannot be started ({error.strerror})") from error


def _wait_until_held(helper: subprocess.Popen[bytes]) -> None:
    assert helper.stdout is not None
    assert helper.stderr is not None
    ready, _, _ = select.select([helper.stdout], [], [], SECONDS)
    if not ready:
        raise _CannotError("the system does not answer")
    if not helper.stdout.readline():
        reason = helper.stderr.read().decode(errors="replace").strip().partition("\n")[0]
        raise _CannotError(reason or "the system refuses it")


def _ended(helper: subprocess.Popen[bytes]) -> None:
    helper.terminate()
    try:
        helper.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.communicate()


_WAYS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "win32": _windows,
    "darwin": _macos,
    "linux": _linux,
}
