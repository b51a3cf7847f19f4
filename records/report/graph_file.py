"""training_graph.json: steps and evaluations as its entries, read back, and how fast a run was by them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ...core.files import usable_entries
from ...core.host import ModelCard
from ...core.jobs import EvaluationDone, Event, RecallMeasured, SampleGenerated, Step
from ...train_utils import FORWARD_SHARE, duration
from ..folder import read_graph, read_log, run_files

GraphEntry: TypeAlias = Mapping[str, Any]
GraphEvent: TypeAlias = Step | EvaluationDone
# Under which key a value of a step stands in its entry, in the order of the file.
STEP_KEYS = {
    "step": "current_steps",
    "loss": "loss",
    "smoothed": "smoothed_loss",
    "learning_rate": "learning_rate",
    "epoch": "epoch",
    "gradient_norm": "gradient_norm",
    "tokens": "tokens",
    "seconds": "seconds",
    "by_source": "loss_by_source",
    "phase": "phase",
    "examples": "examples",
    "preferences": "preferences",
}
EVALUATION_KEYS = {
    "step": "current_steps",
    "epoch": "epoch",
    "loss": "eval_loss",
    "perplexity": "eval_perplexity",
    "accuracy": "eval_accuracy",
    "by_source": "eval_by_source",
    "tokens": "eval_tokens",
    "seconds": "eval_seconds",
    "context_gain": "context_gain",
    "why": "why",
    "validation_key": "kept_aside",
    "pairs": "eval_pairs",
}
DIGITS = {"epoch": 4, "seconds": 3}
# What an entry without the value counts as; otherwise it counts as 0. JSON has no NaN: it is stored as null.
ABSENT: Mapping[str, Any] = {
    **dict.fromkeys(("loss", "smoothed", "perplexity", "accuracy"), math.nan),
    **dict.fromkeys(("gradient_norm", "context_gain"), None),
    **{"phase": "", "why": "planned", "validation_key": ""},
}
WARMUP_STEPS = 5  # slower than the rest: the GPU's memory is claimed, kernels are chosen, files are read first
MIN_STEPS = 10  # after them: single steps differ by a third, because their examples have other lengths
TEST = "use 'Test one step' under Memory and speed."
UNKNOWN = f"Time: there is no earlier run with this model to estimate from. To estimate the time now, {TEST}"


def graph_entry(event: GraphEvent) -> dict[str, Any]:
    """Return a step or an evaluation as an entry."""
    keys, entry = EVALUATION_KEYS, dict[str, Any]()
    if isinstance(event, Step):
        # These only where there is something to say: a long run has tens of thousands of entries.
        rare = {name: getattr(event, name) for name in ("by_source", "phase", "preferences")}
        rare["examples"] = event.phase and event.examples
        keys = {name: key for name, key in STEP_KEYS.items() if rare.get(name, True)}
    elif not event.pairs:
        keys = {name: key for name, key in EVALUATION_KEYS.items() if name != "pairs"}
    for name, key in keys.items():
        value = getattr(event, name)
        value = round(value, DIGITS[name]) if name in DIGITS else value
        entry[key] = dict(value) if isinstance(value, Mapping) else value
    return entry


def read_steps(graph: Iterable[GraphEntry]) -> list[Step]:
    """Read the steps; the original extension stores fewer values, and damaged ones are left out."""
    steps = []
    for entry in graph:
        if "loss" in entry:
            values = _read_values(entry, STEP_KEYS)
            smoothed = values["smoothed"] if "smoothed_loss" in entry else values["loss"]
            steps.append(Step(**{**values, "smoothed": smoothed}))
    return steps


def read_evaluations(graph: Iterable[GraphEntry]) -> list[EvaluationDone]:
    return [EvaluationDone(**_read_values(e, EVALUATION_KEYS)) for e in graph if "eval_loss" in e]


def graph_events(graph: Iterable[GraphEntry]) -> list[GraphEvent]:
    """Read the steps and the evaluations of a graph, in their order."""
    events = list[GraphEvent]()
    for entry in graph:
        events += read_steps([entry])
        events += read_evaluations([entry])
    return events


def _read_values(entry: GraphEntry, keys: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {"at": 0.0}
    for name, key in keys.items():
        value = entry.get(key)
        if name in ("by_source", "preferences"):
            value = {source: math.nan if loss is None else loss for source, loss in (value or {}).items()}
        values[name] = ABSENT.get(name, 0) if value is None else value
    return values


def best_evaluation(evaluations: Sequence[EvaluationDone]) -> EvaluationDone | None:
    """Return the evaluation with the lowest loss, the first of equal ones; None if no loss is finite."""
    return min((e for e in evaluations if math.isfinite(e.loss)), key=lambda e: e.loss, default=None)


class Workload(NamedTuple):
    """What takes time in a run: tokens to train on, tokens that are only read, and replies to sample prompts."""

    trained: float
    read: float
    samples: int


def estimate_time(
    work: Workload, card: ModelCard, method: str, runs_folder: Path, objective: str = "next_token"
) -> str:
    """An estimate by the last run with the same model, loading, method and objective, or how to get one."""
    runs = [
        (folder, read_log(folder)) for folder in usable_entries(runs_folder) if not run_files.is_hidden(folder)
    ]
    for folder, log in sorted(runs, key=lambda run: str(run[1].get("ended_at")), reverse=True):
        if tuple(map(log.get, ("base_model_name", "loaded_as", "method"))) != (card.name, card.loading, method):
            continue
        if log.get("objective", "next_token") != objective:  # some need a second pass, without the LoRA
            continue
        # Graphs of other programs may have neither tokens nor seconds.
        steps = [s for s in read_steps(read_graph(folder)) if s.tokens and s.seconds][WARMUP_STEPS:]
        if len(steps) < MIN_STEPS:
            continue
        speed = sum(s.tokens for s in steps) / sum(s.seconds for s in steps)
        speeds = log.get("speeds", {})
        # A run without evaluations says nothing about reading, so its speed is taken from the steps.
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
