"""training_graph.json: its entries of steps and evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ...core.jobs import Evaluated
from .curve_svg import AsideLoss, Point

By = Literal["loss", "accuracy"]
Entry = Mapping[str, Any]


def entry(evaluated: Evaluated, kept_aside: str) -> dict[str, Any]:
    """Return the entry of an evaluation; `kept_aside` is a fingerprint of the validation split."""
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
        "kept_aside": kept_aside,
    }


def steps_of(graph: Iterable[Entry]) -> list[Entry]:
    """Return the entries of steps, without those of evaluations."""
    return [entry for entry in graph if "loss" in entry]


def points_of(graph: Iterable[Entry]) -> list[Point]:
    """Return the steps as points of the curve; a step without a smoothed loss uses its loss."""
    return [_point(entry) for entry in steps_of(graph)]


def _point(entry: Entry) -> Point:
    loss, rate = number(entry["loss"]), entry.get("learning_rate")
    return Point(int(entry["current_steps"]), loss, number(entry.get("smoothed_loss", loss)), float(rate or 0))


def aside_losses(graph: Iterable[Entry]) -> list[AsideLoss]:
    """Return the evaluations as points of the curve."""
    return [
        AsideLoss(entry["current_steps"], number(entry["eval_loss"])) for entry in graph if "eval_loss" in entry
    ]


def evaluations_of(graph: Iterable[Entry], kept_aside: str = "") -> list[Evaluated]:
    """Read the evaluations; with `kept_aside` only those on this validation split, since others do not compare."""
    entries = (entry for entry in graph if "eval_loss" in entry)
    return [_evaluated(entry) for entry in entries if not kept_aside or entry["kept_aside"] == kept_aside]


def _evaluated(entry: Entry) -> Evaluated:
    """Read an evaluation, in which NaN is stored as null."""
    return Evaluated(
        step=entry["current_steps"],
        epoch=entry["epoch"],
        why=entry["why"],
        loss=number(entry["eval_loss"]),
        perplexity=number(entry["eval_perplexity"]),
        accuracy=number(entry["eval_accuracy"]),
        tokens=entry["eval_tokens"],
        seconds=entry["eval_seconds"],
        by_source={name: number(loss) for name, loss in entry["eval_by_source"].items()},
        context_gain=entry["context_gain"],
    )


def number(value: float | None) -> float:
    """Convert a number from a file, in which NaN is stored as null."""
    return math.nan if value is None else value


def best_of(evaluations: Sequence[Evaluated], by: By = "loss") -> Evaluated | None:
    """Return the evaluation with the lowest loss, or with the highest accuracy and then the lowest loss.

    The first of equal ones; None if no loss is finite.
    """
    finite = [e for e in evaluations if math.isfinite(e.loss)]
    if by == "accuracy":
        return max(finite, key=lambda e: (e.accuracy, -e.loss), default=None)
    return min(finite, key=lambda e: e.loss, default=None)
