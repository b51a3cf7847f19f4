"""What a run does beside its steps: how often, and how long one takes, by the beginning of one on this model."""

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
    """How often, and the seconds of one; 0 where there are none, or where that could not be measured."""

    evaluations: int = 0
    evaluation_seconds: float = 0.0
    answers: int = 0
    answer_seconds: float = 0.0


def measured_beside(model: Any, run: Blueprint, ways: Ways, host: Host, job: Job) -> Beside:
    """Evaluations and answers of a run, each tried in part."""
    return Beside(*_evaluations(model, run, ways, job), *_answers(model, run, host, job))


def _evaluations(model: Any, run: Blueprint, ways: Ways, job: Job) -> tuple[int, float]:
    count = evaluations(run.settings, run.plan, run.data.kept_aside)
    if not count:
        return 0, 0.0
    job.log.append(Stage(text="Trying an evaluation"))
    return count, _known(lambda: Measuring(run, model, ways, lambda: job.control.stopping).expected_seconds())


def _answers(model: Any, run: Blueprint, host: Host, job: Job) -> tuple[int, float]:
    rounds = sample_rounds(run.settings, run.plan)
    if not rounds:
        return 0, 0.0
    job.log.append(Stage(text="Trying an answer"))
    asking = Asking(run, host, job, ())

    def seconds() -> float:
        with between_steps(model):
            return asking.expected_seconds(model)

    found = _known(seconds)
    return rounds * len(asking.prompts) if found else 0, found


def _known(measured: Callable[[], float]) -> float:
    """A run goes on without an evaluation or an answer that fails; of its time nothing is said here."""
    try:
        return measured()
    except Exception:  # noqa: BLE001 - whatever it is, the step was measured
        return 0.0
