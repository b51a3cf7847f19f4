"""The verdict on a run from given curves: its text, its figures, and the better checkpoint."""

import math
from dataclasses import replace

import pytest
from training_pro.core.jobs import EvaluationDone, RecallFigures, RecallMeasured
from training_pro.engine.plan import StepLog
from training_pro.records.report import graph_entry, judge_live, judge_run, read_evaluations, read_steps

FIGURES = {"perplexity": 1.0, "accuracy": 0.5, "tokens": 9, "seconds": 1.0, "validation_key": "mark"}
RUN = range(1, 17)
FALLING = {step: 3.0 - step / 10 for step in RUN}
RISING = {step: 2.0 + step / 10 for step in RUN}
LEVEL = dict.fromkeys(RUN, 2.0)
NAMES = {4: "checkpoint-4-epoch-1", 8: "checkpoint-8", 12: "checkpoint-12-epoch-3", 16: "checkpoint-16"}
MEMORIZED = {0: 3.0, 4: 2.5, 8: 2.2, 12: 2.4, 16: 2.9}


def graph(training, validation):
    """Build a graph from smoothed losses and validation losses, both by step."""
    done = [EvaluationDone(step=n, epoch=1.0, why="planned", loss=v, **FIGURES) for n, v in validation.items()]
    entries = [{"current_steps": step, "loss": s, "smoothed_loss": s} for step, s in training.items()]
    return sorted([*map(graph_entry, done), *entries], key=lambda entry: entry["current_steps"])


def judged(training, validation, names=NAMES, **more):
    entries = graph(training, validation)
    return judge_run(read_steps(entries), read_evaluations(entries), names, **more)


def test_it_began_to_memorize_where_the_two_losses_diverge():
    verdict = judged(FALLING, MEMORIZED)
    assert (verdict.kind, verdict.step, verdict.better) == ("began to memorize", 8, "checkpoint-8")
    assert "rose from 2.2000 (step 8) to 2.9000 (step 16)" in verdict.text
    assert "checkpoint-8 is better. The generalization gap is 1.4500" in verdict.text


def test_the_better_checkpoint_is_one_that_still_exists():
    assert judged(FALLING, MEMORIZED, {12: "checkpoint-12", 16: "c"}).better == "checkpoint-12"
    kept = judged(FALLING, {0: 2.0, 8: 2.2, 16: 2.9}, kept=8)  # by accuracy, say
    assert kept.better == "" and "The saved LoRA is from step 8." in kept.text
    assert "the model was better before this run" in kept.text
    gone = judged(FALLING, MEMORIZED, {16: "checkpoint-16"})
    assert gone.better == "" and "No checkpoint near step 8 is left." in gone.text


@pytest.mark.parametrize(
    ("training", "validation", "kind", "words"),
    [
        (FALLING, {0: 2.0, 8: 2.2, 16: 2.9}, "began to memorize", "right from the start (overfit)"),
        (FALLING, {0: 3.0, 8: 2.5, 16: 2.2}, "could learn more", "was still falling in the second half"),
        (FALLING, {0: 3.0, 16: 2.2}, "learned", "evaluate more"),
        (FALLING, {0: 3.0, 8: 2.2, 16: 2.21}, "about right", "fell from 3.0000 to"),
        (LEVEL, {0: 3.0, 8: 3.0, 16: 3.02}, "did not learn", "about the same as before training: 3.0000 (step 0)"),
        (RISING, {0: 2.0, 8: 2.5, 16: 3.0}, "became worse", "Try a lower learning rate. checkpoint-8 is better."),
        (LEVEL, {}, "did not learn", "the training loss stayed flat: the smoothed loss went from 2.0000 to"),
        (FALLING, {0: 2.5}, "training loss only", "The validation split was evaluated only once"),
        (dict.fromkeys(range(1, 8), 3.0), {}, "too early to tell", "After 7 steps, it is too early"),
        ({1: math.nan}, {}, "too early to tell", "No step has a valid loss."),
    ],
)
def test_each_pair_of_curves_has_its_verdict(training, validation, kind, words):
    verdict = judged(training, validation)
    assert verdict.kind == kind and words in verdict.text
    assert bool(verdict.better) == (kind in ("began to memorize", "became worse") and bool(validation))


def test_evaluations_on_another_split_or_none_do_not_count():
    log = StepLog(graph(FALLING, MEMORIZED), None)
    assert (len(log.evaluations("mark")), log.evaluations("other")) == (len(MEMORIZED), [])
    text = judged(FALLING, {}, evaluates=True).text
    assert "The run ended before the validation split was evaluated" in text


def curve(step, *, fall=0.0, speed=2, rise=0.0):
    """Give a validation loss: `fall` fades away over the run, `rise` is added after a quarter of it."""
    share = step / 160
    return 2 + fall * math.exp(-speed * share) + rise * max(0.0, share - 0.25)


@pytest.mark.parametrize(
    ("shape", "kind", "live"),
    [
        ({"fall": 1.0}, "could learn more", "The validation loss is falling: the model is learning."),
        ({"fall": 1.0, "speed": 8}, "about right", "about the same as halfway"),
        ({}, "did not learn", "about the same as before training"),
        ({"rise": 1.0}, "began to memorize", "has risen since step"),
    ],
)
def test_the_verdict_does_not_depend_on_how_often_the_run_was_evaluated(shape, kind, live):
    """The same run was underfit with an evaluation an epoch, and well fit with one a step."""
    training = {step: 3.0 - step / 160 for step in range(1, 161)}
    for every in (1, 80):
        entries = graph(training, {step: curve(step, **shape) for step in range(0, 161, every)})
        steps, evaluations = read_steps(entries), read_evaluations(entries)
        assert judge_run(steps, evaluations, {}).kind == kind, every
        assert live in judge_live(steps, 160, evaluations), every


def recall(step, share, loss, unseen):
    figures = RecallFigures(passages=16, recall=share, verbatim=0, longest=9, loss=loss)
    control = replace(figures, recall=unseen, loss=3.0)
    return RecallMeasured(step=step, epoch=0.0, why="planned", learned=figures, control=control)


@pytest.mark.parametrize(
    ("share", "loss", "kind", "words"),
    [
        (0.83, 0.4, "learned by heart", "The model knows the training data by heart: the loss on passages"),
        (0.12, 2.1, "learned", "The model learned: the loss on passages of the training data went from 3.0000"),
        (0.02, 2.99, "did not learn", "The model did not learn (underfit): the loss on passages"),
        (
            0.02,
            6.5,
            "became worse",
            "The model became worse: the loss on passages of the training data went from 3.0",
        ),
    ],
)
def test_recall_tells_what_was_learned_beside_the_validation_losses_or_without_them(share, loss, kind, words):
    recalls = [recall(0, 0.02, 3.0, 0.01), recall(16, share, loss, 0.03)]
    verdict = judged(LEVEL, {}, recalls=recalls)
    assert verdict.kind == kind and verdict.text.startswith(words)
    told = f"reproduces {share:.0%} of a training passage word for word (2% before), and 3% of a passage"
    assert (told in verdict.text) == (kind != "did not learn")
    beside = judged(FALLING, MEMORIZED, recalls=recalls)
    assert beside.kind == "began to memorize" and told in beside.text
    assert f"The generalization gap is {3 - loss:.4f} (the loss on unseen passages minus" in beside.text
    first_only = judged(FALLING, MEMORIZED, recalls=recalls[:1])  # the best step was before the second
    assert "unseen passages minus" not in first_only.text


def test_a_run_that_ended_before_a_tenth_of_its_steps_is_too_short_to_judge():
    recalls = [recall(0, 0.02, 3.0, 0), recall(16, 0.02, 2.9, 0)]
    ends = {0: 3.0, 16: 2.9}
    verdict = judged(FALLING, ends, recalls=recalls, planned=170)
    assert (verdict.kind, verdict.step, verdict.better) == ("too early to tell", 0, "")
    for validation, planned in ((ends, 160), (MEMORIZED, 170)):
        assert judged(FALLING, validation, recalls=recalls, planned=planned).kind != "too early to tell"


def points(smoothed, loss=None):
    """Return steps with these smoothed losses, 100 seconds apart."""
    losses = enumerate(smoothed, start=1)
    steps = read_steps({"current_steps": n, "loss": loss or s, "smoothed_loss": s} for n, s in losses)
    return [replace(step, at=100.0 * step.step) for step in steps]


@pytest.mark.parametrize(
    ("smoothed", "steps", "sentence"),
    [
        ([3.70, 4.09, 3.96, 3.92, 3.83, 3.62, 4.00, 3.66, 3.51], 100, "too early to judge"),
        ([2.0] * 9, 100, "too early to judge"),
        ([3.0, 2.9, 2.8, 2.7, 2.6], 100, "falling, as expected at the start"),
        ([2.0] * 9, 9, "about the same as 4 steps ago"),
        ([2.0, 2.1, 2.2, 2.3, 2.4, 2.5], 6, "is rising. If this continues"),
        ([0.6, 0.5, 0.45, 0.4, 0.3], 10, "knows much of the text by heart"),
    ],
)
def test_during_a_run_each_trend_has_its_sentence(smoothed, steps, sentence):
    assert sentence in judge_live(points(smoothed), steps)
    assert "NaN or infinite" in judge_live(points(smoothed, loss=math.nan), steps)
