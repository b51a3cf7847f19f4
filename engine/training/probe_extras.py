"""Time that a run spends on evaluations and sample answers, estimated for the probe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...core.host import Host
from ...core.jobs import Job, Stage
from ...data.report import evaluations, sample_rounds
from ..compute import Ways
from ..inference import Asking, Measuring, between_steps
from ..plan import Blueprint


@dataclass(frozen=True)
class Beside:
    """Counts, and seconds of one each; 0 if there are none, or if it could not be measured."""

    evaluations: int = 0
    evaluation_seconds: float = 0.0
    answers: int = 0
    answer_seconds: float = 0.0


def measured_beside(model: Any, run: Blueprint, ways: Ways, host: Host, job: Job) -> Beside:
    """Estimate the evaluations and the answers of a run by doing a part of each."""
    return Beside(*_evaluations(model, run, ways, job), *_answers(model, run, host, job))


def _evaluations(model: Any, run: Blueprint, ways: Ways, job: Job) -> tuple[int, float]:
    count = evaluations(run.settings, run.plan, run.data.kept_aside)
    if not count:
        return 0, 0.0
    job.log.append(Stage(text="Trying an evaluation"))
    return count, _seconds_or_zero(
        lambda: Measuring(run, model, ways, lambda: job.control.stopping).expected_seconds()
    )


def _answers(model: Any, run: Blueprint, host: Host, job: Job) -> tuple[int, float]:
    rounds = sample_rounds(run.settings, run.plan)
    if not rounds:
        return 0, 0.0
    job.log.append(Stage(text="Trying an answer"))
    generator = Asking(run, host, job, ())

    def seconds() -> float:
        with between_steps(model):
            return generator.expected_seconds(model)

    answer_seconds = _seconds_or_zero(seconds)
    return rounds * len(generator.prompts) if answer_seconds else 0, answer_seconds


def _seconds_or_zero(measure: Callable[[], float]) -> float:
    """Measure, or return 0 on any error: a run also continues when an evaluation or an answer fails."""
    try:
        return measure()
    except Exception:  # noqa: BLE001 - the probe of the step is valid without it
        return 0.0
