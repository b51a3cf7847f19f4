"""Estimate of the duration of a run from the speed of an earlier one."""

from __future__ import annotations

from pathlib import Path

from ...core.files import usable_entries
from ...core.host import ModelCard
from ...train_utils import duration
from ..folder import RunLog, is_hidden, read_graph, read_log
from .graph_file import read_steps

WARMUP_STEPS = 5  # slower than the rest: the GPU's memory is claimed, kernels are chosen, files are read first
MIN_STEPS = 10  # after them: single steps differ by a third, because their examples have other lengths
UNKNOWN = (
    "Time: there is no earlier run with this model to estimate from. To estimate the time now, use 'Test one "
    "step' under Memory and speed."
)


def estimate_time(tokens: float, card: ModelCard, method: str, runs_folder: Path) -> str:
    """An estimate by the last run with the same model, loading and method, or without one, how to get it."""
    for name, log in _similar_runs(card, method, runs_folder):
        if speed := _tokens_per_second(runs_folder / name):
            return (
                f"Time: about {duration(tokens / speed)}, if this run is as fast as {name} was with this "
                f"model ({log.get('device')}, {speed:,.0f} tokens per second). To measure the "
                "time instead, use 'Test one step' under Memory and speed."
            )
    return UNKNOWN


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
