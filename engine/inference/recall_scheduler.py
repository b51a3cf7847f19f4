"""Recall during a run: when it is measured, and how it is recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ...core.jobs import Job, RecallMeasured, Request, Stage, StageKind, Trigger
from ...data.examples import MIN_PASSAGE_TOKENS
from ...train_utils import FORWARD_SHARE
from ..plan import RunPlan
from .eval_loop import StageProgress, measure_in_run
from .general_loss import GENERAL_TOKENS
from .recall import RecallMeter, RecallScores, mean_loss, summarize, summarize_by_part

MAX_SHARE = 0.05
"""The largest share of an epoch's time that measuring after it may take."""
MEASURING = "Measuring recall: how much of the text the model knows by heart"


class RecallScheduler:
    """Decides when to measure recall, and keeps the results."""

    def __init__(
        self, run_plan: RunPlan, meter: RecallMeter | None, earlier: Sequence[RecallMeasured], job: Job
    ) -> None:
        """Without passages there is no meter; `earlier` are the measurements of the run that this one resumes.

        The last one of a run that was stopped is left out: a run that was never stopped has none at that step.
        """
        self._meter, self._log = meter, job.log
        self.measured = [event for event in earlier if event.why != "end"]
        self._epoch = run_plan.plan.steps_per_epoch
        tokens = meter.tokens if meter else 0
        self.every = self._epoch * epochs_between(tokens, sum(run_plan.data.examples.lengths()))

    def measure_at_start(self, step: int) -> None:
        """Measure before the first step; a run that resumes has that figure."""
        if not self.measured:
            self._measure(step, "start")

    def measure_after(self, step: int, *, asked: bool) -> None:
        """Measure after an epoch whose turn it is, and when the user asked for it."""
        if asked or step % self.every == 0:
            self._measure(step, "asked" if asked else "planned")

    def measure_at_end(self, step: int) -> None:
        """Measure after the last step, unless that was just done or there is nothing to compare with."""
        if self.measured and self.measured[-1].step != step:
            self._measure(step, "end")

    def _measure(self, step: int, occasion: Trigger) -> None:
        """Measure and record the result; a failure is logged, and the run continues.

        Stop doesn't end the last measurement, because the verdict needs it.
        """
        if self._meter is None:
            return
        ended_by = Request.DISCARD if occasion == "end" else Request.STOP
        measure = partial(self._meter.measure, ended_by, StageProgress(MEASURING, self._log, StageKind.MEASURING))
        scores, seconds = measure_in_run(f"Measuring recall after step {step}", measure, self._log)
        if scores is not None:
            event = self._as_event(scores, step, occasion, seconds)
            self.measured.append(event)
            self._log.append(event)
        if occasion != "end":
            self._log.append(Stage(text="Training", kind=StageKind.TRAINING))

    def _as_event(self, scores: RecallScores, step: int, occasion: Trigger, seconds: float) -> RecallMeasured:
        return RecallMeasured(
            step=step,
            epoch=step / self._epoch,
            why=occasion,
            learned=summarize(scores.learned),
            control=summarize(scores.control) if scores.control else None,
            general_loss=mean_loss(scores.general),
            strip=tuple(score.recall for score in scores.learned),
            parts=summarize_by_part(scores.learned),
            seconds=seconds,
        )


class RecallCost(NamedTuple):
    """The tokens that recall reads in a whole run, and in words, when and for how long."""

    tokens: int
    words: str


def plan_recall(passage_tokens: int, epoch_tokens: int, epochs: float) -> RecallCost:
    """Plan the measurements of recall in a run of so many epochs, by the tokens of its passages."""
    if not passage_tokens:
        few = f"no text or reply of the training data has a passage of {MIN_PASSAGE_TOKENS} tokens"
        return RecallCost(0, f"Recall is not measured, because {few}.")
    tokens = passage_tokens + GENERAL_TOKENS
    every = epochs_between(tokens, epoch_tokens)
    share = FORWARD_SHARE * tokens / max(epoch_tokens, 1)
    percent = "less than 1%" if share < 0.01 else f"about {share:.0%}"
    cost = f"{percent} of an epoch's time" if share < 1 else f"as long as {share:.1f} epochs"
    between = math.ceil(epochs / every) - 1  # the last one is measured at the end
    when = "" if between < 1 else ", after each epoch" if every == 1 else f", every {every} epochs"
    return RecallCost(
        (2 + max(between, 0)) * tokens,
        "Recall (how much of the text the model reproduces word for word) is measured before the first step"
        f"{when} and at the end. Each measurement reads at most {tokens:,} tokens, which takes {cost}.",
    )


def epochs_between(measured_tokens: int, epoch_tokens: int) -> int:
    """Return the epochs from one measurement to the next, so that it takes at most `MAX_SHARE` of their time."""
    return max(1, math.ceil(FORWARD_SHARE * measured_tokens / (MAX_SHARE * max(epoch_tokens, 1))))
