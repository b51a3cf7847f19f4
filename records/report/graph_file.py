"""training_graph.json: steps and evaluations as its entries, and read back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from ...core.jobs import EvaluationDone, Step

BestBy = Literal["loss", "accuracy"]
GraphEntry = Mapping[str, Any]


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
            return [_as_entry(item) for item in self._items[index]]
        return _as_entry(self._items[index])


def _as_entry(item: GraphEntry | Step | EvaluationDone) -> GraphEntry:
    return graph_entry(item) if isinstance(item, (Step, EvaluationDone)) else item


def graph_entry(event: Step | EvaluationDone) -> dict[str, Any]:
    """Return a step or an evaluation as an entry."""
    place = {"current_steps": event.step}
    return place | (_step_values(event) if isinstance(event, Step) else _evaluation_values(event))


def _step_values(step: Step) -> dict[str, Any]:
    return {
        "loss": step.loss,
        "smoothed_loss": step.smoothed,
        "learning_rate": step.learning_rate,
        "epoch": round(step.epoch, 4),
        "gradient_norm": step.gradient_norm,
        "tokens": step.tokens,
        "seconds": round(step.seconds, 3),
        **({"loss_by_source": dict(step.by_source)} if step.by_source else {}),
        **({"phase": step.phase} if step.phase else {}),
        **({"examples": step.examples} if step.phase and step.examples else {}),
    }


def _evaluation_values(evaluated: EvaluationDone) -> dict[str, Any]:
    return {
        "epoch": round(evaluated.epoch, 4),
        "eval_loss": evaluated.loss,
        "eval_perplexity": evaluated.perplexity,
        "eval_accuracy": evaluated.accuracy,
        "eval_by_source": dict(evaluated.by_source),
        "eval_tokens": evaluated.tokens,
        "eval_seconds": round(evaluated.seconds, 3),
        "context_gain": evaluated.context_gain,
        "why": evaluated.why,
        "kept_aside": evaluated.validation_key,
    }


def read_steps(graph: Iterable[GraphEntry]) -> list[Step]:
    """Read the steps; other programs and older versions store fewer values, and damaged ones are left out."""
    return [_step(entry) for entry in graph if "loss" in entry]


def _step(entry: GraphEntry) -> Step:
    loss = _number(entry["loss"])
    return Step(
        at=0.0,
        step=int(entry["current_steps"]),
        epoch=float(entry.get("epoch") or 0),
        loss=loss,
        smoothed=_number(entry.get("smoothed_loss", loss)),
        learning_rate=float(entry.get("learning_rate") or 0),
        gradient_norm=entry.get("gradient_norm"),
        tokens=int(entry.get("tokens") or 0),
        seconds=float(entry.get("seconds") or 0),
        by_source=_numbers(entry.get("loss_by_source")),
        phase=entry.get("phase", ""),
        examples=int(entry.get("examples") or 0),
    )


def read_evaluations(graph: Iterable[GraphEntry], validation_key: str = "") -> list[EvaluationDone]:
    """Read the evaluations; with `validation_key` only those on this split, since others do not compare."""
    evaluations = [_evaluation(entry) for entry in graph if "eval_loss" in entry]
    return [e for e in evaluations if not validation_key or e.validation_key == validation_key]


def _evaluation(entry: GraphEntry) -> EvaluationDone:
    return EvaluationDone(
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


def _number(value: float | None) -> float:
    """Read a number; NaN is stored as null."""
    return math.nan if value is None else value


def _numbers(values: Mapping[str, float | None] | None) -> dict[str, float]:
    return {name: _number(value) for name, value in (values or {}).items()}


def best_evaluation(evaluations: Sequence[EvaluationDone], by: BestBy = "loss") -> EvaluationDone | None:
    """Return the evaluation with the lowest loss, or with the highest accuracy and then the lowest loss.

    The first of equal ones; None if no loss is finite.
    """
    finite = [e for e in evaluations if math.isfinite(e.loss)]
    if by == "accuracy":
        return max(finite, key=lambda e: (e.accuracy, -e.loss), default=None)
    return min(finite, key=lambda e: e.loss, default=None)
