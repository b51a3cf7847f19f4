"""Rules applied after every step: when a checkpoint is saved, when a run ends, and how the lr plan changes."""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, replace
from functools import partial

import pytest
from training_pro.core.jobs import EvaluationDone
from training_pro.engine import plan
from training_pro.engine.plan import BestStep, LossDrop, LrPlan, Patience, SavingRules, StepState
from training_pro.settings.definitions import SavingSettings, StoppingSettings

Saving = partial(SavingSettings, save_each_epoch=False, backup_minutes=0)
Planned = partial(EvaluationDone, step=0, epoch=0.0, why="planned", perplexity=1.0, tokens=1, seconds=0.0)
# 2.0 less a tenth is 1.8: one step below does not count, three in a row do; then 1.78 less a tenth.
FALLING = [2.5, 1.9, 1.79, 1.85, 1.79, 1.78, 1.78, 1.7, 1.61, 1.6, 1.59, 1.58, 1.58, 1.43, 1.42, 1.42]

BEST_FIRST = {1: "best", 2: "epoch-1", 3: "best", 4: "epoch-2"}


@pytest.mark.parametrize(
    ("saving", "losses", "epoch", "reasons"),
    [
        (Saving(), FALLING, 10, {}),
        (Saving(save_every=4), [1.0] * 9, 10, {4: "", 8: ""}),
        (Saving(save_every=0.25), [1.0] * 8, 10, {2: "", 4: "", 6: "", 8: ""}),
        (Saving(save_every=4, save_each_epoch=True), [1.0] * 9, 5, {4: "", 5: "epoch-1", 8: "", 9: ""}),
        (Saving(save_on_loss_drop=2.0), FALLING, 10, {7: "loss-1_78", 12: "loss-1_58"}),
        (Saving(backup_minutes=1), [1.0] * 9, 10, {4: "backup", 7: "backup"}),
        (Saving(backup_minutes=1, save_every=3), [1.0] * 8, 10, {3: "", 6: ""}),
        # The smoothed loss is checked ten times an epoch, and the last step is kept too.
        (Saving(keep_best="loss"), [3.0, 2.9, 2.8, 2.7, 2.8], 20, {2: "best", 4: "best", 5: ""}),
        (Saving(keep_best="loss", save_every=2, save_each_epoch=True), [3.0, 3.1, 2.8, 2.9], 2, BEST_FIRST),
    ],
)
def test_when_a_checkpoint_is_saved_and_why(saving, losses, epoch, reasons):
    """Each step takes 20 seconds; the rules go through a checkpoint after it."""
    rules, found = SavingRules(), {}
    for step, loss in enumerate(losses, start=1):
        state = StepState(step, epoch, loss, step * 20, last=step == len(losses), steps=len(losses))
        found[step] = rules.why(saving, state)
        backed_up = rules.backed_up  # by the clock of one process
        rules = SavingRules(LossDrop(*astuple(rules.falls)), BestStep(*astuple(rules.best)), backed_up=backed_up)
    assert {step: reason for step, reason in found.items() if reason is not None} == reasons


NOT_FINITE = [(math.nan, 0.5), (2.0, 0.5), (math.nan, 0.5), (math.inf, 0.5), (1.9, 0.5)]


@pytest.mark.parametrize(
    ("keep_best", "evaluations", "best", "waited"),
    [
        ("accuracy", [(1.0, 0.2), (1.0, 0.4), None, (1.0, 0.3)], [1, 2], [0, 0, 1]),
        # Of equal accuracies the lower loss is the best, then the earlier.
        ("accuracy", [(2.0, 0.5), (1.9, 0.5), (1.9, 0.5), (2.5, 0.6), (2.6, 0.6)], [1, 2, 4], [0, 0, 1, 0, 1]),
        ("loss", [(2.0, 0.5), (1.9, 0.5), (1.95, 0.5), (1.8, 0.5), (1.8, 0.9)], [1, 2, 4], [0, 0, 1, 0, 1]),
        ("loss", NOT_FINITE, [2, 5], [1, 0, 1, 2, 0]),
        ("accuracy", NOT_FINITE, [2, 5], [1, 0, 1, 2, 0]),
    ],
)
def test_the_best_is_by_the_validation_split_where_there_is_one(keep_best, evaluations, best, waited):
    saving, rules, patience = Saving(keep_best=keep_best), SavingRules(evaluates=True), Patience()
    found, waits = [], []
    for step, values in enumerate(evaluations, start=1):
        evaluation = values and Planned(loss=values[0], accuracy=values[1])
        if rules.why(saving, StepState(step, 10, 1.0), evaluation) == "best":
            found.append(step)
        if evaluation:
            patience.count(evaluation, keep_best)
            waits.append(patience.waited)
        rules = SavingRules(best=BestStep(**asdict(rules.best)), evaluates=True)
        patience = Patience(**asdict(patience))
    assert (found, waits, rules.best.step) == (best, waited, best[-1])
    other = Saving(keep_best="loss" if keep_best == "accuracy" else "accuracy")  # another measure begins anew
    assert rules.why(other, StepState(9, 10, 1.0), Planned(loss=9.0, accuracy=0.0)) == "best"


def test_a_checkpoint_that_could_not_be_written_is_not_the_best():
    """Otherwise only the last step was kept if the disk was full at the best one."""
    rules, reasons = SavingRules(), []
    for step, loss in enumerate((3.0, 1.0, 2.0, 2.5), start=1):
        reasons.append(rules.why(Saving(keep_best="loss"), StepState(step, 4, loss)))
        if step == 2:
            rules.best = rules.before
    assert (reasons, rules.best.step, rules.best.value) == (["best", "best", "best", None], 3, 2.0)


@pytest.mark.parametrize(
    ("stopping", "losses", "reason"),
    [
        ({"stop_at_loss": 0.5}, (0.51, 0.5), "the smoothed loss 0.5000 is at or below 0.5"),
        ({"stop_at_epoch": 1.1}, (2.0,) * 11, "epoch 1.1 is done"),  # 1.1 * 10 is a bit over 11
        ({"early_stopping": 2}, (2.0, 1.9, 1.95, 1.8, 1.8, 1.81), "did not improve on 1.8000 in 2 evaluations"),
        ({"early_stopping": 2}, (math.nan, math.nan), "the validation loss was NaN or infinite in 2 evaluations"),
    ],
)
def test_when_a_run_ends_and_why(stopping, losses, reason):
    patience, reasons = Patience(), []
    for step, loss in enumerate(losses, start=1):
        patience.count(Planned(loss=loss, accuracy=0.5), "no")
        reasons.append(plan.stop_reason(StoppingSettings(**stopping), StepState(step, 10, loss), patience))
    assert reasons[:-1] == [""] * (len(losses) - 1) and reasons[-1].endswith(reason)


def test_a_factor_and_a_wind_down_take_effect_from_the_next_step():
    halved, down = LrPlan(0.1, (1.0,) * 100, factor=0.5), [0.0375, 0.025, 0.0125, 0.0]
    assert (halved.rate(41), halved.steps) == (0.05, 100)
    winding_down = halved.winding_down(40)  # in a tenth of the steps so far
    assert winding_down.steps == 44 and [winding_down.rate(step) for step in range(41, 45)] == pytest.approx(down)
    assert replace(winding_down, factor=1.0).rate(41) == pytest.approx(0.075)
    assert winding_down.all([0.05] * 40) == pytest.approx((*[0.05] * 40, *down))
    for done, last in ((1, 3), (98, 100), (99, 100), (15, 17)):  # never beyond the plan
        winding_down = LrPlan(0.1, (1.0,) * 100).winding_down(done)
        assert (winding_down.steps, winding_down.rate(last)) == (last, 0.0)
