"""Verdict on how well a run learned, from its training and validation losses and its recall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise
from statistics import fmean, quantiles
from typing import Any, Literal

from ...core.jobs import EvaluationDone, RecallMeasured, Step, event_words
from ...train_utils import format_count
from .graph_file import best_evaluation

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
# A relative change of a loss that is more than chance.
MIN_CHANGE = 0.01
# A validation loss that falls by less than this share of its whole fall in the second half of the run has leveled
# off. It also has if it falls by less than a quarter of MIN_CHANGE, since the whole fall may be little more.
MIN_FALL = 0.1
# If there are only training losses, the last quarter of the run is judged, and fewer than 8 steps show no trend.
LAST_SHARE, MIN_STEPS = 0.25, 8
# So many parts of a run count as one evaluation each.
COURSE_PARTS = 8
# A run that ended before this share of its steps is too short to judge, unless it was evaluated often enough: one
# evaluation before the first step and one after the last show no trend.
EARLY_SHARE, MIN_EARLY_EVALUATIONS = 0.1, 3
# How far recall must exceed that of unseen text before a text counts as known by heart.
BY_HEART = 0.5
# bench/recipe_data/results.csv: each run that ended below it reproduced over half of a passage on average.
LOW_LOSS = 0.5
# A wide swing: how many times the lowest tenth of the losses the highest tenth is, in how many steps at least, and
# by how much at least, because losses near 0 always differ by a large factor.
WIDE_SWING, MIN_SWINGING_STEPS, MIN_SWING = 3.0, 20, 0.3
LEARN_MORE = "More epochs or a higher learning rate may help."
# By how much the loss on general text has risen at most.
FORGETTING = (
    (0.0, "there is no sign that the model forgot anything in this run."),
    (event_words.FORGOT_LITTLE, "the model probably forgot almost nothing."),
    (event_words.FORGOT_MUCH, "the model forgot a little."),
)
FORGOT_A_LOT = (
    "with the LoRA, the model forgot a lot. With fewer epochs or a lower learning rate, it forgets less."
)


@dataclass(frozen=True)
class Verdict:
    """The verdict in words, the step it refers to, and the better checkpoint if there is one."""

    kind: VerdictKind
    text: str
    step: int = 0
    better: str = ""


def read_verdict(log: Mapping[str, Any]) -> str:
    """Return the text of the verdict in a log, or an empty string."""
    verdict = log.get("verdict")
    return str(verdict.get("text") or "") if isinstance(verdict, Mapping) else ""


def judge_run(
    steps: Sequence[Step],
    evaluations: Sequence[EvaluationDone],
    checkpoints: Mapping[int, str],
    kept: int = 0,
    *,
    evaluates: bool = False,
    recalls: Sequence[RecallMeasured] = (),
    planned: int = 0,
) -> Verdict:
    """Judge a run by its steps and its evaluations on one split, with the names of its checkpoints by step.

    `kept` is the step whose weights were kept, if it is not the last one. Without evaluations the verdict rests on
    the training losses alone; `evaluates` says that evaluations were planned. `planned` is the number of steps of
    a run that did not finish.
    """
    evaluations = [e for e in evaluations if math.isfinite(e.loss)]
    missing = "There was no validation split"
    if steps and steps[-1].step < EARLY_SHARE * planned and len(evaluations) < MIN_EARLY_EVALUATIONS:
        return _judge_training_losses(steps, missing, f"{steps[-1].step} of {format_count(planned, 'step')}")
    known = [event for event in recalls if event.learned.passages]  # none where preferences are learned
    if steps and len(evaluations) >= 2:
        verdict = _judge_validation(steps, evaluations, checkpoints, kept, known)
    elif len(steps) >= MIN_STEPS and len(known) >= 2:
        verdict = _judge_recall(known)
    else:
        if evaluations:
            missing = "The validation split was evaluated only once"
        elif evaluates:
            missing = "The run ended before the validation split was evaluated"
        verdict = _judge_training_losses(steps, missing)
    text = verdict.text + _describe_swings(steps)
    # What the model forgot, by the loss of general text before the run and after it.
    general = [event.general_loss for event in recalls if event.general_loss is not None]
    if len(general) >= 2:
        rise = general[-1] - general[0]
        what = next((words for most, words in FORGETTING if rise <= most), FORGOT_A_LOT)
        went = f"went from {general[0]:.4f} to {general[-1]:.4f}, so {what}"
        text += f" The loss on general text, which has nothing to do with your data, {went}"
    return replace(verdict, text=text)


class Trend(Enum):
    """Where the validation loss is going."""

    RISEN = auto()
    FALLING = auto()
    LEVEL = auto()
    UNCHANGED = auto()  # since before the first step
    FELL = auto()  # known at two places only, so nobody knows when it fell


@dataclass(frozen=True)
class Course:
    """How the validation loss went, so that many evaluations say the same as a few."""

    first: EvaluationDone
    best: EvaluationDone
    last: EvaluationDone
    halfway: float
    trend: Trend


def trace_course(evaluations: Sequence[EvaluationDone]) -> Course:
    """Trace at least two evaluations with finite losses."""
    evaluations = sorted(evaluations, key=lambda e: e.step)
    first, span = evaluations[0], evaluations[-1].step - evaluations[0].step
    # With many evaluations, the loss jitters, and the lowest and the last one would be chance. So each part of the
    # run counts as its median evaluation.
    parts: dict[int, list[EvaluationDone]] = {}
    for e in evaluations[1:]:
        parts.setdefault(math.ceil(COURSE_PARTS * (e.step - first.step) / max(span, 1)), []).append(e)
    course = [first, *(sorted(part, key=lambda e: e.loss)[(len(part) - 1) // 2] for part in parts.values())]
    lowest, last = min(e.loss for e in course), course[-1]
    # The trend is that of the second half, from the straight line between the evaluations around its middle. A
    # single step back would depend on how often the run is evaluated.
    middle = (first.step + last.step) / 2
    before, after = next((a, b) for a, b in pairwise(course) if a.step <= middle <= b.step)
    share = (middle - before.step) / max(after.step - before.step, 1)
    halfway = before.loss + share * (after.loss - before.loss)
    if last.loss > lowest * (1 + MIN_CHANGE):
        trend = Trend.RISEN
    elif first.step == 0 and first.loss - lowest <= MIN_CHANGE * first.loss:
        trend = Trend.UNCHANGED
    elif len(course) == 2:
        trend = Trend.FELL
    else:
        fall, whole = halfway - last.loss, first.loss - last.loss
        trend = Trend.FALLING if fall > max(MIN_CHANGE / 4 * halfway, MIN_FALL * whole) else Trend.LEVEL
    best = best_evaluation(evaluations)
    assert best is not None
    return Course(first, best, last, halfway, trend)


def _mean_loss(steps: Sequence[Step], step: int) -> float:
    """The mean training loss of the steps up to this one; for step 0, of the first ones."""
    # The smoothed loss would not do: it lags behind, and at first it is the loss of a single batch.
    finite = [s for s in steps if math.isfinite(s.loss)]
    count = max(1, len(finite) // COURSE_PARTS)
    up_to = sum(s.step <= step for s in finite)
    part = [s.loss for s in finite[max(0, up_to - count) : max(up_to, count)]]
    return fmean(part) if part else math.nan


def _judge_validation(
    steps: Sequence[Step],
    evaluations: Sequence[EvaluationDone],
    checkpoints: Mapping[int, str],
    kept: int,
    recalls: Sequence[RecallMeasured],
) -> Verdict:
    course = trace_course(evaluations)
    first, best, last, end = course.first, course.best, course.last, evaluations[-1]
    went = f"{first.loss:.4f} (step {first.step}), then {last.loss:.4f} (step {last.step})"
    if course.trend is Trend.RISEN:
        verdict = _judge_rise(steps, course, evaluations, checkpoints, kept)
    elif course.trend is Trend.UNCHANGED:
        text = "The model did not learn (underfit). The validation loss is about the same as before training"
        verdict = Verdict("did not learn", f"{text}: {went}. {LEARN_MORE}", last.step)
    elif course.trend is Trend.FELL:
        advice = "To see whether it was still falling at the end, evaluate more often ('Evaluate every')."
        verdict = Verdict("learned", f"The model learned. The validation loss fell: {went}. {advice}", last.step)
    elif course.trend is Trend.FALLING:
        text = "The model could learn more (underfit). The validation loss was still falling in the second half of"
        text += f" the run, from {course.halfway:.4f} to {last.loss:.4f}. {LEARN_MORE}"
        verdict = Verdict("could learn more", text, last.step)
    else:
        text = f"About right (well fit). The validation loss fell from {first.loss:.4f} to {best.loss:.4f} (step"
        text += f" {best.step}) and was {end.loss:.4f} at the end."
        verdict = Verdict("about right", text, best.step)
    if end.pairs:
        saved = next((each for each in evaluations if kept and each.step == kept), end)
        share = f"{saved.accuracy:.0%} of the {saved.pairs} preferences ({evaluations[0].accuracy:.0%} before)"
        text = f"{verdict.text} In the validation split, the model follows {share}."
        verdict = replace(verdict, text=text)
    control = recalls[-1].control if len(recalls) > 1 else None  # a single one is from before the first step
    if control:  # both losses are of passages, measured in the same way after the same step
        gap, of = control.loss - recalls[-1].learned.loss, "on unseen passages minus the loss on training passages"
    else:
        gap = end.loss - _mean_loss(steps, last.step)
        of = "on the validation split minus the mean training loss of the last steps"
    text = f" The generalization gap is {gap:.4f} (the loss {of})." if math.isfinite(gap) else ""
    return replace(verdict, text=verdict.text + text + _describe_recall(recalls))


def _judge_rise(
    steps: Sequence[Step],
    course: Course,
    evaluations: Sequence[EvaluationDone],
    checkpoints: Mapping[int, str],
    kept: int,
) -> Verdict:
    """Judge a run whose validation loss has risen: it memorized, or it became worse at everything."""
    best, last, end = course.best, course.last, evaluations[-1]
    saved = best_evaluation([e for e in evaluations if e.step in checkpoints and e.step != end.step])
    better = checkpoints[saved.step] if saved and saved.loss < end.loss else ""
    rise = f"rose from {best.loss:.4f} (step {best.step}) to {last.loss:.4f} (step {last.step})"
    training_best, training_last = _mean_loss(steps, best.step), _mean_loss(steps, last.step)
    kind: VerdictKind = "became worse"
    if training_last < training_best:
        kind, since = "began to memorize", f"at step {best.step}" if best.step else "right from the start"
        text = (
            f"The model began to memorize {since} (overfit). The validation loss {rise}, while the training loss "
            f"kept falling from {training_best:.4f} to {training_last:.4f}."
        )
    else:
        text = f"The model became worse. The validation loss {rise}, and the training loss did not fall. "
        text += "Try a lower learning rate."
    if kept:
        text += f" The saved LoRA is from step {kept}" + (", before this rise." if kept == best.step else ".")
    elif better:
        text += f" {better} is better."
    if best.step == 0:
        text += " The validation loss was never lower than before the first step, so on the validation split the "
        text += "model was better before this run."
    elif not kept and not better:
        text += f" No checkpoint near step {best.step} is left. To get one, train again and stop at that step."
    return Verdict(kind, text, best.step, "" if kept else better)


def _judge_recall(recalls: Sequence[RecallMeasured]) -> Verdict:
    """Judge without a validation split, by passages of the training data before the run and after it."""
    first, last = recalls[0], recalls[-1]
    before, after = first.learned.loss, last.learned.loss
    losses = f"the loss on passages of the training data went from {before:.4f} to {after:.4f}"
    if after - before > MIN_CHANGE * before:
        text = f"The model became worse: {losses}. Try a lower learning rate.{_describe_recall(recalls)}"
        return Verdict("became worse", text, last.step)
    if before - after <= MIN_CHANGE * before:
        return Verdict("did not learn", f"The model did not learn (underfit): {losses}. {LEARN_MORE}", last.step)
    by_heart = last.gain - first.gain >= BY_HEART
    title = "The model knows the training data by heart" if by_heart else "The model learned"
    text = (
        f"{title}: {losses}. This loss is measured on the same passages each time, so trust it more than the loss "
        f"curve.{_describe_recall(recalls)} To also measure how well the model does on similar text that it has "
        "not seen, set 'Validation split' before the next run, for example to 0.05 (5%)."
    )
    return Verdict("learned by heart" if by_heart else "learned", text, last.step)


def _judge_training_losses(steps: Sequence[Step], reason: str, too_few: str = "") -> Verdict:
    """Judge by the training losses; `too_few` says how many steps there are of a run that ended too early."""
    losses = [s.smoothed for s in steps if math.isfinite(s.smoothed)]
    if not losses:
        return Verdict("too early to tell", "No step has a valid loss.")
    first, last = losses[0], losses[-1]
    change = f"the smoothed loss went from {first:.4f} to {last:.4f}"
    if too_few or len(losses) < MIN_STEPS:
        count = too_few or format_count(len(losses), "step")
        text = f"After {count}, it is too early to tell what the model learned. {change.capitalize()}."
        return Verdict("too early to tell", text)
    if first - min(losses) <= MIN_CHANGE * first and last - first <= MIN_CHANGE * first:
        text = f"The model did not learn (underfit). {reason}, and the training loss stayed flat: {change}. "
        return Verdict("did not learn", f"{text}{LEARN_MORE}")
    falling = _change([s.loss for s in steps[-1 - int(LAST_SHARE * len(steps)) :]]) < -MIN_CHANGE
    fall = "was still falling" if last < first else "fell again"
    trend = f"and {fall if falling else 'did not clearly fall any more'} in the last quarter of the run"
    text = f"{reason}, so only the training loss can be judged: {change} {trend}."
    return Verdict("training loss only", text)


def _describe_recall(recalls: Sequence[RecallMeasured]) -> str:
    """Tell how much of the text the model knew by heart before the run and after it; empty if unknown."""
    if len(recalls) < 2:
        return ""
    first, last = f"{recalls[0].learned.recall:.0%}", f"{recalls[-1].learned.recall:.0%}"
    control = recalls[-1].control
    unseen = f", and {control.recall:.0%} of a passage that it has not seen" if control else ""
    same = " Recall does not show whether it learned a writing style." if first == last else ""
    return (
        f" On average, the model reproduces {last} of a training passage word for word ({first} before)"
        f"{unseen}.{same}"
    )


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


def judge_live(done: Sequence[Step], steps: int, evaluations: Sequence[EvaluationDone] = ()) -> str:
    """Say in one sentence how a run of so many steps is going."""
    if not done:
        return ""
    if not math.isfinite(done[-1].loss):
        return "The loss is NaN or infinite. Stop, and start again with a lower learning rate."
    comparable = [
        e for e in evaluations if math.isfinite(e.loss) and e.validation_key == evaluations[-1].validation_key
    ]
    if len(comparable) >= 2:
        course = trace_course(comparable)
        if course.trend is Trend.RISEN:
            since = f"The validation loss has risen since step {course.best.step}"
            if _mean_loss(done, done[-1].step) < _mean_loss(done, course.best.step):
                return f"{since}: the model memorizes more than it learns."
            return f"{since}, and the training loss has not fallen. If this continues, use a lower learning rate."
        if course.trend in (Trend.FALLING, Trend.FELL):
            return "The validation loss is falling: the model is learning."
        since = "before training" if course.trend is Trend.UNCHANGED else "halfway to the last evaluation"
        return f"The validation loss is about the same as {since}."
    compared = max(MIN_STEPS // 2, int(LAST_SHARE * steps))
    early, too_early = done[-1].step <= compared, "It is too early to judge the loss."
    if len(done) <= MIN_STEPS // 2:
        return too_early
    if done[-1].smoothed < LOW_LOSS and not done[-1].preferences:
        return "The loss is very low. On prose, this means that the model knows much of the text by heart."
    change = _change([s.loss for s in done] if early else [s.loss for s in done[-1 - compared :]])
    if change < -MIN_CHANGE:
        return "The loss is falling" + (", as expected at the start." if early else ": the model is learning.")
    if change <= MIN_CHANGE:
        return too_early if early else f"The loss is about the same as {compared} steps ago."
    if early:
        return "The loss is rising, which can happen in the first steps."
    return "The loss is rising. If this continues, stop the run and use a lower learning rate."


def _change(losses: Sequence[float]) -> float:
    """The relative change of the losses from their first third to the last; 0 if it may be chance."""
    # It may be chance if it is less than twice the error of the difference. How far losses scatter around a trend
    # is estimated from the differences between neighbors.
    losses = [loss for loss in losses if math.isfinite(loss)]
    third = max(1, len(losses) // 3)
    first, last = fmean(losses[:third]), fmean(losses[-third:])
    # The variance of the difference of two independent values is twice their own: hence the 2 in both lines.
    scatter = math.sqrt(sum((b - a) ** 2 for a, b in pairwise(losses)) / max(1, 2 * (len(losses) - 1)))
    error = scatter * math.sqrt(2 / third)
    return (last - first) / max(first, 1e-9) if abs(last - first) > 2 * error else 0.0
