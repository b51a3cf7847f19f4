"""Jobs on the model: the session that runs them, their events and control, and their console output."""

from __future__ import annotations

from . import console
from .auto_start import AutoStart
from .console import EventPrinter
from .control import Request, RunControl, TimeLimit
from .eta import EtaEstimator
from .event_text import event_text, probe_extra_times
from .events import (
    Advice,
    Answer,
    CheckpointSaved,
    DownloadProgress,
    EvaluationDone,
    Event,
    EventLog,
    JobEnded,
    LibraryMessage,
    LiveSettingsChanged,
    MachineUse,
    Note,
    Outcome,
    PlanChanged,
    ProbeDone,
    RunPlanned,
    SampleGenerated,
    Stage,
    StartedFromQueue,
    Step,
    TimeLimited,
    Trigger,
    peak_memory_of,
)
from .evidence_event import (
    Copying,
    Count,
    EvidenceMeasured,
    Habits,
    TextLoss,
    evidence_table,
    evidence_verdict,
)
from .job import Job, JobFn, JobKind
from .perplexity_event import PerplexityMeasured, RowScores, Segment
from .phase_event import PhaseFigures, PhasesMeasured, measure_phases, phase_table
from .progress import ProgressReader, RunProgress, progress_text
from .recall_event import (
    FORGOT_LITTLE,
    FORGOT_MUCH,
    PartRecall,
    RecallFigures,
    RecallMeasured,
    part_table,
    recall_table,
    recall_text,
)
from .session import SESSION, Session

__all__ = [
    "FORGOT_LITTLE",
    "FORGOT_MUCH",
    "SESSION",
    "Advice",
    "Answer",
    "AutoStart",
    "CheckpointSaved",
    "Copying",
    "Count",
    "DownloadProgress",
    "EtaEstimator",
    "EvaluationDone",
    "Event",
    "EventLog",
    "EventPrinter",
    "EvidenceMeasured",
    "Habits",
    "Job",
    "JobEnded",
    "JobFn",
    "JobKind",
    "LibraryMessage",
    "LiveSettingsChanged",
    "MachineUse",
    "Note",
    "Outcome",
    "PartRecall",
    "PerplexityMeasured",
    "PhaseFigures",
    "PhasesMeasured",
    "PlanChanged",
    "ProbeDone",
    "ProgressReader",
    "RecallFigures",
    "RecallMeasured",
    "Request",
    "RowScores",
    "RunControl",
    "RunPlanned",
    "RunProgress",
    "SampleGenerated",
    "Segment",
    "Session",
    "Stage",
    "StartedFromQueue",
    "Step",
    "TextLoss",
    "TimeLimit",
    "TimeLimited",
    "Trigger",
    "console",
    "event_text",
    "evidence_table",
    "evidence_verdict",
    "measure_phases",
    "part_table",
    "peak_memory_of",
    "phase_table",
    "probe_extra_times",
    "progress_text",
    "recall_table",
    "recall_text",
]
