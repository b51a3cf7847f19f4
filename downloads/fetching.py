"""A file over HTTP, downloaded from where an earlier download of it was stopped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from ..core.errors import StoppedError, first_line
from ..core.jobs import DownloadMeter, Event, Note

PARTIAL_CONTENT = 206  # HTTP status of an answer that begins where the request asked
# Pauses before retries, which start over whenever data has arrived: half a minute without any ends a download.
RETRY_PAUSES_SECONDS = (1, 2, 4, 8, 16)

Emit = Callable[[Event], object]
IsStopped = Callable[[], bool]
# Asks for a file from this byte on; gives the status of the answer, and its bytes in pieces.
OpenFile = Callable[[int], AbstractContextManager[tuple[int, Iterable[bytes]]]]


def fetch_rest(
    part: Path,
    size: int,
    open_file: OpenFile,
    meter: DownloadMeter,
    may_retry: Callable[[Exception], bool],
    emit: Emit,
    is_stopped: IsStopped,
) -> None:
    """Download what is missing of a file of `size` bytes; a lost connection is retried for a while."""

    def check_stop() -> None:
        if is_stopped():
            raise StoppedError("Stopped.")

    part.parent.mkdir(parents=True, exist_ok=True)
    part.touch()
    pauses = iter(RETRY_PAUSES_SECONDS)
    while (begin := part.stat().st_size) < size:
        try:
            with open_file(begin) as (status, pieces):
                # A server that does not support ranges sends the file from its beginning.
                resumes = begin and status == PARTIAL_CONTENT
                meter.done -= 0 if resumes else begin
                with part.open("ab" if resumes else "wb") as output:
                    for piece in pieces:
                        output.write(piece)
                        check_stop()
                        meter.add(len(piece))
            if part.stat().st_size < size:  # a connection that breaks may look like the end of the file
                raise ConnectionError("It ended early")
        except Exception as error:
            if part.stat().st_size > begin:
                pauses = iter(RETRY_PAUSES_SECONDS)
            pause = next(pauses, None)
            if pause is None or not may_retry(error):
                raise
            reason = first_line(error).rstrip(".")
            emit(Note(text=f"The connection broke ({reason}); trying again in {pause} s."))
            resume_at = time.monotonic() + pause
            while time.monotonic() < resume_at:
                check_stop()
                time.sleep(min(0.1, pause))


def is_intact(part: Path, size: int, sha256: str) -> bool:
    """Whether a file is as large as it should be, and has this hash if it is known."""
    if part.stat().st_size != size:
        return False
    with part.open("rb") as stream:
        return not sha256 or hashlib.file_digest(stream, "sha256").hexdigest() == sha256
