"""Evaluation of the validation split during a run: loss, perplexity, accuracy and context gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...core.jobs import EvaluationDone, Job, Request, Stage, StageKind, Trigger
from ...data.examples import find_example_datasets
from ...records.report import RunGraph, read_evaluations
from ...train_utils import interval_steps, perplexity
from ..compute import ModelCapabilities
from ..plan import Evaluation, RunPlan
from ..tokenizer import make_working_tokenizer
from .context_gain import continuation_pairs, measure_context_gain
from .eval_loop import (
    EvalLoop,
    GroupSums,
    ProgressFn,
    StageProgress,
    batch_limit,
    evaluation_context,
    measure_in_run,
)

EVALUATING = "Evaluating on the validation split"


class EvalScheduler:
    """Decides when to evaluate the validation split, and records the results in the run's graph."""

    def __init__(
        self,
        run_plan: RunPlan,
        evaluator: Evaluator | None,
        graph: RunGraph,
        job: Job,
        *,
        ends_phase: Callable[[int], bool],
    ) -> None:
        """Without a validation split there is no evaluator; `ends_phase` says whether a phase ends with a step."""
        self._run_plan, self._evaluator, self._graph = run_plan, evaluator, graph
        self._ends_phase = ends_phase
        self._log = job.log

    def evaluate_at_start(self, step: int) -> Evaluation | None:
        """Evaluate before the first step; when resuming, only if the stop skipped a planned evaluation."""
        if self._evaluator is None:
            return None
        earlier = read_evaluations(self._graph, self._run_plan.validation_key)
        if not earlier:
            return self._evaluate(step, "start")
        return self._evaluate(step, "planned") if self._is_due(step) and earlier[-1].step < step else None

    def evaluate_after(self, step: int, *, last: bool, asked: bool) -> Evaluation | None:
        """Evaluate after a step if it is the last one, if it is planned, or if the user asked for it."""
        if last:
            return self._evaluate(step, "end")
        if self._is_due(step):
            return self._evaluate(step, "planned")
        return self._evaluate(step, "asked") if asked else None

    def _is_due(self, step: int) -> bool:
        plan = self._run_plan.plan
        every = interval_steps(self._run_plan.settings.aside.eval_every, plan.steps) or plan.steps_per_epoch
        return step % every == 0 or self._ends_phase(step)

    def evaluate_at_end(self, step: int) -> Evaluation | None:
        """Evaluate where a stopping rule ends the run after this step."""
        return self._evaluate(step, "end")

    def _evaluate(self, step: int, occasion: Trigger) -> Evaluation | None:
        """Evaluate and record the result; a failure is logged, and the run continues."""
        if self._evaluator is None:
            return None
        evaluate = partial(self._evaluator.evaluate, StageProgress(EVALUATING, self._log))
        result, seconds = measure_in_run(f"The evaluation after step {step}", evaluate, self._log)
        if result is not None:
            event = self._as_event(result, step, occasion, seconds)
            self._graph.append(event)
            self._log.append(event)
        if occasion != "end":
            self._log.append(Stage(text="Training", kind=StageKind.TRAINING))
        return Evaluation(result.loss, result.accuracy, occasion == "asked") if result is not None else None

    def _as_event(self, result: EvalResult, step: int, occasion: Trigger, seconds: float) -> EvaluationDone:
        return EvaluationDone(
            step=step,
            epoch=step / self._run_plan.plan.steps_per_epoch,
            why=occasion,
            loss=result.loss,
            perplexity=perplexity(result.loss),
            accuracy=result.accuracy,
            tokens=result.tokens,
            seconds=seconds,
            by_source=result.by_source,
            context_gain=result.context_gain,
            validation_key=self._run_plan.validation_key,
        )


@dataclass(frozen=True)
class EvalResult:
    """Figures of one evaluation."""

    loss: float
    accuracy: float
    tokens: int
    by_source: dict[str, float]
    context_gain: float | None


class Evaluator:
    """Evaluates a model in training on the validation split, and restores its state."""

    def __init__(self, run_plan: RunPlan, model: Any, capabilities: ModelCapabilities, job: Job) -> None:
        split, settings, card = run_plan.data.validation, run_plan.settings, run_plan.card
        # Not the tokenizer's own bos: some tokenizers have a start token that they never add.
        bos = make_working_tokenizer(card.tokenizer).bos
        in_order = settings.steps.batching == "length_then_order"
        self._examples, self._datasets = list(split), find_example_datasets(split, settings)
        self._groups = self._datasets.of(self._examples)
        self._pairs = continuation_pairs(split, bos, card.context, rows_too=in_order)
        limit, is_stopping = batch_limit(settings), lambda: job.control.asked(Request.STOP)
        self._eval_loop = EvalLoop(model, capabilities, limit, is_stopping)

    def evaluate(self, report: ProgressFn) -> EvalResult | None:
        """Evaluate; None if the run was stopped."""
        with evaluation_context(self._eval_loop.model):
            sums = self._eval_loop.sums(self._examples, self._groups, len(self._datasets.names), report)
            if sums is None:
                return None
            return self._as_result(sums, measure_context_gain(self._eval_loop, self._pairs))

    def estimate_seconds(self) -> float:
        """Estimate the seconds of an evaluation by timing a part of it."""
        continuations = [example for pair in self._pairs for example in pair]
        with evaluation_context(self._eval_loop.model):
            return self._eval_loop.estimate_seconds([*self._examples, *continuations])

    def _as_result(self, sums: GroupSums, gain: float | None) -> EvalResult:
        names, tokens = self._datasets.names, sums.tokens
        by_source = {name: float(sums.losses[n] / tokens[n]) for n, name in enumerate(names) if tokens[n]}
        return EvalResult(
            loss=sums.loss,
            accuracy=float(sums.hits.sum() / max(tokens.sum(), 1)),
            tokens=int(tokens.sum()),
            by_source=by_source if self._datasets.has_several else {},
            context_gain=gain,
        )
