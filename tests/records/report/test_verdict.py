"""The verdict on a run from given curves: its text, its figures, and the better checkpoint."""

import math
from dataclasses import replace

import pytest
from training_pro.core.jobs import EvaluationDone, RecallFigures, RecallMeasured
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
    evaluations = [
        EvaluationDone(step=n, epoch=1.0, why="planned", loss=v, **FIGURES) for n, v in validation.items()
    ]
    entries = [{"current_steps": step, "loss": s, "smoothed_loss": s} for step, s in training.items()]
    return sorted([*map(graph_entry, evaluations), *entries], key=lambda entry: entry["current_steps"])


def judged(training, validation, names=NAMES, **more):
    return judge_run(graph(training, validation), names, **more)


def test_it_began_to_memorize_where_the_two_losses_diverge():
    verdict = judged(FALLING, MEMORIZED)
    assert (verdict.kind, verdict.step, verdict.better) == ("began to memorize", 8, "checkpoint-8")
    rise = (
        "The validation loss rose from 2.2000 (step 8) to 2.9000 (step 16), while the training loss kept falling"
    )
    assert verdict.text.startswith(
        f"The model began to memorize at step 8 (overfit). {rise} from 2.2500 to 1.4500."
    )
    assert (
        "checkpoint-8 is better. The generalization gap is 1.4500 (the loss on the validation split"
        in verdict.text
    )
    assert verdict.as_log()["better"] == "checkpoint-8"
    broken = judged({**FALLING, 20: math.nan}, {**MEMORIZED, 20: math.nan})
    assert (broken.kind, broken.step) == (verdict.kind, verdict.step)  # NaN is left out


def test_the_better_checkpoint_is_one_that_still_exists():
    assert judged(FALLING, MEMORIZED, {12: "checkpoint-12", 16: "c"}).better == "checkpoint-12"
    gone = judged(FALLING, MEMORIZED, {16: "checkpoint-16"})
    assert gone.better == "" and "No checkpoint near step 8 is left." in gone.text
    assert "The saved LoRA is from step 8, before this rise." in judged(FALLING, MEMORIZED, kept=8).text


@pytest.mark.parametrize(
    ("training", "validation", "kind", "words"),
    [
        (FALLING, {0: 2.0, 8: 2.2, 16: 2.9}, "began to memorize", "right from the start (overfit)"),
        (FALLING, {0: 3.0, 8: 2.5, 16: 2.2}, "could learn more", "was still falling in the second half"),
        (FALLING, {0: 3.0, 16: 2.2}, "learned", "To see whether it was still falling at the end, evaluate more"),
        (FALLING, {0: 3.0, 8: 2.2, 16: 2.21}, "about right", "fell from 3.0000 to"),
        (LEVEL, {0: 3.0, 8: 3.0, 16: 3.02}, "did not learn", "about the same as before training: 3.0000 (step 0)"),
        (RISING, {0: 2.0, 8: 2.5, 16: 3.0}, "became worse", "Try a lower learning rate. checkpoint-8 is better."),
        (FALLING, {}, "training loss only", "was still falling"),
        ({n: 3.0 - min(n, 8) / 10 for n in RUN}, {}, "training loss only", "did not clearly fall any more"),
        ({n: 2.0 - min(n, 17 - n) / 10 for n in RUN}, {}, "training loss only", "from 1.9000 to 1.9000"),
        (LEVEL, {}, "did not learn", "the training loss stayed flat: the smoothed loss went from 2.0000 to"),
        (FALLING, {0: 2.5}, "training loss only", "The validation split was evaluated only once"),
        ({1: 3.0}, {}, "too early to tell", "After 1 step, it is too early"),
        (dict.fromkeys(range(1, 8), 3.0), {}, "too early to tell", "After 7 steps, it is too early"),
        (dict.fromkeys(range(1, 9), 3.0), {}, "did not learn", "flat"),
        ({1: math.nan}, {}, "too early to tell", "No step has a valid loss."),
        ({n: 0.01 if n < 4 else 0.05 - n / 1000 for n in RUN}, {}, "training loss only", "and fell again"),
    ],
)
def test_each_pair_of_curves_has_its_verdict(training, validation, kind, words):
    verdict = judged(training, validation)
    assert verdict.kind == kind and words in verdict.text
    assert bool(verdict.better) == (kind in ("began to memorize", "became worse") and bool(validation))


def test_evaluations_on_another_split_or_none_do_not_count():
    assert judged(FALLING, MEMORIZED, validation_key="other").kind == "training loss only"
    for more in ({"validation_key": "its digest"}, {"evaluates": True}):
        assert "The run ended before the validation split was evaluated" in judged(FALLING, {}, **more).text
    worse = judged(RISING, {0: 2.0, 8: 2.5, 16: 3.0}, {})
    assert "does better on the validation split without this LoRA" in worse.text


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
        ({"fall": 1.0, "jitter": 0.02}, "could learn more", "is falling"),
        ({"fall": 1.0, "rise": 1.0, "lowest": 0.5, "jitter": 0.02}, "began to memorize", "memorizes more than"),
        ({"jitter": 0.004}, "did not learn", "about the same as before training"),
    ],
)
def test_the_verdict_does_not_depend_on_how_often_the_run_was_evaluated(shape, kind, live):
    """The same run was underfit with an evaluation an epoch, and well fit with one a step."""
    training = {step: 3.0 - step / 160 for step in range(1, 161)}
    for every in (1, 5, 16, 80):
        entries = graph(training, {step: curve(step, **shape) for step in range(0, 161, every)})
        assert judge_run(entries, {}).kind == kind, every
        assert live in judge_live(read_steps(entries), 160, read_evaluations(entries)), every


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
    ],
)
def test_recall_tells_what_was_learned_beside_the_validation_losses_or_without_them(share, loss, kind, words):
    recalls = [recall(0, 0.02, 3.0, 0.01), recall(16, share, loss, 0.03)]
    verdict = judged(LEVEL, {}, recalls=recalls)
    assert verdict.kind == kind and verdict.text.startswith(words)
    told = (
        f"reproduces {share:.0%} of a training passage word for word (2% before), and 3% of a passage that it has"
    )
    assert (told in verdict.text) == (kind != "did not learn")
    beside = judged(FALLING, MEMORIZED, recalls=recalls)
    assert beside.kind == "began to memorize" and told in beside.text
    assert f"The generalization gap is {3 - loss:.4f} (the loss on unseen passages minus" in beside.text


def test_a_run_that_ended_before_a_tenth_of_its_steps_is_too_short_to_judge():
    recalls = [recall(0, 0.02, 3.0, 0), recall(16, 0.02, 2.9, 0)]
    ends = {0: 3.0, 16: 2.9}
    verdict = judged(FALLING, ends, recalls=recalls, planned=170)
    assert (verdict.kind, verdict.step, verdict.better) == ("too early to tell", 0, "")
    assert verdict.text.startswith("After 16 of 170 steps, it is too early to tell what the model learned.")
    for validation, planned in ((ends, 160), (MEMORIZED, 170)):
        assert judged(FALLING, validation, recalls=recalls, planned=planned).kind != "too early to tell"


def test_wild_swings_of_the_loss_are_told():
    wild, tiny = ({n: low if n % 2 else high for n in range(1, 61)} for low, high in ((0.5, 4.0), (0.01, 0.05)))
    assert "swings widely from step to step, between 0.50 and 4.00" in judged(wild, {}).text
    for losses in (tiny, {n: 3.0 - n / 100 for n in range(1, 61)}, {n: wild[n] for n in range(1, 11)}):
        assert "swings" not in judged(losses, {}).text


def points(smoothed, loss=None):
    """Return steps with these smoothed losses, 100 seconds apart."""
    losses = enumerate(smoothed, start=1)
    steps = read_steps({"current_steps": n, "loss": loss or s, "smoothed_loss": s} for n, s in losses)
    return [replace(step, at=100.0 * step.step) for step in steps]


NOISE = [3.70, 4.09, 3.96, 3.92, 3.83, 3.62, 4.00, 3.66]


@pytest.mark.parametrize(
    ("smoothed", "steps", "sentence"),
    [
        ([3.0, 2.9], 100, "too early to judge"),
        (NOISE, 100, "too early to judge"),
        ([*NOISE, 3.51], 100, "too early to judge"),
        ([2.0] * 9, 100, "too early to judge"),
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
    assert sentence in judge_live(points(smoothed), steps)
    assert "NaN or infinite" in judge_live(points(smoothed, loss=math.nan), steps)
    assert judge_live([], steps) == ""


def test_a_lucky_first_step_does_not_make_a_falling_loss_rise():
    steps = points([3.6, 4.1, 4.0, 3.9, 3.9, 3.8, 3.7, 3.6, 3.6, 3.5, 3.5, 3.4])
    steps = [replace(step, smoothed=3.6 + step.step / 100) for step in steps]
    assert "too early to judge" in judge_live(steps[:8], 100)
    assert "falling, as expected at the start" in judge_live(steps, 100)
