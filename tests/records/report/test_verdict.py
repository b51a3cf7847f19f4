"""The verdict on a run from given curves: its text, its figures, and the better checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from training_pro.core.jobs import EvaluationDone, RecallFigures, RecallMeasured
from training_pro.records.report import graph_entry, judge_live, judge_run, read_evaluations, read_steps


def graph(training, validation):
    """Build a graph from smoothed losses and validation losses, both by step."""
    entries = [graph_entry(_evaluation(step, loss)) for step, loss in validation.items()]
    entries += [{"current_steps": step, "loss": s, "smoothed_loss": s} for step, s in training.items()]
    return sorted(entries, key=lambda e: e["current_steps"])


def _evaluation(step, loss):
    figures = {"perplexity": 1.0, "accuracy": 0.5, "tokens": 9, "seconds": 1.0}
    return EvaluationDone(step=step, epoch=1.0, why="planned", loss=loss, validation_key="mark", **figures)


FALLING = {step: 3.0 - step / 10 for step in range(1, 17)}
LEVEL = dict.fromkeys(range(1, 17), 2.0)
SETTLED = {step: 3.0 - min(step, 8) / 10 for step in range(1, 17)}
NAMES = {4: "checkpoint-4-epoch-1", 8: "checkpoint-8", 12: "checkpoint-12-epoch-3", 16: "checkpoint-16"}
GAP = " (the loss on the validation split minus the mean training loss of the last steps)."
MEMORIZED = {0: 3.0, 4: 2.5, 8: 2.2, 12: 2.4, 16: 2.9}


def test_it_began_to_memorize_where_the_two_losses_diverge():
    verdict = judge_run(graph(FALLING, MEMORIZED), NAMES)
    assert (verdict.kind, verdict.step, verdict.better) == ("began to memorize", 8, "checkpoint-8")
    assert verdict.text == (
        "The model began to memorize at step 8 (overfit). The validation loss rose from 2.2000 (step 8) to 2.9000 "
        "(step 16), while the training loss kept falling from 2.2500 to 1.4500. checkpoint-8 is better. "
        f"The generalization gap is 1.4500{GAP}"
    )
    assert verdict.as_log()["better"] == "checkpoint-8"


def test_a_validation_loss_that_only_rose_means_memorizing_from_the_first_step():
    text = judge_run(graph(FALLING, {0: 2.0, 8: 2.2, 16: 2.9}), NAMES).text
    assert text.startswith("The model began to memorize right from the start (overfit). The validation loss rose")


def test_the_better_checkpoint_is_one_that_still_exists():
    assert judge_run(graph(FALLING, MEMORIZED), {12: "checkpoint-12", 16: "c"}).better == "checkpoint-12"
    gone = judge_run(graph(FALLING, MEMORIZED), {16: "checkpoint-16"})
    assert gone.better == ""
    advice = "No checkpoint near step 8 is left. To get one, train again and stop at that step."
    assert advice in gone.text
    kept = judge_run(graph(FALLING, MEMORIZED), NAMES, kept=8)
    assert "The saved LoRA is from step 8, before this rise." in kept.text


def test_it_could_learn_more_while_both_fall():
    verdict = judge_run(graph(FALLING, {0: 3.0, 8: 2.5, 16: 2.2}), NAMES)
    assert (verdict.kind, verdict.better) == ("could learn more", "")
    assert verdict.text.startswith(
        "The model could learn more (underfit). The validation loss was still falling in the second half"
    )


def curve(step, *, fall=0.0, speed=2, rise=0.0, lowest=0.25, jitter=0.0):
    """Give a validation loss: `fall` fades away over the run, `rise` is added after its share `lowest`."""
    share = step / 160
    loss = 2 + fall * math.exp(-speed * share) + rise * max(0.0, share - lowest)
    return loss * (1 + (jitter * (-1) ** step if step else 0))


@pytest.mark.parametrize(
    ("shape", "kind", "live"),
    [
        ({"fall": 1.0}, "could learn more", "The validation loss is falling: the model is learning."),
        ({"fall": 1.0, "speed": 8}, "about right", "about the same as halfway"),
        ({"fall": 0.05}, "could learn more", "is falling"),  # at each evaluation, by 1.9% in all
        ({}, "did not learn", "about the same as before training"),
        ({"rise": 1.0}, "began to memorize", "has risen since step"),
        (
            {"fall": 1.0, "rise": 1.0, "lowest": 0.5},
            "began to memorize",
            "the model memorizes more than it learns",
        ),
        ({"fall": 1.0, "jitter": 0.02}, "could learn more", "is falling"),
        ({"fall": 1.0, "rise": 1.0, "lowest": 0.5, "jitter": 0.02}, "began to memorize", "has risen since step"),
        ({"jitter": 0.004}, "did not learn", "about the same as before training"),
    ],
    ids=[
        "falling",
        "settled",
        "falling slowly",
        "flat",
        "rising",
        "risen after a minimum",
        "noisy fall",
        "noisy rise",
        "noisy",
    ],
)
def test_the_verdict_does_not_depend_on_how_often_the_run_was_evaluated(shape, kind, live):
    """the same run was underfit with an evaluation an epoch, and well fit with one a step."""
    training = {step: 3.0 - step / 160 for step in range(1, 161)}
    for every in (1, 2, 5, 8, 16, 20, 40, 80):
        entries = graph(training, {step: curve(step, **shape) for step in range(0, 161, every)})
        assert judge_run(entries, {}).kind == kind, every
        assert live in judge_live(read_steps(entries), 160, read_evaluations(entries)), every


@given(st.floats(0, 2), st.floats(0.5, 12), st.sets(st.integers(1, 160), min_size=8))
def test_more_evaluations_of_the_same_curve_change_no_verdict_but_a_close_call(fall, speed, steps):
    epochs = {0, 40, 80, 120, 160}
    first, halfway, last = (curve(step, fall=fall, speed=speed) for step in (0, 80, 160))
    limits = {0.0025 * halfway: halfway - last, 0.1 * (first - last): halfway - last, 0.01 * first: first - last}
    assume(not any(limit / 2 < change < 2 * limit for limit, change in limits.items()))
    kinds = set()
    for evaluated in (epochs, epochs | steps, range(161)):
        entries = graph(FALLING, {step: curve(step, fall=fall, speed=speed) for step in sorted(evaluated)})
        kinds.add(judge_run(entries, {}).kind)
    assert len(kinds) == 1


def test_a_loss_that_fell_between_two_evaluations_is_not_called_still_falling():
    verdict = judge_run(graph(FALLING, {0: 3.0, 16: 2.2}), NAMES)
    assert (verdict.kind, verdict.better) == ("learned", "")
    assert "To see whether it was still falling at the end, evaluate more often" in verdict.text


@pytest.mark.parametrize("last", [2.19, 2.21])
def test_about_right_where_the_loss_has_leveled_off(last):
    verdict = judge_run(graph(FALLING, {0: 3.0, 8: 2.2, 16: last}), NAMES)
    assert (verdict.kind, verdict.better) == ("about right", "")
    assert "fell from 3.0000 to" in verdict.text


@pytest.mark.parametrize("last", [3.0, 2.98, 3.02])
def test_where_nothing_changed_it_is_not_about_right(last):
    verdict = judge_run(graph(LEVEL, {0: 3.0, 8: 3.0, 16: last}), NAMES)
    assert (verdict.kind, verdict.better) == ("did not learn", "")
    assert verdict.text == (
        "The model did not learn (underfit). The validation loss is about the same as before training: 3.0000 "
        f"(step 0), then {last:.4f} (step 16). More epochs or a higher learning rate may help. "
        f"The generalization gap is {last - 2:.4f}{GAP}"
    )


def test_worse_in_both_losses_is_not_memorizing():
    rising = {step: 2.0 + step / 10 for step in range(1, 17)}
    verdict = judge_run(graph(rising, {0: 2.0, 8: 2.5, 16: 3.0}), {8: "c8"})
    assert verdict.kind == "became worse"
    assert "Try a lower learning rate. c8 is better." in verdict.text
    without = judge_run(graph(rising, {0: 2.0, 8: 2.5, 16: 3.0}), {})
    assert "the model does better on the validation split without this LoRA" in without.text


@pytest.mark.parametrize(
    ("losses", "trend"), [(FALLING, "was still falling"), (SETTLED, "did not clearly fall any more")]
)
def test_without_a_validation_split_it_says_no_more_than_is_known(losses, trend):
    verdict = judge_run(graph(losses, {}), NAMES)
    assert verdict.kind == "training loss only"
    assert verdict.text.startswith("There was no validation split, so only the training loss can be judged: ")
    assert trend in verdict.text


def test_a_flat_training_loss_is_enough_to_say_that_nothing_was_learned():
    verdict = judge_run(graph(LEVEL, {}), NAMES)
    assert (verdict.kind, verdict.step, verdict.better) == ("did not learn", 0, "")
    assert verdict.text == (
        "The model did not learn (underfit). There was no validation split, and the training loss stayed flat: "
        "the smoothed loss went from 2.0000 to 2.0000. More epochs or a higher learning rate may help."
    )


def test_a_training_loss_that_fell_and_rose_again_is_not_flat():
    back = {step: 2.0 - min(step, 17 - step) / 10 for step in range(1, 17)}
    assert judge_run(graph(back, {}), NAMES).kind == "training loss only"


def test_a_single_evaluation_is_not_enough():
    verdict = judge_run(graph(FALLING, {0: 2.5}), NAMES)
    assert verdict.text.startswith(
        "The validation split was evaluated only once, so only the training loss can be"
    )


def test_a_validation_split_that_was_never_evaluated_is_said():
    for kwargs in ({"validation_key": "its digest"}, {"evaluates": True}):
        text = judge_run(graph(FALLING, {}), NAMES, **kwargs).text
        assert text.startswith(
            "The run ended before the validation split was evaluated, so only the training loss can be"
        )


@pytest.mark.parametrize(
    ("count", "words"), [(1, "After 1 step, it is too early"), (7, "After 7 steps, it is too early")]
)
def test_a_few_steps_show_no_trend(count, words):
    assert words in judge_run(graph(dict.fromkeys(range(1, count + 1), 3.0), {}), NAMES).text
    assert "too early" not in judge_run(graph(dict.fromkeys(range(1, 9), 3.0), {}), NAMES).text


def test_a_loss_that_rose_was_not_still_falling():
    losses = {step: 0.01 if step < 4 else 0.05 - step / 1000 for step in range(1, 17)}
    text = judge_run(graph(losses, {}), NAMES).text
    assert "went from 0.0100 to 0.0340 and fell again in the last quarter" in text


def test_evaluations_on_another_split_do_not_count():
    assert judge_run(graph(FALLING, MEMORIZED), NAMES, validation_key="other").kind == "training loss only"


def test_nan_is_left_out():
    broken = {**MEMORIZED, 20: math.nan}
    assert judge_run(graph({**FALLING, 20: math.nan}, broken), NAMES).step == 8
    assert judge_run(graph({1: math.nan}, {}), {}).text == "No step has a valid loss."


def recall(step, share, loss, unseen=None):
    figures = RecallFigures(passages=16, recall=share, verbatim=0, longest=9, loss=loss)
    control = None if unseen is None else replace(figures, recall=unseen)
    return RecallMeasured(step=step, epoch=0.0, why="planned", learned=figures, control=control)


@pytest.mark.parametrize(
    ("last", "kind", "words"),
    [
        (
            recall(16, 0.83, 0.4),
            "learned by heart",
            "The model knows the training data by heart: the loss on passages",
        ),
        (
            recall(16, 0.12, 2.1),
            "learned",
            "The model learned: the loss on passages of the training data went from 3.0000",
        ),
        (recall(16, 0.02, 2.99), "did not learn", "The model did not learn (underfit): the loss on passages"),
    ],
)
def test_recall_tells_what_was_learned_without_a_validation_split(last, kind, words):
    verdict = judge_run(graph(LEVEL, {}), NAMES, recalls=[recall(0, 0.02, 3.0), last])
    assert verdict.kind == kind
    assert verdict.text.startswith(words)
    if kind != "did not learn":
        assert (
            f"reproduces {last.learned.recall:.0%} of a training passage word for word (2% before)."
            in verdict.text
        )


def test_a_few_steps_are_too_few_to_judge_by_recall():
    recalls = [recall(0, 0.02, 3.0), recall(2, 0.02, 3.0)]
    assert judge_run(graph({1: 3.0, 2: 3.0}, {}), NAMES, recalls=recalls).kind == "too early to tell"


def test_a_run_that_ended_before_a_tenth_of_its_steps_is_too_short_to_judge():
    recalls = [recall(0, 0.02, 3.0), recall(16, 0.02, 2.9)]
    two = {step: MEMORIZED[step] for step in sorted(MEMORIZED)[:: len(MEMORIZED) - 1]}
    verdict = judge_run(graph(FALLING, two), NAMES, recalls=recalls, planned=170)
    assert (verdict.kind, verdict.step, verdict.better) == ("too early to tell", 0, "")
    assert verdict.text == (
        "After 16 of 170 steps, it is too early to tell what the model learned. The smoothed loss went from "
        "2.9000 to 1.4000."
    )
    for evaluations, planned in ((two, 160), (MEMORIZED, 170)):
        verdict = judge_run(graph(FALLING, evaluations), NAMES, recalls=recalls, planned=planned)
        assert verdict.kind != "too early to tell"


def test_recall_stands_beside_the_validation_losses():
    last = recall(16, 0.83, 0.4, 0.03)
    last = replace(last, control=replace(last.control, loss=3.0))
    recalls = [recall(0, 0.02, 3.0, 0.01), last]
    verdict = judge_run(graph(FALLING, MEMORIZED), NAMES, recalls=recalls)
    assert verdict.kind == "began to memorize"
    gap = "The generalization gap is 2.6000 (the loss on unseen passages minus the loss on training passages)."
    assert gap in verdict.text
    assert verdict.text.endswith(
        "On average, the model reproduces 83% of a training passage word for word (2% before), and 3% of a "
        "passage that it has not seen."
    )


def test_wild_swings_of_the_loss_are_told():
    wild = {step: 0.5 if step % 2 else 4.0 for step in range(1, 61)}
    assert "swings widely from step to step, between 0.50 and 4.00" in judge_run(graph(wild, {}), NAMES).text
    steady = {step: 3.0 - step / 100 for step in range(1, 61)}
    assert "swings" not in judge_run(graph(steady, {}), NAMES).text
    tiny = {step: 0.01 if step % 2 else 0.05 for step in range(1, 61)}
    assert "swings" not in judge_run(graph(tiny, {}), NAMES).text
    short = {step: wild[step] for step in range(1, 11)}
    assert "swings" not in judge_run(graph(short, {}), NAMES).text


def points(*smoothed, loss=None):
    entries = (
        {"current_steps": n, "loss": loss or s, "smoothed_loss": s} for n, s in enumerate(smoothed, start=1)
    )
    return [replace(step, at=100.0 * step.step) for step in read_steps(entries)]


@pytest.mark.parametrize(
    ("smoothed", "steps", "sentence"),
    [
        ([3.0, 2.9], 100, "too early to judge"),
        ([3.0, 2.9, 2.8, 2.7, 2.6], 100, "falling, as expected at the start"),
        ([3.0, 2.9, 2.8, 2.7, 2.6, 2.5], 6, "falling: the model is learning"),
        ([2.0] * 9, 9, "about the same as 4 steps ago"),
        ([2.0, 1.99, 1.985, 1.98, 1.97], 100, "falling, as expected at the start"),  # a curve that visibly falls
        ([2.0, 2.1, 2.2, 2.3, 2.4, 2.5], 6, "is rising. If this continues"),
        ([2.0, 2.1, 2.2, 2.3, 2.4], 100, "can happen in the first steps"),
        ([0.6, 0.5, 0.45, 0.4, 0.3], 10, "knows much of the text by heart"),
    ],
)
def test_during_a_run_each_trend_has_its_sentence(smoothed, steps, sentence):
    assert sentence in judge_live(points(*smoothed), steps)


def test_a_lucky_first_step_does_not_make_a_falling_loss_rise():
    history = points(3.6, 4.1, 4.0, 3.9, 3.9, 3.8, 3.7, 3.6)
    steps = [replace(step, smoothed=3.6 + step.step / 100) for step in history]
    assert "too early to judge" in judge_live(steps, 100)
    longer = points(3.6, 4.1, 4.0, 3.9, 3.9, 3.8, 3.7, 3.6, 3.6, 3.5, 3.5, 3.4)
    rising = [replace(step, smoothed=3.6 + step.step / 100) for step in longer]
    assert "falling, as expected at the start" in judge_live(rising, 100)


def test_a_change_that_may_be_chance_is_not_judged():
    for losses in ((3.70, 4.09, 3.96, 3.92, 3.83, 3.62, 4.00, 3.66), (2.0,) * 9):
        assert "too early to judge" in judge_live(points(*losses), 100)
    assert "too early to judge" in judge_live(points(3.70, 4.09, 3.96, 3.92, 3.83, 3.62, 4.00, 3.66, 3.51), 100)


def test_a_loss_that_is_not_finite_is_reported_first():
    assert "NaN or infinite" in judge_live(points(1.0, 1.0, loss=float("nan")), 10)
    assert judge_live([], 10) == ""


def test_with_a_rising_validation_loss_a_falling_training_loss_is_not_called_learning():
    steps, evaluations = points(*FALLING.values()), read_evaluations(graph({}, {0: 3.0, 6: 2.5, 12: 2.8}))
    assert judge_live(steps, 30, evaluations) == (
        "The validation loss has risen since step 6: the model memorizes more than it learns."
    )
    assert judge_live(steps, 30, evaluations[:1]) == judge_live(steps, 30)
