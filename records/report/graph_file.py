"""training_graph.json: its entries of steps and evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ...core.jobs import EvaluationDone
from .curve_svg import Point, ValidationLoss

BestBy = Literal["loss", "accuracy"]
GraphEntry = Mapping[str, Any]


def evaluation_entry(evaluated: EvaluationDone, validation_key: str) -> dict[str, Any]:
    """Return the entry of an evaluation; `validation_key` is a fingerprint of the validation split."""
    return {
        "current_steps": evaluated.step,
        "epoch": round(evaluated.epoch, 4),
        "eval_loss": evaluated.loss,
        "eval_perplexity": evaluated.perplexity,
        "eval_accuracy": evaluated.accuracy,
        "eval_by_source": dict(evaluated.by_source),
        "eval_tokens": evaluated.tokens,
        "eval_seconds": round(evaluated.seconds, 3),
        "context_gain": evaluated.context_gain,
        "why": evaluated.why,
        "kept_aside": validation_key,
    }


def step_entries(graph: Iterable[GraphEntry]) -> list[GraphEntry]:
    """Return the entries of steps, without those of evaluations."""
    return [entry for entry in graph if "loss" in entry]


def step_points(graph: Iterable[GraphEntry]) -> list[Point]:
    """Return the steps as points of the curve; a step without a smoothed loss uses its loss."""
    return [_point(entry) for entry in step_entries(graph)]


def _point(entry: GraphEntry) -> Point:
    loss, rate = number_or_nan(entry["loss"]), entry.get("learning_rate")
    return Point(
        int(entry["current_steps"]), loss, number_or_nan(entry.get("smoothed_loss", loss)), float(rate or 0)
    )


def validation_losses(graph: Iterable[GraphEntry]) -> list[ValidationLoss]:
    """Return the evaluations as points of the curve."""
    return [
        ValidationLoss(entry["current_steps"], number_or_nan(entry["eval_loss"]))
        for entry in graph
        if "eval_loss" in entry
    ]


def read_evaluations(graph: Iterable[GraphEntry], validation_key: str = "") -> list[EvaluationDone]:
    """Read the evaluations; with `validation_key` only those on this split, since others do not compare."""
    entries = (entry for entry in graph if "eval_loss" in entry)
    return [_evaluated(entry) for entry in entries if not validation_key or entry["kept_aside"] == validation_key]


def _evaluated(entry: GraphEntry) -> EvaluationDone:
    """Read an evaluation, in which NaN is stored as null."""
    return EvaluationDone(
        step=entry["current_steps"],
        epoch=entry["epoch"],
        why=entry["why"],
        loss=number_or_nan(entry["eval_loss"]),
        perplexity=number_or_nan(entry["eval_perplexity"]),
        accuracy=number_or_nan(entry["eval_accuracy"]),
        tokens=entry["eval_tokens"],
        seconds=entry["eval_seconds"],
        by_source={name: number_or_nan(loss) for name, loss in entry["eval_by_source"].items()},
        context_gain=entry["context_gain"],
    )


def number_or_nan(value: float | None) -> float:
    """Convert a number from a file, in which NaN is stored as null."""
    return math.nan if value is None else value


def best_evaluation(evaluations: Sequence[EvaluationDone], by: BestBy = "loss") -> EvaluationDone | None:
    """Return the evaluation with the lowest loss, or with the highest accuracy and then the lowest loss.

    The first of equal ones; None if no loss is finite.
    """
    finite = [e for e in evaluations if math.isfinite(e.loss)]
    if by == "accuracy":
        return max(finite, key=lambda e: (e.accuracy, -e.loss), default=None)
    return min(finite, key=lambda e: e.loss, default=None)
