"""Rules applied after every step: when a checkpoint is saved, when a run ends, and how the lr plan changes."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from training_pro.engine.plan import LrPlan
from training_pro.engine.plan.step_rules import (
    BestStep,
    Evaluation,
    Patience,
    SaveRequest,
    SavingRules,
    StepState,
    stop_reason,
)
from training_pro.settings.definitions import SavingSettings, StoppingSettings

NEVER = SavingSettings(save_each_epoch=False, backup_minutes=0)


def step_states(losses, *, epoch=10, seconds=1.0):
    last = len(losses)
    return [StepState(n, epoch, loss, n * seconds, last=n == last) for n, loss in enumerate(losses, start=1)]


def checkpoint_reasons(saving, losses, **more):
    """Step and reason of each checkpoint."""
    rules, reasons = SavingRules(), {}
    for state in step_states(losses, **more):
        reason = rules.why(saving, state, SaveRequest())
        if reason is not None:
            reasons[state.step] = reason
    return reasons


def test_by_steps_and_by_epochs():
    assert checkpoint_reasons(
        SavingSettings(save_every=4, save_each_epoch=False, backup_minutes=0), [1.0] * 9
    ) == {
        4: "",
        8: "",
    }
    both = SavingSettings(save_every=5, backup_minutes=0)
    assert checkpoint_reasons(both, [1.0] * 20) == {5: "", 10: "epoch-1", 15: "", 20: "epoch-2"}


def test_at_every_drop_by_a_tenth_that_holds():
    losses = [2.5, 1.9, 1.79, 1.85, 1.79, 1.78, 1.78, 1.7, 1.61, 1.6, 1.59, 1.58, 1.58]
    saving = SavingSettings(save_on_loss_drop=2.0, save_each_epoch=False, backup_minutes=0)
    # 2.0 less a tenth is 1.8: one step below does not count, three in a row do; then 1.78 less a tenth.
    assert checkpoint_reasons(saving, losses) == {7: "loss-1_78", 12: "loss-1_58"}
    assert checkpoint_reasons(saving, [*losses, 1.43, 1.42, 1.42]) == {7: "loss-1_78", 12: "loss-1_58"}
    assert checkpoint_reasons(NEVER, losses) == {}


def test_a_backup_is_due_by_the_clock_and_every_checkpoint_is_one():
    timed = SavingSettings(backup_minutes=1, save_each_epoch=False)
    assert checkpoint_reasons(timed, [1.0] * 9, seconds=20) == {4: "backup", 7: "backup"}
    assert checkpoint_reasons(
        SavingSettings(backup_minutes=1, save_every=3, save_each_epoch=False), [1.0] * 8, seconds=20
    ) == {
        3: "",
        6: "",
    }


def test_the_first_reason_names_it():
    rules = SavingRules()
    saving = SavingSettings(save_every=10, keep_best="loss", backup_minutes=0)
    state = StepState(10, 10, 1.0, last=False)
    assert rules.why(saving, state, SaveRequest(asked=True)) == "user"
    assert rules.best.step == 10  # it is also the best one, but the user's reason comes first
    assert rules.why(saving, StepState(20, 10, 0.9), SaveRequest()) == "best"
    assert rules.why(saving, StepState(30, 10, 1.5), SaveRequest()) == "epoch-3"


def test_the_best_smoothed_loss_is_checked_ten_times_an_epoch():
    saving = SavingSettings(keep_best="loss", save_each_epoch=False, backup_minutes=0)
    losses = [3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.6, 2.7]
    reasons = {2: "best", 4: "best", 6: "best", 8: ""}  # the last step is kept too
    assert checkpoint_reasons(saving, losses, epoch=20) == reasons


def test_the_best_is_by_the_validation_split_where_there_is_one():
    rules, saving = (
        SavingRules(evaluates=True),
        SavingSettings(keep_best="accuracy", save_each_epoch=False, backup_minutes=0),
    )
    reasons = []
    for state, accuracy in zip(step_states([1.0] * 4), [0.2, 0.4, None, 0.3], strict=True):
        evaluation = None if accuracy is None else Evaluation(loss=1.0, accuracy=accuracy)
        reasons.append(rules.why(saving, state, SaveRequest(found=evaluation)))
    assert reasons == ["best", "best", None, ""]
    assert (rules.best.step, rules.best.value) == (2, 0.4)
    by_loss = SavingSettings(keep_best="loss", save_each_epoch=False, backup_minutes=0)
    assert (
        rules.why(by_loss, StepState(5, 10, 1.0), SaveRequest(found=Evaluation(9.0, 0.0))) == "best"
    )  # another measure


def test_the_state_of_the_rules_goes_through_a_checkpoint():
    saving = SavingSettings(save_on_loss_drop=2.0, keep_best="loss", save_each_epoch=False, backup_minutes=0)
    losses = [2.5, 1.79, 1.79, 1.78, 1.7, 1.5, 1.4, 1.4, 1.4]
    whole, resumed, rules = [], [], [SavingRules(), SavingRules()]
    for state in step_states(losses):
        whole.append(rules[0].why(saving, state, SaveRequest()))
        resumed.append(rules[1].why(saving, state, SaveRequest()))
        rules[1] = SavingRules.from_memory(rules[1].memory())
    assert whole == resumed
    assert rules[0].memory() == rules[1].memory()


@pytest.mark.parametrize(
    ("stopping", "state", "reason"),
    [
        (StoppingSettings(), StepState(5, 10, 0.1), ""),
        (StoppingSettings(stop_at_loss=0.5), StepState(5, 10, 0.5), "the smoothed loss 0.5000 is at or below 0.5"),
        (StoppingSettings(stop_at_loss=0.5), StepState(5, 10, 0.51), ""),
        (StoppingSettings(stop_at_epoch=1.5), StepState(14, 10, 2.0), ""),
        (StoppingSettings(stop_at_epoch=1.5), StepState(15, 10, 2.0), "epoch 1.5 is done"),
    ],
)
def test_when_a_run_ends(stopping, state, reason):
    assert stop_reason(stopping, state, Patience()) == reason


def test_patience_ends_after_so_many_evaluations_without_improvement():
    patience, stopping, state = Patience(), StoppingSettings(early_stopping=2), StepState(5, 10, 1.0)
    reasons = []
    for loss in (2.0, 1.9, 1.95, 1.8, 1.8, 1.81):
        patience.look(Evaluation(loss, 0.5), "no")
        reasons.append(stop_reason(stopping, state, patience))
    assert reasons[:5] == [""] * 5
    assert reasons[5] == "the validation loss did not improve on 1.8000 in 2 evaluations"


def test_of_equal_accuracies_the_lower_loss_is_the_best_then_the_earlier():
    saving, rules, patience = SavingSettings(keep_best="accuracy"), SavingRules(evaluates=True), Patience()
    is_best, waited = [], []
    for step, (loss, accuracy) in enumerate(
        [(2.0, 0.5), (1.9, 0.5), (1.9, 0.5), (2.5, 0.6), (1.0, 0.5), (2.6, 0.6)]
    ):
        evaluation = Evaluation(loss, accuracy)
        is_best.append(rules.why(saving, StepState(step + 1, 10, 1.0), SaveRequest(found=evaluation)) == "best")
        patience.look(evaluation, "accuracy")
        waited.append(patience.waited)
        rules, patience = SavingRules.from_memory(rules.memory(), evaluates=True), Patience(**asdict(patience))
    assert is_best == [True, True, False, True, False, False]
    assert waited == [0, 0, 1, 0, 1, 2]
    assert rules.best.step == 4


@pytest.mark.parametrize("keep_best", ["loss", "accuracy"])
def test_an_evaluation_that_is_not_finite_is_never_the_best(keep_best):
    saving, rules, patience = SavingSettings(keep_best=keep_best), SavingRules(evaluates=True), Patience()
    is_best, waited = [], []
    for step, loss in enumerate([math.nan, 2.0, math.nan, math.inf, 1.9], start=1):
        evaluation = Evaluation(loss, accuracy=0.5)
        is_best.append(rules.why(saving, StepState(step, 10, 1.0), SaveRequest(found=evaluation)) == "best")
        patience.look(evaluation, keep_best)
        waited.append(patience.waited)
    assert is_best == [False, True, False, False, True]
    assert waited == [1, 0, 1, 2, 0]
    assert rules.best.step == 5
    stored = BestStep(**{"measure": "validation loss", "value": math.nan, "step": 3})  # by an older version
    assert stored.look("validation loss", 2.0, 4, 2.0)


def test_evaluations_that_are_all_not_finite_end_a_run():
    patience, stopping = Patience(), StoppingSettings(early_stopping=2)
    for _ in range(2):
        patience.look(Evaluation(math.nan, 0.0), "no")
    reason = stop_reason(stopping, StepState(5, 10, 1.0), patience)
    assert reason == "the validation loss was NaN or infinite in 2 evaluations"


def test_a_best_of_an_older_checkpoint_has_no_loss_and_wins_against_equal_ones():
    old = BestStep(**{"measure": "validation accuracy", "value": 0.5, "step": 3})
    assert not old.look(old.measure, 0.5, 4, 1.0)
    assert old.look(old.measure, 0.51, 5, 9.0)


def test_a_factor_and_a_wind_down_take_effect_from_the_next_step():
    rates = LrPlan(0.1, (1.0,) * 100)
    halved = rates.scaled(0.5)
    assert (halved.rate(41), halved.steps) == (0.05, 100)
    winding_down = halved.winding_down(40)
    assert winding_down.steps == 44  # a tenth of the steps so far
    assert [winding_down.rate(step) for step in range(41, 45)] == pytest.approx([0.0375, 0.025, 0.0125, 0.0])
    assert winding_down.scaled(1.0).rate(41) == pytest.approx(0.075)
    assert winding_down.all([0.05] * 40) == pytest.approx((*[0.05] * 40, 0.0375, 0.025, 0.0125, 0.0))


@pytest.mark.parametrize(("done", "last"), [(1, 3), (98, 100), (99, 100), (15, 17)])
def test_a_wind_down_never_goes_beyond_the_plan(done, last):
    winding_down = LrPlan(0.1, (1.0,) * 100).winding_down(done)
    assert (winding_down.steps, winding_down.rate(last)) == (last, 0.0)


def test_a_checkpoint_that_could_not_be_written_is_not_the_best():
    """Otherwise only the last step was kept if the disk was full at the best one."""
    rules, saving = SavingRules(), SavingSettings(keep_best="loss", save_each_epoch=False, backup_minutes=0)
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5}
    reasons = {}
    for step, loss in losses.items():
        reasons[step] = rules.why(saving, StepState(step, 4, loss), SaveRequest())
        if step == 2:
            rules.on_checkpoint_failed()
    assert reasons == {1: "best", 2: "best", 3: "best", 4: None}
    assert (rules.best.step, rules.best.value) == (3, 2.0)
