"""Estimate of the duration of a run from the speeds of an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ...core.files import usable_entries
from ...core.host import ModelCard
from ...core.jobs import EvaluationDone, Event, RecallMeasured, SampleGenerated
from ...train_utils import FORWARD_SHARE, duration
from ..folder import RunLog, is_hidden, read_graph, read_log
from .graph_file import read_steps

WARMUP_STEPS = 5  # slower than the rest: the GPU's memory is claimed, kernels are chosen, files are read first
MIN_STEPS = 10  # after them: single steps differ by a third, because their examples have other lengths
TEST = "use 'Test one step' under Memory and speed."
UNKNOWN = f"Time: there is no earlier run with this model to estimate from. To estimate the time now, {TEST}"


class Workload(NamedTuple):
    """What takes time in a run: tokens to train on, tokens that are only read, and replies to sample prompts."""

    trained: float
    read: float
    samples: int


def estimate_time(work: Workload, card: ModelCard, method: str, runs_folder: Path) -> str:
    """An estimate by the last run with the same model, loading and method, or without one, how to get it."""
    for name, log in _similar_runs(card, method, runs_folder):
        if speed := _tokens_per_second(runs_folder / name):
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
                f"Time: about {duration(sum(times.values()))} ({parts}), if this run is as fast as {name} was "
                f"with this model ({log.get('device')}, {speed:,.0f} tokens per second).{missing} To measure the "
                f"time instead, {TEST}"
            )
    return UNKNOWN


def measured_speeds(events: Sequence[Event], evaluated: int, recalled: int) -> dict[str, float]:
    """The speeds of a run beside its steps; the numbers are the tokens of an evaluation, and of one of recall."""
    read = [(evaluated, e.seconds) for e in events if isinstance(e, EvaluationDone)]
    read += [(recalled, e.seconds) for e in events if isinstance(e, RecallMeasured)]
    tokens, seconds = (sum(figures) for figures in zip(*read, strict=True)) if read else (0, 0.0)
    samples = [after.at - before.at for before, after in pairwise(events) if isinstance(after, SampleGenerated)]
    return {
        **({"tokens_read_per_second": tokens / seconds} if tokens and seconds else {}),
        **({"seconds_per_sample": sum(samples) / len(samples)} if samples else {}),
    }


def _similar_runs(card: ModelCard, method: str, runs_folder: Path) -> list[tuple[str, RunLog]]:
    """Return the folder names and logs of comparable runs, the newest first."""
    folders = [path for path in usable_entries(runs_folder) if not is_hidden(path)]
    logs = [(folder.name, read_log(folder)) for folder in folders]
    key = (card.name, card.loading, method)
    matches = [run for run in logs if tuple(map(run[1].get, ("base_model_name", "loaded_as", "method"))) == key]
    return sorted(matches, key=lambda run: str(run[1].get("ended_at")), reverse=True)


def _tokens_per_second(folder: Path) -> float:
    """Return the speed of the steps after the warm-up; 0 if there are too few."""
    steps = [s for s in read_steps(read_graph(folder)) if s.tokens and s.seconds][WARMUP_STEPS:]
    return sum(s.tokens for s in steps) / sum(s.seconds for s in steps) if len(steps) >= MIN_STEPS else 0.0
