"""Keep the machine awake during a run; released also when the run fails or its process dies."""

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
HELPER_TIMEOUT_SECONDS = 3.0  # timeout for a helper process to start, and to end

LogFn = Callable[[str], object]


class _CannotError(Exception):
    """This machine cannot be kept awake; the message says why."""


@contextmanager
def prevent_sleep(say: LogFn, *, platform: str = sys.platform) -> Iterator[None]:
    """Prevent sleep within this context; if that is not possible, `say` one sentence about it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_INHIBITORS.get(platform, _unsupported)())
        except _CannotError as error:
            say(f"The machine cannot be kept awake: {error}. It may go to sleep during the run.")
        yield


@contextmanager
def _windows() -> Iterator[None]:
    """Set the state of this thread, the run's own; Windows releases it when the thread ends."""
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
    helper = _start_helper(["caffeinate", "-i", "-w", str(os.getpid())])
    try:
        yield
    finally:
        _end_helper(helper)


@contextmanager
def _linux() -> Iterator[None]:
    """systemd-inhibit holds the lock while its `cat` reads from our pipe, which closes with our process."""
    options = ["--what=idle:sleep", "--mode=block", "--who=Training PRO", "--why=A run goes on", "sh", "-c"]
    helper = _start_helper(["systemd-inhibit", *options, "echo held; exec cat"])
    try:
        _wait_until_held(helper)
        yield
    finally:
        _end_helper(helper)


@contextmanager
def _unsupported() -> Iterator[None]:
    raise _CannotError("no way is known on this system")
    yield


def _start_helper(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a helper without a terminal, so that it cannot ask for a password."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise _CannotError(f"{command[0]} cannot be started ({error.strerror})") from error


def _wait_until_held(helper: subprocess.Popen[bytes]) -> None:
    assert helper.stdout is not None
    assert helper.stderr is not None
    ready, _, _ = select.select([helper.stdout], [], [], HELPER_TIMEOUT_SECONDS)
    if not ready:
        raise _CannotError("the system does not answer")
    if not helper.stdout.readline():
        reason = helper.stderr.read().decode(errors="replace").strip().partition("\n")[0]
        raise _CannotError(reason or "the system refuses it")


def _end_helper(helper: subprocess.Popen[bytes]) -> None:
    helper.terminate()
    try:
        helper.communicate(timeout=HELPER_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.communicate()


_INHIBITORS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "win32": _windows,
    "darwin": _macos,
    "linux": _linux,
}
