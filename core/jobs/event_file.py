"""events.jsonl: the events of a run on the disk, one JSON object a line, for everyone who follows the run.

Until the first step is done, the file lies in the folder for running runs, since nothing is written under `loras/`
before. A resumed run continues a copy of its file, so that a reader's place in it stays right when it moves.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

from .. import files
from . import events as kinds
from .events import Event, RunPlanned

EVENTS = "events.jsonl"
TAIL_BYTES = 65_536  # some 200 steps
OF_A_STEP = (
    *(kinds.Step, kinds.EvaluationDone, kinds.RecallMeasured, kinds.ExamAsked),
    *(kinds.SampleGenerated, kinds.CheckpointSaved),
)
# The kinds of events by their names in the file: Step is 'step', RunPlanned is 'run_planned'.
KINDS: Mapping[str, type[Event]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): kind
    for name, kind in vars(kinds).items()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}
NAMES = {kind: name for name, kind in KINDS.items()}


def event_line(event: Event) -> str:
    values = asdict(event)
    if isinstance(event, RunPlanned):
        del values["earlier"]  # see `events_before`
    return files.dump_json({"event": NAMES[type(event)], **values}) + "\n"


def parse_event(line: bytes) -> Event | None:
    """Read a line; None for one that is damaged, or of a kind that this version does not know."""
    with suppress(ValueError, RecursionError):
        values = json.loads(line)
        kind = KINDS.get(str(values.pop("event", ""))) if isinstance(values, dict) else None
        if kind is not None:
            unknown: dict[str, Any] = {}
            if None in values.values():  # JSON has no NaN: a loss that is none was written as null
                hints = get_type_hints(kind)
                unknown = {
                    key: math.nan for key, value in values.items() if value is None and hints.get(key) is float
                }
            event: Event = files.check_record({**values, **dict.fromkeys(unknown, 0.0)}, kind, EVENTS, [])
            return replace(event, **unknown) if unknown else event
    return None


class EventFile:
    """Writes the events of a run: an error of the disk never ends the run, and its lines are tried again."""

    def __init__(self, running: Path, folder: Path, *, continues: bool, is_followed: bool) -> None:
        """`running` is the folder until the first step is done, `folder` that of the run afterwards."""
        self._running, self._folder, self._is_followed = running / EVENTS, folder / EVENTS, is_followed
        self._path = self._running
        self._waiting, self._size, self._is_torn, self._is_closed = "", 0, False, False
        with suppress(OSError):
            running.mkdir(parents=True, exist_ok=True)
            if continues and self._folder.is_file():
                shutil.copyfile(self._folder, self._running)
                self._size = self._running.stat().st_size
                with self._running.open("rb") as stream:  # a kill may have torn its last line
                    self._is_torn = self._size > 0 and stream.seek(-1, 2) >= 0 and stream.read() != b"\n"

    def append(self, event: Event) -> None:
        # A discarded run takes its file along: what follows is written where the run began, if somebody reads it.
        if self._path is self._folder and _is_gone(self._folder, self._size):
            self._path, self._size, self._is_closed = self._running, 0, not self._is_followed
        if self._is_closed:
            return
        self._waiting += event_line(event)
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            data = ("\n" * self._is_torn + self._waiting).encode("utf-8", "replace")
            with self._path.open("ab") as stream:
                self._is_torn = True  # until all of it is written
                stream.write(data)
            self._waiting, self._is_torn, self._size = "", False, self._size + len(data)
            if isinstance(event, kinds.Step) and self._path is self._running and self._folder.parent.is_dir():
                # Not moved by renaming: the two folders may lie on different disks.
                with files.atomic_write(self._folder) as temporary:
                    shutil.copyfile(self._running, temporary)
                self._path = self._folder
                files.with_retries(self._running.unlink)  # readers look for this file first

    def close(self) -> None:
        """Remove the events of a run that has left nothing, unless another process waits for its end."""
        if self._path is self._running and not self._is_followed:
            self._is_closed = True
            shutil.rmtree(self._running.parent, ignore_errors=True)
        with suppress(OSError):
            self._running.parent.parent.rmdir()  # if no other run is in progress


def _is_gone(path: Path, size: int) -> bool:
    """Whether a file is not there, or a shorter one is; a longer one ends with a line that a full disk has cut."""
    try:
        return path.stat().st_size < size
    except FileNotFoundError:
        return True
    except OSError:  # a disk that does not answer now
        return False


class EventReader:
    """Reads the events of a run as they are written, from any process; a torn last line waits for its end."""

    def __init__(self, running: Path, folder: Path) -> None:
        self._paths = (running / EVENTS, folder / EVENTS)
        self._position = 0

    def read(self) -> list[Event]:
        """The events since the last call."""
        data = b""
        for path in self._paths:
            # Opened each time: on Windows, a file that a reader holds open could not be moved.
            with suppress(OSError), path.open("rb") as stream:
                if stream.seek(0, 2) < self._position:  # another file, since the run was discarded
                    self._position = 0
                stream.seek(self._position)
                data = stream.read()
                break
        lines = data[: data.rfind(b"\n") + 1]
        self._position += len(lines)
        return [event for line in lines.splitlines() if (event := parse_event(line))]


def read_events(folder: Path) -> list[Event]:
    """All events in a run's folder; none if it has no such file."""
    return EventReader(folder, folder).read()


def events_before(events: Iterable[Event], first_step: int) -> tuple[Event, ...]:
    """The steps, measurements, samples and checkpoints of a run that resumes after this step."""
    known: list[Any] = []
    for event in events:
        if isinstance(event, RunPlanned):  # it went back to this step then
            known = [earlier for earlier in known if earlier.step <= event.first_step]
        elif isinstance(event, OF_A_STEP):
            known.append(event)
    return tuple(event for event in known if event.step <= first_step)


def read_first_and_last(folder: Path) -> list[Event]:
    """The events up to the first step of a run and the last ones, some 200 steps, without those in between."""
    with suppress(OSError), (folder / EVENTS).open("rb") as stream:
        lines = list[bytes]()
        while (line := stream.readline()) and not isinstance(parse_event(line), kinds.Step):
            lines.append(line)
        begin, end = stream.tell(), stream.seek(0, 2)
        stream.seek(max(begin, end - TAIL_BYTES))
        last = stream.read().splitlines()
        lines += [line, *last[end - TAIL_BYTES > begin :]]  # without the line that this has cut
        return [event for line in lines if (event := parse_event(line))]
    return []
