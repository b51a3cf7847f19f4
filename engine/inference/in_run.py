"""What is measured between two steps of a run: the validation split, and recall. When, and how it is recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...core.errors import first_line
from ...core.jobs import Advice, EvaluationDone, Job, RecallMeasured, Request, Stage, StageKind, Trigger
from ...data.examples import MIN_PASSAGE_TOKENS, Example, Examples, TextSource, find_example_datasets
from ...records.report import RunGraph, read_evaluations
from ...train_utils import FORWARD_SHARE, interval_steps, perplexity
from ..compute import ModelCapabilities
from ..plan import Evaluation, RunPlan
from ..tokenizer import make_working_tokenizer
from .eval_loop import BatchLimit, EvalLoop, Numbers, ProgressFn, StageProgress, evaluation_context
from .recall import GENERAL_TOKENS, RecallPassages, measure_passages, pick_recall_passages

MAX_SHARE = 0.05  # the largest share of an epoch's time that measuring recall after it may take
MAX_PAIRS = 32  # evenly spaced; each is read twice, once at about twice its length
Measured = TypeVar("Measured", EvaluationDone, RecallMeasured)


class RecallMeter(NamedTuple):
    """The passages of a run, and what makes a loop that ends when the user makes a request."""

    make_eval_loop: Callable[[Request], EvalLoop]
    passages: RecallPassages


class Meters(NamedTuple):
    """Meters of a run; None for what its data or settings don't allow."""

    evaluator: Evaluator | None
    recall: RecallMeter | None


def make_meters(run_plan: RunPlan, model: Any, capabilities: ModelCapabilities, job: Job) -> Meters:
    """Make the meters of a run for a model in training."""
    evaluator = Evaluator(run_plan, model, capabilities, job) if len(run_plan.data.validation) else None
    passages = pick_recall_passages(run_plan.data, run_plan.settings.aside.recall_passages, run_plan.card)
    make_loop = partial(_make_eval_loop, run_plan, model, capabilities, job)
    return Meters(evaluator, RecallMeter(make_loop, passages) if passages else None)


def _make_eval_loop(
    run_plan: RunPlan, model: Any, capabilities: ModelCapabilities, job: Job, ended_by: Request
) -> EvalLoop:
    settings, size = run_plan.settings, run_plan.settings.aside.eval_batch_size
    limit = BatchLimit(
        examples=settings.steps.batch_size if isinstance(size, str) else size
    )  # a word: as in training
    return EvalLoop(model, capabilities, limit, lambda: job.control.asked(ended_by))


def _measure_between_steps(
    what: str,
    stage: str,
    measure: Callable[[ProgressFn], Measured | None],
    why: Trigger,
    job: Job,
    kind: StageKind = StageKind.WORKING,
) -> Measured | None:
    """Measure, and log the event; None if the user ended it, or after a failure, after which the run continues."""
    started, event = time.monotonic(), None
    try:
        event = measure(StageProgress(stage, job.log, kind))
    except Exception as error:  # noqa: BLE001 - no error here is worth ending hours of training
        job.log.append(Advice(text=f"{what} failed: {first_line(error)}. The run continues."))
    if event is not None:
        event = replace(event, seconds=time.monotonic() - started)
        job.log.append(event)
    if why != "end":
        job.log.append(Stage(text="Training", kind=StageKind.TRAINING))
    return event


class Evaluator:
    """Evaluates a model in training on the validation split, and restores its state."""

    def __init__(self, run_plan: RunPlan, model: Any, capabilities: ModelCapabilities, job: Job) -> None:
        split, settings, card = run_plan.data.validation, run_plan.settings, run_plan.card
        # Not the tokenizer's own bos: some tokenizers have a start token that they never add.
        bos = make_working_tokenizer(card.tokenizer).bos
        in_order = settings.steps.batching == "length_then_order"
        self._run_plan = run_plan
        self._examples, self._datasets = list(split), find_example_datasets(split, settings)
        self._groups = self._datasets.of(self._examples)
        self._pairs = continuation_pairs(split, bos, card.context, rows_too=in_order)
        self._eval_loop = _make_eval_loop(run_plan, model, capabilities, job, Request.STOP)

    def evaluate(self, step: int, why: Trigger, report: ProgressFn) -> EvaluationDone | None:
        """Evaluate; None if the run was stopped."""
        names = self._datasets.names
        with evaluation_context(self._eval_loop.model):
            sums = self._eval_loop.sums(self._examples, self._groups, len(names), report)
            if sums is None:
                return None
            gain = _context_gain(self._eval_loop, self._pairs)
        tokens = sums.tokens
        by_source = {name: float(sums.losses[n] / tokens[n]) for n, name in enumerate(names) if tokens[n]}
        return EvaluationDone(
            step=step,
            epoch=step / self._run_plan.plan.steps_per_epoch,
            why=why,
            loss=sums.loss,
            perplexity=perplexity(sums.loss),
            accuracy=float(sums.hits.sum() / max(tokens.sum(), 1)),
            tokens=int(tokens.sum()),
            seconds=0.0,
            by_source=by_source if self._datasets.has_several else {},
            context_gain=gain,
            validation_key=self._run_plan.validation_key,
        )

    def estimate_seconds(self) -> float:
        """Estimate the seconds of an evaluation by timing a part of it."""
        continuations = [example for pair in self._pairs for example in pair]
        with evaluation_context(self._eval_loop.model):
            return self._eval_loop.estimate_seconds([*self._examples, *continuations])


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
        self._ends_phase, self._job = ends_phase, job

    def evaluate_at_start(self, step: int) -> Evaluation | None:
        """Evaluate before the first step; when resuming, only if the stop skipped a planned evaluation."""
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

    def evaluate_at_end(self, step: int) -> Evaluation | None:
        """Evaluate where a stopping rule ends the run after this step."""
        return self._evaluate(step, "end")

    def _is_due(self, step: int) -> bool:
        plan = self._run_plan.plan
        every = interval_steps(self._run_plan.settings.aside.eval_every, plan.steps) or plan.steps_per_epoch
        return step % every == 0 or self._ends_phase(step)

    def _evaluate(self, step: int, why: Trigger) -> Evaluation | None:
        if self._evaluator is None:
            return None
        measure = partial(self._evaluator.evaluate, step, why)
        what, stage = f"The evaluation after step {step}", "Evaluating on the validation split"
        event = _measure_between_steps(what, stage, measure, why, self._job)
        if event is None:
            return None
        self._graph.append(event)
        return Evaluation(event.loss, event.accuracy, why == "asked")


class RecallScheduler:
    """Decides when to measure recall, and keeps the results."""

    def __init__(
        self, run_plan: RunPlan, meter: RecallMeter | None, earlier: Sequence[RecallMeasured], job: Job
    ) -> None:
        """Without passages there is no meter; `earlier` are the measurements of the run that this one resumes.

        The last one of a run that was stopped is left out: a run that was never stopped has none at that step.
        """
        self._meter, self._job = meter, job
        self.measured = [event for event in earlier if event.why != "end"]
        self._epoch = run_plan.plan.steps_per_epoch
        tokens = meter.passages.tokens if meter else 0
        self.every = self._epoch * _epochs_between(tokens, sum(run_plan.data.examples.lengths()))

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

    def _measure(self, step: int, why: Trigger) -> None:
        if self._meter is None:
            return
        # Stop doesn't end the last measurement, because the verdict needs it.
        eval_loop = self._meter.make_eval_loop(Request.DISCARD if why == "end" else Request.STOP)
        measure = partial(measure_passages, eval_loop, self._meter.passages, step, step / self._epoch, why)
        stage = "Measuring recall: how much of the text the model knows by heart"
        what = f"Measuring recall after step {step}"
        event = _measure_between_steps(what, stage, measure, why, self._job, StageKind.MEASURING)
        if event is not None:
            self.measured.append(event)


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
    every = _epochs_between(tokens, epoch_tokens)
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


def _epochs_between(measured_tokens: int, epoch_tokens: int) -> int:
    """Return the epochs from one measurement to the next, so that it takes at most `MAX_SHARE` of their time."""
    return max(1, math.ceil(FORWARD_SHARE * measured_tokens / (MAX_SHARE * max(epoch_tokens, 1))))


class ContinuationPair(NamedTuple):
    """A continuation by itself, and after its context; the same tokens count in both."""

    alone: Example
    with_context: Example


def _context_gain(eval_loop: EvalLoop, pairs: list[ContinuationPair]) -> float | None:
    """By how much the loss of a continuation falls when the model reads what comes before it.

    None if there are no pairs or the run is stopping.
    """
    if not pairs:
        return None
    groups = [0] * len(pairs)
    alone = eval_loop.sums([pair.alone for pair in pairs], groups, 1)
    with_context = eval_loop.sums([pair.with_context for pair in pairs], groups, 1) if alone else None
    return None if alone is None or with_context is None else alone.loss - with_context.loss


def continuation_pairs(
    examples: Examples, bos: int | None, longest: int, *, rows_too: bool
) -> list[ContinuationPair]:
    """Return evenly spaced pairs that fit into the model's context.

    They are the later replies of a conversation, and blocks of a text after the block before; with `rows_too`, as
    rows are trained in their order, consecutive rows as well.
    """
    # The pairs are only made once it is known which of them are taken: a book has thousands.
    factories = [
        *_turn_pairs(examples, bos, longest),
        *_consecutive_pairs(examples, bos, longest, rows_too=rows_too),
    ]
    indices = np.linspace(0, len(factories) - 1, min(MAX_PAIRS, len(factories))).round().astype(int)
    return [factories[index]() for index in indices.tolist()]


def _turn_pairs(examples: Examples, bos: int | None, longest: int) -> Iterator[Callable[[], ContinuationPair]]:
    """Yield pairs for the replies of a conversation after its first one.

    Alone, a reply has its own message only; with its context, the whole conversation.
    """

    def make(example: Example, before: int, start: int, end: int) -> ContinuationPair:
        alone = np.concatenate([_start_token(example.ids, bos), example.ids[before:end]])
        learned_tokens = np.arange(end) >= start
        sides = ((ids, learned_tokens[-len(ids) :]) for ids in (alone, example.ids[:end]))
        return ContinuationPair(*(Example(ids, flags, example.source, example.number) for ids, flags in sides))

    for example in examples:
        if example.loss_mask is None:
            continue
        # Where the mask changes, a reply begins or ends: rows of (start, end) in turn.
        edges = np.flatnonzero(np.diff(np.concatenate([[0], example.loss_mask, [0]]).astype(np.int8)))
        for (_, reply_end), (start, end) in pairwise(edges.reshape(-1, 2).tolist()):
            if not longest or end <= longest:
                yield partial(make, example, reply_end, start, end)


def _consecutive_pairs(
    examples: Examples, bos: int | None, longest: int, *, rows_too: bool
) -> Iterator[Callable[[], ContinuationPair]]:
    """Yield pairs for consecutive blocks and, with `rows_too`, rows."""

    def make(index: int, next_index: int) -> ContinuationPair:
        earlier, example = examples[index], examples[next_index]
        flags = np.ones(len(example.ids), bool) if example.loss_mask is None else example.loss_mask
        flags = np.concatenate([[False], flags[1:]])  # alone, nothing precedes the first token
        offset = len(_start_token(example.ids, bos))
        ids = np.concatenate([earlier.ids, example.ids[offset:]])
        flags_after = np.concatenate([np.zeros(len(earlier.ids), bool), flags[offset:]])
        return ContinuationPair(
            Example(example.ids, flags, example.source, 0), Example(ids, flags_after, example.source, 0)
        )

    lengths, sources = examples.lengths(), examples.source_numbers()
    allowed = [rows_too or isinstance(source, TextSource) for source in examples.sources]
    for index, next_index in enumerate(examples.successors()):
        if next_index < 0 or (longest and lengths[index] + lengths[next_index] > longest):
            continue
        if allowed[sources[index]]:
            yield partial(make, index, next_index)


def _start_token(ids: Numbers, bos: int | None) -> Numbers:
    """Return the start token if the ids begin with it, else no ids."""
    return ids[:1] if bos is not None and len(ids) and int(ids[0]) == bos else ids[:0]
