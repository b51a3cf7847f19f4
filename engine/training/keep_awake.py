"""Keep the machine awake during a run; released even if the run fails or its process dies."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

ES_CONTINUOUS, ES_SYSTEM_REQUIRED = 0x80000000, 0x00000001
HELPER_TIMEOUT_SECONDS = 3.0  # timeout for a helper process to start, and to end


class _CannotError(Exception):
    """This machine cannot be kept awake; the message says why."""


@contextmanager
def prevent_sleep(log_note: Callable[[str], object], *, platform: str = sys.platform) -> Iterator[None]:
    """Prevent sleep within this context; if that is not possible, log one sentence about it."""
    release: Callable[[], object] | None = None
    try:
        release = _inhibit_sleep(platform)
    except _CannotError as error:
        log_note(
            "The computer may go to sleep during the run, because Training PRO can't prevent it on this system. "
            f"Turn off sleep in the computer's settings. ({error})"
        )
    try:
        yield
    finally:
        if release is not None:
            release()


def _inhibit_sleep(platform: str) -> Callable[[], object]:
    """Inhibit sleep, and return what releases it."""
    if platform == "win32":  # a state of this thread, the run's own; Windows releases it when the thread ends
        execution_state = ctypes.windll.kernel32.SetThreadExecutionState  # type: ignore[attr-defined]
        if not execution_state(ES_CONTINUOUS | ES_SYSTEM_REQUIRED):
            raise _CannotError("Windows refused the request")
        return partial(execution_state, ES_CONTINUOUS)
    if platform == "darwin":  # caffeinate ends with our process, however that ends
        return partial(_end_helper, _start_helper(["caffeinate", "-i", "-w", str(os.getpid())]))
    if platform != "linux":
        raise _CannotError("this system is not supported")
    # systemd-inhibit holds the lock while its `cat` reads from our pipe, which closes with our process.
    options = [
        "--what=idle:sleep",
        "--mode=block",
        "--who=Training PRO",
        "--why=A training run is in progress",
        "sh",
        "-c",
    ]
    helper = _start_helper(["systemd-inhibit", *options, "echo held; exec cat"])
    try:
        _wait_until_held(helper)
    except _CannotError:
        _end_helper(helper)
        raise
    return partial(_end_helper, helper)


def _start_helper(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a helper without a terminal, so that it cannot ask for a password."""
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise _CannotError(f"{command[0]} can't be started ({error.strerror})") from error


def _wait_until_held(helper: subprocess.Popen[bytes]) -> None:
    assert helper.stdout is not None and helper.stderr is not None
    ready, _, _ = select.select([helper.stdout], [], [], HELPER_TIMEOUT_SECONDS)
    if not ready:
        raise _CannotError("the system did not respond")
    if not helper.stdout.readline():
        reason = helper.stderr.read().decode(errors="replace").strip().partition("\n")[0]
        raise _CannotError(f"systemd-inhibit said: {reason}" if reason else "the system refused the request")


def _end_helper(helper: subprocess.Popen[bytes]) -> None:
    helper.terminate()
    try:
        helper.communicate(timeout=HELPER_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.communicate()
