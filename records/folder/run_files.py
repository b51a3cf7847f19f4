"""The files in a run folder: their names, what their values must be, and how they are read and written.

Each value of a record must have its declared type; a damaged one is told and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from ...core.files import Count, read_record, read_small_file, usable_entries, write_text
from ...core.jobs import Event, EvidenceMeasured, ExamAsked, RecallMeasured, SampleGenerated, event_file
from ...core.readable import readable
from ...train_utils import plural

LOG = "training_log.json"
GRAPH = "training_graph.json"
GRAPH_IMAGE = "training_graph.png"
PARAMETERS = "training_parameters.json"
TRAINING_PROMPT = "training_prompt.json"
DATA_SAMPLE = "train_dataset_sample.json"
SAMPLES = "samples.jsonl"
REPORT = "report.html"
NOTES = "notes.txt"
RECALL = "recall.json"
EVIDENCE = "evidence.json"
EXAM = "exam.json"
PAIRS = "pairs.json"
EVENTS = event_file.EVENTS
# Written anew when a run is resumed; the graph is continued instead.
RECORDS = (LOG, PARAMETERS, DATA_SAMPLE, TRAINING_PROMPT, SAMPLES, REPORT, RECALL, EVIDENCE, EXAM, PAIRS, EVENTS)
# Nothing else in a run folder is ever thinned or removed, except for checkpoints and backups.
RUN_FILES = (*RECORDS, GRAPH, GRAPH_IMAGE, NOTES)
# Its presence marks a checkpoint as ours and complete.
STATE = "run_state.json"
JOURNAL = ".journal.json"

BACKUP_FOLDER = "backup"
REPLACED_PREFIX = "Backup-"
BEST_SUFFIX, MANUAL_SUFFIX = "-best", "-user"
# Suffix of folder names that neither the webui nor we list.
HIDDEN_SUFFIX = "-np"

MAX_DAMAGE_SHOWN = 3
# The keys of training_log.json that other programs read, such as the webui.
FIRST_KEYS = (
    *("base_model_name", "base_model_class", "base_loaded_in_4bit", "base_loaded_in_8bit", "projections"),
    *("loss", "learning_rate", "epoch", "current_steps"),
)


def is_hidden(folder: Path) -> bool:
    return folder.name.endswith(HIDDEN_SUFFIX)


def replaced_folders(folder: Path) -> list[Path]:
    """Return the backups of what the run replaced in this folder."""
    return [path for path in usable_entries(folder) if path.name.startswith(REPLACED_PREFIX) and path.is_dir()]


def run_folder_of(checkpoint: Path) -> Path:
    """Return the run folder of a checkpoint or a timed backup."""
    return checkpoint.parent.parent if checkpoint.parent.name == BACKUP_FOLDER else checkpoint.parent


class LiveChange(TypedDict):
    """Live settings that the user changed after a step."""

    step: Count
    before: dict[str, Any]
    after: dict[str, Any]


class RunLog(TypedDict, total=False):
    """training_log.json, by the values that are read; how a run went is written with more."""

    base_model_name: str | None
    loaded_as: str | None
    method: str | None
    device: str | None
    current_steps: Count | None
    kept_step: Count | None
    steps: Count | None
    loss: float | None
    smoothed_loss: float | None
    learning_rate: float | None
    epoch: float | None
    ended: Literal["finished", "stopped", "failed"] | None  # None if it crashed
    ended_because: str | None
    kept_after_crash: bool
    ended_at: str | None
    verdict: Mapping[str, Any] | None
    recall: list[RecallMeasured]
    live_changes: list[LiveChange]
    speeds: dict[str, float]
    data: Mapping[str, Any]  # the report of Check


class _GraphPlace(TypedDict):
    current_steps: Count


class GraphRecord(_GraphPlace, total=False):
    """An entry of training_graph.json: a step, or an evaluation after it."""

    epoch: float | None
    loss: float | None
    smoothed_loss: float | None
    learning_rate: float | None
    gradient_norm: float | None
    tokens: Count | None
    seconds: float | None
    loss_by_source: dict[str, float | None] | None
    phase: str
    examples: Count
    preferences: dict[str, float | None] | None
    eval_loss: float | None
    eval_perplexity: float | None
    eval_accuracy: float | None
    eval_by_source: dict[str, float | None] | None
    eval_tokens: Count
    eval_seconds: float
    eval_pairs: Count
    context_gain: float | None
    why: str
    kept_aside: str


class StateRecord(TypedDict, total=False):
    """run_state.json, by what is read of it beside a resume."""

    graph: list[GraphRecord]


def read_log(folder: Path, damage: list[str] | None = None) -> RunLog:
    return read_record(folder / LOG, RunLog, RunLog(), damage)


def log_entry(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put the keys that other programs read first, then all others."""
    return {**{k: values.get(k) for k in FIRST_KEYS}, **{k: v for k, v in values.items() if k not in FIRST_KEYS}}


def trained_steps(log: RunLog) -> int:
    """Return the steps that the LoRA of a run was trained for: up to its best step, if that was kept."""
    return log.get("kept_step") or log.get("current_steps") or 0


def read_graph(folder: Path, damage: list[str] | None = None) -> list[GraphRecord]:
    return read_record(folder / GRAPH, list[GraphRecord], [], damage)


def read_recalls(folder: Path, damage: list[str] | None = None) -> list[RecallMeasured]:
    """Read the recall as it was measured last: after the run if it was, otherwise up to the step that was kept."""
    log = read_log(folder, damage)
    during = [event for event in log.get("recall", []) if event.step <= trained_steps(log)]
    return read_record(folder / RECALL, list[RecallMeasured], [], damage) or during


def read_evidence(folder: Path, damage: list[str] | None = None) -> EvidenceMeasured | None:
    """Read what was measured of a finished LoRA; None if it was never tested."""
    return next(iter(read_record(folder / EVIDENCE, list[EvidenceMeasured], [], damage)), None)


def read_exams(folder: Path) -> list[ExamAsked]:
    """Read what a LoRA had right in exams, the last one at the end."""
    return read_record(folder / EXAM, list[ExamAsked], [])


def read_state(checkpoint: Path) -> StateRecord:
    """Read what a checkpoint says about its run; a resume reads it with `load_run_state`, which refuses damage."""
    return read_record(checkpoint / STATE, StateRecord, StateRecord())


def read_parameters(folder: Path) -> dict[str, Any]:
    """Read the settings of a run as saved; parsing checks each by the declaration of its setting."""
    return read_record(folder / PARAMETERS, dict[str, Any], {})


def describe_damage(damage: Sequence[str]) -> Iterator[str]:
    """Say which values of the records are damaged, the first few of them."""
    sentences = list(dict.fromkeys(damage))  # some records are read several times
    for sentence in sentences[:MAX_DAMAGE_SHOWN]:
        yield readable(f"Ignored invalid data: {sentence}")
    if len(sentences) > MAX_DAMAGE_SHOWN:
        rest = len(sentences) - MAX_DAMAGE_SHOWN
        yield f"{rest} more invalid {plural(rest, 'value was', 'values were')} ignored."


def read_note(folder: Path) -> str:
    """Read the user's note, or return an empty string."""
    try:
        return read_small_file(folder / NOTES).decode("utf-8-sig").strip()
    except (OSError, ValueError):
        return ""


def write_note(folder: Path, text: str) -> None:
    """Replace the note; an empty text removes it."""
    if text.strip():
        write_text(folder / NOTES, text.strip() + "\n")
    else:
        (folder / NOTES).unlink(missing_ok=True)


def read_samples(folder: Path) -> list[SampleGenerated]:
    """Read the samples of a run folder in their order; skip lines that cannot be read."""
    events = list[Event | None]()
    with suppress(OSError):
        events += map(event_file.parse_event, (folder / SAMPLES).read_bytes().splitlines())
    return [event for event in events if isinstance(event, SampleGenerated)]


def write_samples(folder: Path, samples: Iterable[SampleGenerated]) -> None:
    """Write all samples, replacing the file. Each is a line as in the file of events."""
    write_text(folder / SAMPLES, "".join(map(event_file.event_line, samples)))


@dataclass(frozen=True)
class TrainingPrompt:
    """training_prompt.json: the text before and after each message, unless the LoRA learned raw text."""

    kind: str = ""  # empty if it is unknown
    before: str = ""
    after: str = ""
    starts_with_bos: bool = False
    example: str = ""
    message: str = ""  # of an example

    @property
    def has_messages(self) -> bool:
        return self.kind in ("chat", "format")


def read_training_prompt(folder: Path) -> TrainingPrompt:
    """Read the prompt of a LoRA or a checkpoint of it; an empty one if it is unknown."""
    places = (folder, folder.parent, folder.parent.parent)
    path = next((p for place in places if (p := place / TRAINING_PROMPT).is_file()), folder / TRAINING_PROMPT)
    return read_record(path, TrainingPrompt, TrainingPrompt())
