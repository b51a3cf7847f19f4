"""training_graph.json: steps and evaluations as its entries, read back, and how fast a run was by them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

from ...core.files import usable_entries
from ...core.host import ModelCard
from ...core.jobs import EvaluationDone, Event, RecallMeasured, SampleGenerated, Step
from ...train_utils import FORWARD_SHARE, duration
from ..folder import is_hidden, read_graph, read_log

GraphEntry = Mapping[str, Any]
WARMUP_STEPS = 5  # slower than the rest: the GPU's memory is claimed, kernels are chosen, files are read first
MIN_STEPS = 10  # after them: single steps differ by a third, because their examples have other lengths
TEST = "use 'Test one step' under Memory and speed."
UNKNOWN = f"Time: there is no earlier run with this model to estimate from. To estimate the time now, {TEST}"


class RunGraph(Sequence[GraphEntry]):
    """The graph of a run in progress. Steps are kept as events, which the event log has anyway."""

    def __init__(self, earlier: Iterable[GraphEntry] = ()) -> None:
        """`earlier` are the entries of a resumed run."""
        self._items: list[GraphEntry | Step | EvaluationDone] = [*earlier]

    def append(self, event: Step | EvaluationDone) -> None:
        self._items.append(event)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> GraphEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GraphEntry]: ...
    def __getitem__(self, index: int | slice) -> GraphEntry | Sequence[GraphEntry]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        item = self._items[index]
        return graph_entry(item) if isinstance(item, (Step, EvaluationDone)) else item


def graph_entry(event: Step | EvaluationDone) -> dict[str, Any]:
    """Return a step or an evaluation as an entry."""
    if isinstance(event, Step):
        entry: dict[str, Any] = {
            "current_steps": event.step,
            "loss": event.loss,
            "smoothed_loss": event.smoothed,
            "learning_rate": event.learning_rate,
            "epoch": round(event.epoch, 4),
            "gradient_norm": event.gradient_norm,
            "tokens": event.tokens,
            "seconds": round(event.seconds, 3),
        }
        # Only where there are several datasets or phases: a long run has tens of thousands of entries.
        if event.by_source:
            entry["loss_by_source"] = dict(event.by_source)
        if event.phase:
            entry |= {"phase": event.phase, **({"examples": event.examples} if event.examples else {})}
        return entry
    return {
        "current_steps": event.step,
        "epoch": round(event.epoch, 4),
        "eval_loss": event.loss,
        "eval_perplexity": event.perplexity,
        "eval_accuracy": event.accuracy,
        "eval_by_source": dict(event.by_source),
        "eval_tokens": event.tokens,
        "eval_seconds": round(event.seconds, 3),
        "context_gain": event.context_gain,
        "why": event.why,
        "kept_aside": event.validation_key,
    }


def read_steps(graph: Iterable[GraphEntry]) -> list[Step]:
    """Read the steps; the original extension stores fewer values, and damaged ones are left out."""
    return [
        Step(
            at=0.0,
            step=int(entry["current_steps"]),
            epoch=float(entry.get("epoch") or 0),
            loss=_number(entry["loss"]),
            smoothed=_number(entry.get("smoothed_loss", entry["loss"])),
            learning_rate=float(entry.get("learning_rate") or 0),
            gradient_norm=entry.get("gradient_norm"),
            tokens=int(entry.get("tokens") or 0),
            seconds=float(entry.get("seconds") or 0),
            by_source=_numbers(entry.get("loss_by_source")),
            phase=entry.get("phase", ""),
            examples=int(entry.get("examples") or 0),
        )
        for entry in graph
        if "loss" in entry
    ]


def read_evaluations(graph: Iterable[GraphEntry], validation_key: str = "") -> list[EvaluationDone]:
    """Read the evaluations; with `validation_key` only those on this split, since others do not compare."""
    return [
        EvaluationDone(
            at=0.0,
            step=entry["current_steps"],
            epoch=entry.get("epoch") or 0.0,
            why=entry.get("why", "planned"),
            loss=_number(entry["eval_loss"]),
            perplexity=_number(entry.get("eval_perplexity")),
            accuracy=_number(entry.get("eval_accuracy")),
            tokens=entry.get("eval_tokens", 0),
            seconds=entry.get("eval_seconds", 0.0),
            by_source=_numbers(entry.get("eval_by_source")),
            context_gain=entry.get("context_gain"),
            validation_key=entry.get("kept_aside", ""),
        )
        for entry in graph
        if "eval_loss" in entry and validation_key in ("", entry.get("kept_aside", ""))
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else value  # JSON has no NaN: it is stored as null


def _numbers(values: Mapping[str, float | None] | None) -> dict[str, float]:
    return {name: _number(value) for name, value in (values or {}).items()}


def best_evaluation(
    evaluations: Sequence[EvaluationDone], by: Literal["loss", "accuracy"] = "loss"
) -> EvaluationDone | None:
    """Return the evaluation with the lowest loss, or with the highest accuracy and then the lowest loss.

    The first of equal ones; None if no loss is finite.
    """
    finite = [e for e in evaluations if math.isfinite(e.loss)]
    if by == "accuracy":
        return max(finite, key=lambda e: (e.accuracy, -e.loss), default=None)
    return min(finite, key=lambda e: e.loss, default=None)


class Workload(NamedTuple):
    """What takes time in a run: tokens to train on, tokens that are only read, and replies to sample prompts."""

    trained: float
    read: float
    samples: int


def estimate_time(work: Workload, card: ModelCard, method: str, runs_folder: Path) -> str:
    """An estimate by the last run with the same model, loading and method, or without one, how to get it."""
    runs = [(folder, read_log(folder)) for folder in usable_entries(runs_folder) if not is_hidden(folder)]
    for folder, log in sorted(runs, key=lambda run: str(run[1].get("ended_at")), reverse=True):
        if tuple(map(log.get, ("base_model_name", "loaded_as", "method"))) != (card.name, card.loading, method):
            continue
        steps = [s for s in read_steps(read_graph(folder)) if s.tokens and s.seconds][WARMUP_STEPS:]
        if len(steps) < MIN_STEPS:
            continue
        speed = sum(s.tokens for s in steps) / sum(s.seconds for s in steps)
        speeds = log.get("speeds", {})
        reading = speeds.get("tokens_read_per_second") or speed / FORWARD_SHARE
        sample = speeds.get("seconds_per_sample") or 0.0
        times = {
            "training": work.trained / speed,
            "evaluations and recall": work.read / reading,
            "samples": work.samples * sample,
        }
        parts = ", ".join(f"{part} {duration(seconds)}" for part, seconds in times.items() if seconds)
        missing = " The time for samples is not known yet." if work.samples and not sample else ""
        return (
            f"Time: about {duration(sum(times.values()))} ({parts}), if this run is as fast as {folder.name} was "
            f"with this model ({log.get('device')}, {speed:,.0f} tokens per second).{missing} To measure the "
            f"time instead, {TEST}"
        )
    return UNKNOWN


def measured_speeds(events: Sequence[Event], evaluated: int, recalled: int) -> dict[str, float]:
    """The speeds of a run beside its steps; the numbers are the tokens of an evaluation, and of one of recall."""
    tokens, seconds, samples, speeds = 0, 0.0, list[float](), dict[str, float]()
    for before, event in pairwise(events):
        if isinstance(event, (EvaluationDone, RecallMeasured)):
            tokens += evaluated if isinstance(event, EvaluationDone) else recalled
            seconds += event.seconds
        elif isinstance(event, SampleGenerated):
            samples.append(event.at - before.at)
    if tokens and seconds:
        speeds["tokens_read_per_second"] = tokens / seconds
    if samples:
        speeds["seconds_per_sample"] = sum(samples) / len(samples)
    return speeds
