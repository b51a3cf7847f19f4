"""Verdict on how well a run learned, from its training and validation losses and its recall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles
from typing import Any, Literal

from ...core.jobs import FORGOT_LITTLE, FORGOT_MUCH, EvaluationDone, RecallMeasured, Step
from ...train_utils import format_count
from .graph_file import best_evaluation, read_evaluations, read_steps

VerdictKind = Literal[
    "could learn more",
    "about right",
    "did not learn",
    "began to memorize",
    "became worse",
    "learned",
    "learned by heart",
    "too early to tell",
    "training loss only",
]
MIN_CHANGE = 0.01
"""A relative change of a loss that is more than chance."""
LAST_SHARE = 0.25
"""The share of the run that is judged if there are only training losses."""
MIN_STEPS = 8
"""Fewer steps than this show no trend."""
EARLY_SHARE = 0.1
"""A run that ended before this share of its steps is too short to judge, unless it was evaluated often enough."""
MIN_EARLY_EVALUATIONS = 3  # one before the first step and one after the last show no trend
BY_HEART = 0.5
"""How far recall must exceed that of unseen text before a text counts as known by heart."""
WIDE_SWING, MIN_SWINGING_STEPS = 3.0, 20
"""How many times the lowest tenth of the losses the highest tenth is, and in how many steps at least."""
ADD_VALIDATION = (
    "To also measure how well the model does on similar text that it has not seen, set 'Validation split' before "
    "the next run, for example to 0.05 (5%)."
)
SAME_PASSAGES = "This loss is measured on the same passages each time, so trust it more than the loss curve."
MIN_SWING = 0.3
"""A smaller difference is no wide swing: losses near 0 always differ by a large factor."""


@dataclass(frozen=True)
class Verdict:
    """The verdict in words, the step it refers to, the better checkpoint if there is one, and the figures."""

    kind: VerdictKind
    text: str
    step: int
    better: str
    evidence: Mapping[str, float]

    def as_log(self) -> dict[str, Any]:
        """Return plain values for training_log.json."""
        return {**vars(self), "evidence": dict(self.evidence)}


def judge_run(
    graph: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[int, str],
    validation_key: str = "",
    kept: int = 0,
    *,
    evaluates: bool = False,
    recalls: Sequence[RecallMeasured] = (),
    planned: int = 0,
) -> Verdict:
    """Judge a run by the entries of its graph, with the names of its checkpoints by step.

    `kept` is the step whose weights were kept, if it is not the last one. Without evaluations the verdict rests on
    the training losses alone; `evaluates` or the fingerprint `validation_key` say that evaluations were planned.
    `planned` is the number of steps of a run that did not finish.
    """
    steps = read_steps(graph)
    evaluations = [e for e in read_evaluations(graph, validation_key) if math.isfinite(e.loss)]
    if steps and steps[-1].step < EARLY_SHARE * planned and len(evaluations) < MIN_EARLY_EVALUATIONS:
        return _judge_training_losses(steps, NO_VALIDATION, f"{steps[-1].step} of {format_count(planned, 'step')}")
    if steps and len(evaluations) >= 2:
        verdict = _with_recall(_Judge(steps, evaluations, checkpoints, kept).verdict(), recalls)
    elif len(steps) >= MIN_STEPS and len(recalls) >= 2:
        verdict = _judge_recall(recalls[0], recalls[-1])
    else:
        missing = NO_EVALUATION_YET if validation_key or evaluates else NO_VALIDATION
        verdict = _judge_training_losses(steps, ONE_EVALUATION if evaluations else missing)
    return _with_general_text(replace(verdict, text=f"{verdict.text}{_describe_swings(steps)}"), recalls)


def read_verdict(log: Mapping[str, Any]) -> str:
    """Return the text of the verdict in a log, or an empty string."""
    verdict = log.get("verdict")
    return str(verdict.get("text") or "") if isinstance(verdict, Mapping) else ""


NO_VALIDATION = "There was no validation split"
ONE_EVALUATION = "The validation split was evaluated only once"
NO_EVALUATION_YET = "The run ended before the validation split was evaluated"


class _Judge:
    def __init__(
        self,
        steps: Sequence[Step],
        evaluations: Sequence[EvaluationDone],
        checkpoints: Mapping[int, str],
        kept: int,
    ) -> None:
        self._smoothed = {s.step: s.smoothed for s in steps}
        self._evaluations, self._checkpoints, self._kept_step = evaluations, checkpoints, kept
        self._first, self._last, self._previous = evaluations[0], evaluations[-1], evaluations[-2]
        best = best_evaluation(evaluations)
        assert best is not None
        self._best = best

    def verdict(self) -> Verdict:
        if self._last.loss > self._best.loss * (1 + MIN_CHANGE):
            return self._after_best()
        drop = self._previous.loss - self._last.loss
        if self._best is self._last and drop > MIN_CHANGE * self._previous.loss:
            return self._make(
                "could learn more",
                f"The validation loss was still falling at the end: {self._loss_at(self._previous)}, then "
                f"{self._loss_at(self._last)}. More epochs or a higher learning rate may help.",
                self._last,
            )
        if self._first.step == 0 and self._first.loss - self._best.loss <= MIN_CHANGE * self._first.loss:
            return self._make(
                "did not learn",
                f"The validation loss is about the same as before training: {self._loss_at(self._first)}, then "
                f"{self._loss_at(self._last)}. More epochs or a higher learning rate may help.",
                self._last,
            )
        return self._make(
            "about right",
            f"The validation loss fell from {self._first.loss:.4f} to {self._best.loss:.4f} (step "
            f"{self._best.step}) and was {self._last.loss:.4f} at the end.",
            self._best,
        )

    def _after_best(self) -> Verdict:
        loss_at_best, loss_at_end = self._training_loss(self._best.step), self._training_loss(self._last.step)
        rise = f"rose from {self._loss_at(self._best)} to {self._loss_at(self._last)}"
        start = f"The validation loss {rise}"
        if math.isfinite(loss_at_best) and math.isfinite(loss_at_end) and loss_at_end < loss_at_best:
            text = f"{start}, while the training loss kept falling from {loss_at_best:.4f} to {loss_at_end:.4f}."
            return self._make("began to memorize", text + self._checkpoint_advice(), self._best)
        text = f"{start}, and the training loss did not fall. Try a lower learning rate."
        return self._make("became worse", text + self._checkpoint_advice(), self._best)

    def _checkpoint_advice(self) -> str:
        """Say which checkpoint to use."""
        if self._kept_step and self._kept_step == self._best.step:
            return f" The saved LoRA is from step {self._kept_step}, before this rise."
        if name := self._better_checkpoint():
            return f" {name} is better."
        if self._best.step == 0:
            return (
                " The validation loss was never lower than before the first step, so the model does better on "
                "the validation split without this LoRA."
            )
        return (
            f" No checkpoint near step {self._best.step} is left. To get one, train again and stop at that step."
        )

    def _better_checkpoint(self) -> str:
        """Return the name of the checkpoint with the lowest measured loss, if it is lower than at the end."""
        candidates = [e for e in self._evaluations if e.step in self._checkpoints and e.step != self._last.step]
        best = best_evaluation(candidates)
        return self._checkpoints[best.step] if best and best.loss < self._last.loss else ""

    def _gap(self) -> str:
        """The generalization gap at the end, as a sentence."""
        gap = self._last.loss - self._training_loss(self._last.step)
        return f" The generalization gap is {gap:.4f}." if math.isfinite(gap) else ""

    def _training_loss(self, step: int) -> float:
        """Return the smoothed loss at a step; for step 0 that of the first step."""
        return self._smoothed.get(max(step, min(self._smoothed)), math.nan)

    def _loss_at(self, evaluation: EvaluationDone) -> str:
        return f"{evaluation.loss:.4f} (step {evaluation.step})"

    def _make(self, kind: VerdictKind, text: str, evaluation: EvaluationDone) -> Verdict:
        evidence = {
            "kept_aside_first": self._first.loss,
            "kept_aside_lowest": self._best.loss,
            "kept_aside_lowest_at_step": self._best.step,
            "kept_aside_last": self._last.loss,
            "training_at_lowest": self._training_loss(self._best.step),
            "training_last": self._training_loss(self._last.step),
        }
        better = self._better_checkpoint() if kind in ("began to memorize", "became worse") else ""
        words = f"{_title(kind, evaluation.step)}. {text}{self._gap()}"
        return Verdict(kind, words, evaluation.step, better, evidence)


def _title(kind: VerdictKind, step: int) -> str:
    since = f"at step {step}" if step else "right from the start"
    words: dict[VerdictKind, str] = {
        "began to memorize": f"The model began to memorize {since} (overfit)",
        "became worse": "The model became worse",
        "could learn more": "The model could learn more (underfit)",
        "did not learn": "The model did not learn (underfit)",
    }
    return words.get(kind, "About right (well fit)")


def _judge_recall(first: RecallMeasured, last: RecallMeasured) -> Verdict:
    """Judge without a validation split, by passages of the training data before the run and after it."""
    before, after = first.learned, last.learned
    evidence = {
        "recall_first": before.recall,
        "recall_last": after.recall,
        "passages_loss_first": before.loss,
        "passages_loss_last": after.loss,
    }
    losses = f"the loss on passages of the training data went from {before.loss:.4f} to {after.loss:.4f}"
    if before.loss - after.loss <= MIN_CHANGE * before.loss:
        text = f"The model did not learn (underfit): {losses}. More epochs or a higher learning rate may help."
        return Verdict("did not learn", text, last.step, "", evidence)
    by_heart = last.gain - first.gain >= BY_HEART
    title = "The model knows the training data by heart" if by_heart else "The model learned"
    text = f"{title}: {losses}. {SAME_PASSAGES} {_describe_recall(before.recall, after.recall)} {ADD_VALIDATION}"
    return Verdict("learned by heart" if by_heart else "learned", text, last.step, "", evidence)


def _describe_recall(before: float, after: float) -> str:
    share = f"on average, the model reproduces {after:.0%} of a passage word for word"
    if f"{after:.0%}" == f"{before:.0%}":
        return (
            f"The model did not memorize the text: {share}, as before the run. This is what you want if "
            "the LoRA is for a writing style."
        )
    by_heart = "" if after >= BY_HEART else ", so it does not know the text by heart"
    return f"{share.capitalize()} ({before:.0%} before the run){by_heart}."


def _with_recall(verdict: Verdict, recalls: Sequence[RecallMeasured]) -> Verdict:
    """Add the recall of the training data to a verdict that rests on validation losses."""
    if len(recalls) < 2:
        return verdict
    first, last = recalls[0], recalls[-1]
    unseen = f", and {last.control.recall:.0%} of a passage that it has not seen" if last.control else ""
    text = (
        f" On average, the model reproduces {last.learned.recall:.0%} of a training passage word for word "
        f"({first.learned.recall:.0%} before){unseen}."
    )
    evidence = {**verdict.evidence, "recall_first": first.learned.recall, "recall_last": last.learned.recall}
    return replace(verdict, text=verdict.text + text, evidence=evidence)


def _with_general_text(verdict: Verdict, recalls: Sequence[RecallMeasured]) -> Verdict:
    """Add what the model forgot, by the loss of general text before the run and after it."""
    losses = [event.general_loss for event in recalls if event.general_loss is not None]
    if len(losses) < 2:
        return verdict
    losses_text = f"went from {losses[0]:.4f} to {losses[-1]:.4f}"
    text = f" The loss on general text, which has nothing to do with your data, {losses_text}"
    rise = losses[-1] - losses[0]
    if rise <= 0:
        text = f"{text}, so there is no sign that the model forgot anything."
    elif rise <= FORGOT_LITTLE:
        text = f"{text}, so the model probably forgot almost nothing."
    elif rise <= FORGOT_MUCH:
        text = f"{text}, so the model forgot a little."
    else:
        less = "With fewer epochs or a lower learning rate, it forgets less."
        text = f"{text}, so with the LoRA, the model forgot a lot. {less}"
    evidence = {**verdict.evidence, "general_first": losses[0], "general_last": losses[-1]}
    return replace(verdict, text=verdict.text + text, evidence=evidence)


def _describe_swings(steps: Sequence[Step]) -> str:
    """Say so if the loss swings wildly from step to step in the second half of the run; otherwise empty."""
    losses = [step.loss for step in steps[len(steps) // 2 :] if math.isfinite(step.loss)]
    if len(losses) < MIN_SWINGING_STEPS:
        return ""
    low, *_, high = quantiles(losses, n=10)
    if high < WIDE_SWING * max(low, 1e-9) or high - low < MIN_SWING:
        return ""
    return (
        f" The loss swings widely from step to step, between {low:.2f} and {high:.2f}. A larger batch makes it "
        "steadier. If the smoothed loss swings too, lower the learning rate."
    )


def _judge_training_losses(steps: Sequence[Step], reason: str, too_few: str = "") -> Verdict:
    """Judge by the training losses; `too_few` says how many steps there are of a run that ended too early."""
    losses = [s.smoothed for s in steps if math.isfinite(s.smoothed)]
    if not losses:
        return Verdict("too early to tell", "No step has a valid loss.", 0, "", {})
    first, last = losses[0], losses[-1]
    earlier = losses[-1 - int(LAST_SHARE * len(losses))]
    evidence = {"training_first": first, "training_before_last_quarter": earlier, "training_last": last}
    change = f"the smoothed loss went from {first:.4f} to {last:.4f}"
    if too_few or len(losses) < MIN_STEPS:
        count = too_few or format_count(len(losses), "step")
        text = f"After {count}, it is too early to tell what the model learned. {change.capitalize()}."
        return Verdict("too early to tell", text, 0, "", evidence)
    if first - min(losses) <= MIN_CHANGE * first and last - first <= MIN_CHANGE * first:
        text = f"The model did not learn (underfit). {reason}, and the training loss stayed flat: {change}. "
        return Verdict("did not learn", f"{text}More epochs or a higher learning rate may help.", 0, "", evidence)
    falling = earlier - last > MIN_CHANGE * earlier
    fall = "was still falling" if last < first else "fell again"
    trend = f"and {fall if falling else 'stopped falling'} in the last quarter of the run"
    return Verdict(
        "training loss only",
        f"{reason}, so only the training loss can be judged: {change} {trend}.",
        0,
        "",
        evidence,
    )
