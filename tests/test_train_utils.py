"""The arithmetic and names of a run."""

import math
import random
from datetime import datetime

import pytest
from training_pro.train_utils import (
    StepPlan,
    align_columns,
    checkpoint_name,
    checkpoint_step,
    duration,
    format_count,
    format_digits,
    format_times_range,
    head_rows,
    interval_steps,
    is_logged,
    known_columns,
    natural_key,
    perplexity,
    plural,
    size,
    smooth_loss,
    spread_evenly,
    time_of_day,
)


@pytest.mark.parametrize(
    ("examples", "batch", "accumulation", "epochs", "batches", "accumulated", "per_epoch", "steps"),
    [
        (12, 4, 1, 2, 3, 1, 3, 6),
        (13, 4, 1, 1, 4, 1, 4, 4),
        (12, 4, 2, 1, 3, 2, 2, 2),
        (13, 4, 3, 2, 4, 3, 2, 4),
        (12, 4, 8, 3, 3, 3, 1, 3),
        (1, 1, 1, 1, 1, 1, 1, 1),
        (10, 1, 1, 0.25, 10, 1, 10, 3),
        (10, 1, 1, 0.01, 10, 1, 10, 1),
        (100, 1, 1, 1.1, 100, 1, 100, 110),
        (0, 4, 2, 3, 0, 1, 1, 3),
    ],
)
def test_steps_with_every_rounding(examples, batch, accumulation, epochs, batches, accumulated, per_epoch, steps):
    plan = StepPlan(examples, batch, accumulation, epochs)
    found = (plan.batches, plan.effective_accumulation, plan.steps_per_epoch, plan.steps)
    assert found == (batches, accumulated, per_epoch, steps)
    assert plan.examples_per_step == batch * accumulated
    for max_steps in (1, 50):
        assert StepPlan(examples, batch, accumulation, epochs, max_steps).steps == max_steps


def test_warmup():
    in_steps = {(40, 2, 1): 1, (40, 2, 7.9): 7, (1000, 4, 500): 500}
    limited = {(40, 2, 0.9): 40, (1000, 4, 0.5): 100}
    rounded = {(40, 2, 0): 0, (41, 2, 0.05): 5, (100, 1, 0.07): 7, (100, 1, 0.29): 29, (10, 1, 0.001): 1}
    for (examples, epochs, asked), warmup in (in_steps | limited | rounded).items():
        assert StepPlan(examples, 1, 1, epochs).warmup(asked) == warmup


@pytest.mark.parametrize(
    ("plan", "examples"),
    [
        (StepPlan(5, 2, 2, epochs=2), [4, 1, 4, 1]),
        (StepPlan(10, 2, 2, epochs=2), [4, 4, 2, 4, 4, 2]),
        (StepPlan(5, 2, 1, epochs=1, processes=2), [4, 4]),  # the last three are repeated
        (StepPlan(10, 2, 2, epochs=2, processes=3), [12, 12]),
    ],
)
def test_the_examples_of_each_step(plan, examples):
    assert [plan.examples_in_step(step) for step in range(1, plan.steps + 1)] == examples
    assert plan.epochs * (plan.examples + plan.repeated_examples) == sum(examples)


@pytest.mark.parametrize(("every", "times"), [(1, 11), (3, 5), (10, 2), (11, 2)])
def test_an_action_runs_before_the_first_step_and_at_the_end(every, times):
    assert StepPlan(10, 1, 1, epochs=1).occurrences(every) == times


ALL_STEPS = list(range(1, 11))


@pytest.mark.parametrize(
    ("every", "first", "logged"),
    [
        (3, False, [3, 6, 9, 10]),
        (3, True, [1, 3, 6, 9, 10]),
        (0.2, False, [2, 4, 6, 8, 10]),
        *((damaged, False, ALL_STEPS) for damaged in ("auto", math.inf, math.nan, 0, -2)),
    ],
)
def test_the_steps_that_are_logged(every, first, logged):
    """The interval of an event may come from a damaged record; then each step is logged."""
    assert [step for step in ALL_STEPS if is_logged(step, 10, every, first)] == logged


@pytest.mark.parametrize(("interval", "expected"), [(0, 0), (0.5, 5), (0.01, 1), (1, 1), (1.5, 1), (7, 7)])
def test_an_interval_in_steps_or_as_a_share(interval, expected):
    assert interval_steps(interval, 10) == expected


def test_numbers_spread_evenly_leave_out_the_beginning():
    for count, numbers in ((0, []), (1, [0]), (3, [0, 1, 2]), (1517, [252, 758, 1264])):
        assert spread_evenly(count, 3) == numbers


def test_the_smoothed_loss_begins_as_the_first_and_moves_a_tenth_of_the_way():
    assert smooth_loss(None, 3.0) == 3.0
    assert smooth_loss(3.0, 2.0) == pytest.approx(2.9)
    assert smooth_loss(0.0, 1.0) == pytest.approx(0.1)


def test_perplexity_is_infinite_where_a_float_overflows():
    assert (perplexity(0), perplexity(700)) == (1, math.exp(700))
    assert perplexity(700.5) == perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_durations():
    short = {-5: "0 s", 0.4: "0.4 s", 9.94: "9.9 s", 9.95: "10 s", 59.4: "59 s"}
    minutes = {59.6: "1 min 00 s", 200: "3 min 20 s", 3599.4: "59 min 59 s"}
    hours = {3599.6: "1 h 00 min", 100 * 3600 + 59 * 60 + 59: "100 h 59 min"}
    for seconds, words in (short | minutes | hours).items():
        assert duration(seconds) == words


def test_sizes():
    small = {0: "0 bytes", 999: "999 bytes", 1000: "1 kB", 999_400: "999 kB"}
    large = {999_999: "1 MB", 98_400_000: "98.4 MB", 999_999_999: "1 GB", 1.234e12: "1234 GB"}
    for byte_count, words in (small | large).items():
        assert size(byte_count) == words


def test_numbers_in_words():
    assert [f"{n} {plural(n, 'step')}" for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [format_count(n, "batch", "batches") for n in (0, 1, 2000)] == ["0 batches", "1 batch", "2,000 batches"]
    assert [format_times_range(*seen) for seen in ((1, 1), (2, 2), (1, 3))] == ["once", "2 times", "1 to 3 times"]
    assert [format_digits(n) for n in (4.524e-05, 0.0, 12345.6)] == ["0.0000452", "0", "12300"]
    assert format_digits(1e-4, 2) == "0.0001"


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        (datetime(2026, 12, 30, 23, 59).timestamp(), "23:59"),
        (datetime(2026, 12, 31, 0, 5).timestamp(), "00:05 tomorrow"),
        (datetime(2027, 1, 2, 6, 40).timestamp(), "06:40 in 3 days"),
        (datetime(2026, 12, 30, 22, 15).timestamp() + 1e12, "in 31,688 years"),
    ],
)
def test_the_time_of_day_when_it_will_be_done(moment, words):
    assert time_of_day(moment, datetime(2026, 12, 30, 22, 15).timestamp()) == words


@pytest.mark.parametrize("names", ["1.txt 2.txt 10.txt a.txt", "A1 a2 A10", "p p1 p1b p2", "1 2² 10²", "٢ 10"])
def test_natural_order(names):
    ordered = names.split()
    for seed in range(3):
        assert sorted(random.Random(seed).sample(ordered, len(ordered)), key=natural_key) == ordered


def test_a_name_of_many_digits_has_a_key_in_natural_order():
    assert natural_key("Chapter 2b") == [(0, 0, "chapter "), (1, 2, ""), (0, 0, "b")]
    assert natural_key("7" * 1001)[1] == (1, int("7" * 1000), "")


def test_checkpoint_names_contain_their_step():
    for step, reason, name in ((120, "", "checkpoint-120"), (0, "loss-1_80", "checkpoint-0-loss-1_80")):
        assert checkpoint_name(step, reason) == name
        assert checkpoint_step(name) == step
    others = ("backup", "checkpoint-", "checkpoint-x", "checkpoint-5-", "my-checkpoint-5")
    assert [checkpoint_step(name) for name in others] == [None] * 5


def test_the_rows_of_a_head_pass_keep_the_logits_small():
    for vocabulary, on_card, rows in ((49152, False, 160), (49152, True, 672), (262144, False, 32)):
        assert head_rows(vocabulary, on_card=on_card) == rows


def test_tables_of_texts():
    assert known_columns([("a", "b", "c"), ("1", "", "-"), ("2", "x", "")]) == [("a", "b"), ("1", ""), ("2", "x")]
    assert known_columns([("a", "b", "c"), ("1", "", "-"), ("", "", "")]) == [("a",), ("1",), ("",)]
    assert known_columns([("a", "b")]) == []
    assert align_columns([("a", "bb"), ("ccc", "d")]) == ["a    bb", "ccc  d"]
    assert align_columns([]) == []
