"""The records of a run as they are read back: what each value must be, declared once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from ...core.files import Count, read_record
from ...core.jobs import EvidenceMeasured, RecallMeasured
from ...core.readable import readable
from ...train_utils import plural
from .filenames import EVIDENCE, GRAPH, LOG, PARAMETERS, RECALL, STATE, TRAINING_PROMPT

MAX_DAMAGE_SHOWN = 3
Ended = Literal["finished", "stopped", "failed"]
"""How a run ended, if it did not crash."""


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
    ended: Ended | None
    ended_because: str | None
    ended_at: str | None
    verdict: Mapping[str, Any] | None
    recall: list[RecallMeasured]
    live_changes: list[LiveChange]
    speeds: dict[str, float]


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
    eval_loss: float | None
    eval_perplexity: float | None
    eval_accuracy: float | None
    eval_by_source: dict[str, float | None] | None
    eval_tokens: Count
    eval_seconds: float
    context_gain: float | None
    why: str
    kept_aside: str


class StateSummary(TypedDict, total=False):
    """run_state.json without its curve, for a list."""

    step: Count
    smoothed: float | None


class StateRecord(StateSummary, total=False):
    """run_state.json with its curve."""

    graph: list[GraphRecord]


class PromptRecord(TypedDict, total=False):
    """training_prompt.json"""

    kind: str
    before: str
    after: str
    starts_with_bos: bool
    example: str


def read_log(folder: Path, damage: list[str] | None = None) -> RunLog:
    empty: RunLog = {}
    return read_record(folder / LOG, RunLog, empty, damage)


def trained_steps(log: RunLog) -> int:
    """Return the steps that the LoRA of a run was trained for: up to its best step, if that was kept."""
    return log.get("kept_step") or log.get("current_steps") or 0


def read_graph(folder: Path, damage: list[str] | None = None) -> list[GraphRecord]:
    return read_record(folder / GRAPH, list[GraphRecord], [], damage)


def read_recalls(folder: Path, damage: list[str] | None = None) -> list[RecallMeasured]:
    """Read the recall as it was measured last: after the run if it was, otherwise during it."""
    afterwards = read_record(folder / RECALL, list[RecallMeasured], [], damage)
    return afterwards or read_log(folder, damage).get("recall", [])


def read_evidence(folder: Path, damage: list[str] | None = None) -> EvidenceMeasured | None:
    """Read what was measured of a finished LoRA; None if it was never tested."""
    return next(iter(read_record(folder / EVIDENCE, list[EvidenceMeasured], [], damage)), None)


def read_state(checkpoint: Path, damage: list[str] | None = None) -> StateRecord:
    """Read what a checkpoint says about its run; a resume reads it with `load_run_state`, which refuses damage."""
    empty: StateRecord = {}
    return read_record(checkpoint / STATE, StateRecord, empty, damage)


def read_summary(checkpoint: Path, damage: list[str] | None = None) -> StateSummary:
    empty: StateSummary = {}
    return read_record(checkpoint / STATE, StateSummary, empty, damage)


def read_parameters(folder: Path, damage: list[str] | None = None) -> dict[str, Any]:
    """Read the settings of a run as saved; parsing checks each by the declaration of its setting."""
    return read_record(folder / PARAMETERS, dict[str, Any], {}, damage)


def read_prompt(folder: Path) -> PromptRecord:
    empty: PromptRecord = {}
    return read_record(folder / TRAINING_PROMPT, PromptRecord, empty)


def describe_damage(damage: Sequence[str]) -> Iterator[str]:
    """Say which values of the records are damaged, the first few of them."""
    sentences = list(dict.fromkeys(damage))  # some records are read several times
    for sentence in sentences[:MAX_DAMAGE_SHOWN]:
        yield readable(f"Ignored invalid data: {sentence}")
    if len(sentences) > MAX_DAMAGE_SHOWN:
        rest = len(sentences) - MAX_DAMAGE_SHOWN
        yield f"{rest} more invalid {plural(rest, 'value was', 'values were')} ignored."
