"""What is measured between two steps of a run: the validation split, and recall. When, and how it is recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...core.jobs import EvaluationDone, Job, Note, RecallMeasured, Request, Stage, StageKind, events
from ...data.examples import MIN_PASSAGE_TOKENS, Example, Examples, TextSource, find_example_datasets
from ...train_utils import FORWARD_SHARE, interval_steps, perplexity
from ..compute import ModelCapabilities
from ..plan import BatchingPhases, RunPlan, StepLog
from ..saving import RunState
from ..tokenizer import make_working_tokenizer
from .eval_loop import EvalLoop, Numbers, ProgressFn, StageProgress, log_failure
from .evidence import GENERAL_TOKENS, measure_passages, pick_recall_passages

MAX_SHARE = 0.05  # the largest share of an epoch's time that measuring recall after it may take
KNOWN = 0.9  # the share of its tokens that are predicted, from which on an example is known by heart
MAX_PAIRS = 32  # evenly spaced; each is read twice, once at about twice its length
Measured = TypeVar("Measured", EvaluationDone, RecallMeasured)


class RunMeasurements:
    """Evaluates a model in training on the validation split and measures its recall, and decides when."""

    def __init__(
        self,
        run_plan: RunPlan,
        model: Any,
        capabilities: ModelCapabilities,
        job: Job,
        step_log: StepLog,
        phases: BatchingPhases,
        state: RunState,
    ) -> None:
        """`state` is that of the checkpoint from which the run resumes, if any."""
        split, settings, card = run_plan.data.validation, run_plan.settings, run_plan.card
        self._run_plan, self._step_log, self._phases, self._job = run_plan, step_log, phases, job
        size = settings.aside.eval_batch_size
        batch_size = settings.steps.batch_size if isinstance(size, str) else size  # a word: as in training
        # Passages are predicted token by token, whatever the objective. Stop doesn't end their last measurement,
        # because the verdict needs it.
        self._eval_loop, self._recall_loop, self._last_recall_loop = (
            EvalLoop(
                model, capabilities, partial(job.control.asked, end), max_examples=batch_size, settings=measured
            )
            for end, measured in ((Request.STOP, settings), (Request.STOP, None), (Request.DISCARD, None))
        )
        self._examples, self._datasets = list(split), find_example_datasets(split, settings)
        self._groups = self._datasets.of(self._examples)
        self._pairs: list[ContinuationPair] = []
        self._compares, self.drawn = settings.preferences.compares, state.drawn
        if self._examples and not self._compares:  # of a pair, each reply has its context
            # Not the tokenizer's own bos: some tokenizers have a start token that they never add.
            bos = make_working_tokenizer(card.tokenizer).bos
            in_order = settings.steps.batching == "length_then_order"
            self._pairs = continuation_pairs(split, bos, card.context, rows_too=in_order)
        self._passages = pick_recall_passages(run_plan.data, settings.aside.recall_passages, card)
        # The last one of a run that was stopped is left out: a run that was never stopped has none at that step.
        self.recalls = [event for event in state.recalls if event.why != "end"]
        self.can_measure = bool(self._examples or self._passages)
        tokens = sum(len(passage.example.ids) for kind in self._passages or () for passage in kind)
        between = _epochs_between(tokens, sum(run_plan.data.examples.lengths()))
        self.recall_every = run_plan.plan.steps_per_epoch * between if self._passages else 0  # 0: never

    def at_start(self, step: int) -> EvaluationDone | None:
        """Measure before the first step; when resuming, only what a stop has skipped."""
        evaluation = None
        earlier = self._step_log.evaluations(self._run_plan.validation_key)
        if not earlier:
            evaluation = self.evaluate(step, "start")
        elif self._is_due(step) and earlier[-1].step < step:
            evaluation = self.evaluate(step, "planned")
        if not self.recalls:
            self._measure_recall(step, "start")
        return evaluation

    def after(self, step: int, *, last: bool, asked: bool) -> EvaluationDone | None:
        """Measure after a step what is planned then, or what the user asked for; at the last step, evaluate."""
        if not last and (asked or (self.recall_every and step % self.recall_every == 0)):
            self._measure_recall(step, "asked" if asked else "planned")
        # At most one evaluation after a step, and the last step always has one.
        if last:
            return self.evaluate(step, "end")
        if self._is_due(step):
            return self.evaluate(step, "planned")
        return self.evaluate(step, "asked") if asked else None

    def recall_at_end(self, step: int) -> None:
        """Measure recall after the last step, unless that was just done or there is nothing to compare with."""
        if self.recalls and self.recalls[-1].step != step:
            self._measure_recall(step, "end")

    def draw(self, epoch: int) -> Sequence[int]:
        """The examples of a later pass: those that are not known yet, as often as fills it, or all."""
        examples, log = self._run_plan.data.examples, self._job.log
        if list(self.drawn[:1]) != [epoch]:
            stage = Stage(text="Measuring which examples are not known yet", kind=StageKind.MEASURING)
            count = len(examples)
            # Stop waits for it: a step on other examples would not be that of a run without the stop.
            sums = self._last_recall_loop.sums(examples, range(count), count, StageProgress(stage, log))
            if sums is None:  # the run is discarded
                return range(count)
            unknown = np.flatnonzero(sums.hits < KNOWN * sums.tokens)
            log.append(Note(text=f"Pass {epoch + 1}: {len(unknown):,} of {count:,} examples are not known yet."))
            log.append(Stage(text="Training", kind=StageKind.TRAINING))
            self.drawn = [epoch, *np.resize(unknown if len(unknown) else np.arange(count), count).tolist()]
        return self.drawn[1:]

    def _is_due(self, step: int) -> bool:
        plan = self._run_plan.plan
        every = interval_steps(self._run_plan.settings.aside.eval_every, plan.steps) or plan.steps_per_epoch
        return step % every == 0 or self._phases.ends_with(step)

    def evaluate(self, step: int, why: events.Trigger) -> EvaluationDone | None:
        """Evaluate after a step, and restore the model's state; None without a split or if the run was stopped."""
        if not self._examples:
            return None
        what, stage = f"The evaluation after step {step}", Stage(text="Evaluating on the validation split")
        event = self._measure(what, stage, partial(self._evaluate, step, why), why)
        if event is not None:
            self._step_log.graph.append(event)
        return event

    def _measure_recall(self, step: int, why: events.Trigger) -> None:
        if self._passages is None:
            return
        eval_loop = self._last_recall_loop if why == "end" else self._recall_loop
        epoch = step / self._run_plan.plan.steps_per_epoch
        measure = partial(measure_passages, eval_loop, self._passages, step, epoch, why)
        words = "Measuring recall: how much of the text the model knows by heart"
        if self._compares:
            words = "Measuring the loss on general text"
        stage = Stage(text=words, kind=StageKind.MEASURING)
        event = self._measure(f"{words.partition(':')[0]} after step {step}", stage, measure, why)
        if event is not None:
            self.recalls.append(event)

    def _measure(
        self, what: str, stage: Stage, measure: Callable[[ProgressFn], Measured | None], why: events.Trigger
    ) -> Measured | None:
        """Measure, and log the event; None if the user ended it, or after a failure: the run continues."""
        started, event, log = time.monotonic(), None, self._job.log
        with log_failure(f"{what} failed", log):
            event = measure(StageProgress(stage, log))
        if event is not None:
            event = replace(event, seconds=time.monotonic() - started)
            log.append(event)
        if why != "end":
            log.append(Stage(text="Training", kind=StageKind.TRAINING))
        return event

    def _evaluate(self, step: int, why: events.Trigger, report: ProgressFn) -> EvaluationDone | None:
        names, gain = self._datasets.names, None
        sums = self._eval_loop.sums(self._examples, self._groups, len(names), report)
        if sums is None:
            return None
        if self._pairs:
            # Fernandes et al., 2021, https://aclanthology.org/2021.acl-long.505 (CXMI): the pointwise mutual
            # information between a continuation and what comes before it, in nats per token. It is positive if the
            # earlier text helps.
            alone, with_context = (
                self._eval_loop.sums(side, [0] * len(side), 1) for side in zip(*self._pairs, strict=True)
            )
            gain = alone.loss - with_context.loss if alone and with_context else None  # None: the run is stopping
        tokens = sums.tokens
        by_source = {name: float(sums.losses[n] / tokens[n]) for n, name in enumerate(names) if tokens[n]}
        return EvaluationDone(
            step=step,
            epoch=step / self._run_plan.plan.steps_per_epoch,
            why=why,
            loss=sums.loss,
            perplexity=math.nan if self._compares else perplexity(sums.loss),
            accuracy=float(sums.hits.sum() / max(tokens.sum(), 1)),
            tokens=0 if self._compares else int(tokens.sum()),
            pairs=int(tokens.sum()) if self._compares else 0,
            seconds=0.0,
            by_source=by_source if self._datasets.has_several else {},
            context_gain=gain,
            validation_key=self._run_plan.validation_key,
        )


def plan_recall(passage_tokens: int, epoch_tokens: int, epochs: float) -> tuple[int, str]:
    """Return the tokens that recall reads in a run of so many epochs, and in words, when and for how long."""
    if not passage_tokens:
        few = f"no text or reply of the training data has a passage of {MIN_PASSAGE_TOKENS} tokens"
        return 0, f"Recall is not measured, because {few}."
    tokens = passage_tokens + GENERAL_TOKENS
    every = _epochs_between(tokens, epoch_tokens)
    share = FORWARD_SHARE * tokens / max(epoch_tokens, 1)
    percent = "less than 1%" if share < 0.01 else f"about {share:.0%}"
    cost = f"{percent} of an epoch's time" if share < 1 else f"as long as {share:.1f} epochs"
    # One before the first step and one at the end, and those in between.
    between = math.ceil(epochs / every) - 1  # the last one is measured at the end
    when = "" if between < 1 else ", after each epoch" if every == 1 else f", every {every} epochs"
    return (
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


def continuation_pairs(
    examples: Examples, bos: int | None, longest: int, *, rows_too: bool
) -> list[ContinuationPair]:
    """Evenly spaced pairs of at most `longest` tokens (0: any): later replies, and consecutive blocks or rows."""

    def start_token(ids: Numbers) -> Numbers:
        return ids[: int(bos is not None and len(ids) > 0 and int(ids[0]) == bos)]

    def pair(example: Example, alone: Numbers, whole: Numbers, learned: Numbers) -> ContinuationPair:
        """`alone` is the end of `whole`, perhaps after a start token, which is not learned."""
        sides = (Example(ids, learned[-len(ids) :], example.source, example.number) for ids in (alone, whole))
        return ContinuationPair(*sides)

    def of_reply(example: Example, before: int, start: int, end: int) -> ContinuationPair:
        # Alone, a reply has its own message only; with its context, the whole conversation.
        alone = np.concatenate([start_token(example.ids), example.ids[before:end]])
        return pair(example, alone, example.ids[:end], np.arange(end) >= start)

    def of_block(index: int, next_index: int) -> ContinuationPair:
        earlier, example = examples[index], examples[next_index]
        flags = np.ones(len(example.ids), bool) if example.loss_mask is None else example.loss_mask
        flags = np.concatenate([[False], flags[1:]])  # alone, nothing precedes the first token
        offset = len(start_token(example.ids))
        whole = np.concatenate([earlier.ids, example.ids[offset:]])
        learned = np.concatenate([np.zeros(len(earlier.ids), bool), flags[offset:]])
        return pair(example, example.ids, whole, learned)

    # The pairs are only made once it is known which of them are taken: a book has thousands.
    makers: list[Callable[[], ContinuationPair]] = []
    for example in examples:
        if example.loss_mask is None:
            continue
        # Where the mask changes, a reply begins or ends: rows of (start, end) in turn.
        edges = np.flatnonzero(np.diff(np.concatenate([[0], example.loss_mask, [0]]).astype(np.int8)))
        for (_, reply_end), (start, end) in pairwise(edges.reshape(-1, 2).tolist()):
            if not longest or end <= longest:
                makers.append(partial(of_reply, example, reply_end, start, end))
    lengths, sources = examples.lengths(), examples.source_numbers()
    allowed = [rows_too or isinstance(source, TextSource) for source in examples.sources]
    for index, next_index in enumerate(examples.successors()):
        if next_index < 0 or not allowed[sources[index]]:
            continue
        if not longest or lengths[index] + lengths[next_index] <= longest:
            makers.append(partial(of_block, index, next_index))
    taken = np.linspace(0, len(makers) - 1, min(MAX_PAIRS, len(makers))).round().astype(int)
    return [makers[index]() for index in taken.tolist()]
