"""Jobs on the model: the session that runs them, their events and control, and their console output."""

from __future__ import annotations

from . import console
from .auto_start import Turns
from .console import Narrator
from .control import RunControl, TimeLimit
from .eta import Pace
from .events import (
    Advice,
    Answer,
    CheckpointSaved,
    Ended,
    Evaluated,
    Event,
    EventLog,
    Fetched,
    FromQueue,
    KnownRow,
    LibraryMessage,
    LiveChanged,
    MachineUse,
    Note,
    Occasion,
    Outcome,
    PerplexityFound,
    Planned,
    Probed,
    Progress,
    Replanned,
    Sampled,
    Stage,
    Stretch,
    TimeLimited,
    most_memory,
)
from .job import Job, Work
from .session import SESSION, Session

__all__ = [
    "SESSION",
    "Advice",
    "Answer",
    "CheckpointSaved",
    "Ended",
    "Evaluated",
    "Event",
    "EventLog",
    "Fetched",
    "FromQueue",
    "Job",
    "KnownRow",
    "LibraryMessage",
    "LiveChanged",
    "MachineUse",
    "Narrator",
    "Note",
    "Occasion",
    "Outcome",
    "Pace",
    "PerplexityFound",
    "Planned",
    "Probed",
    "Progress",
    "Replanned",
    "RunControl",
    "Sampled",
    "Session",
    "Stage",
    "Stretch",
    "TimeLimit",
    "TimeLimited",
    "Turns",
    "Work",
    "console",
    "most_memory",
]
