"""The arithmetic and names of a run."""

import math
import random
from datetime import datetime

import pytest
from training_pro.train_utils import (
    StepPlan,
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
        (12, 4, 1, 1, 3, 1, 3, 3),
        (13, 4, 1, 1, 4, 1, 4, 4),
        (12, 4, 1, 2, 3, 1, 3, 6),
        (12, 4, 3, 2, 3, 3, 1, 2),
        (12, 4, 2, 1, 3, 2, 2, 2),
        (13, 4, 3, 2, 4, 3, 2, 4),
        (12, 4, 8, 3, 3, 3, 1, 3),
        (3, 4, 8, 5, 1, 1, 1, 5),
        (1, 1, 1, 1, 1, 1, 1, 1),
        (10, 1, 1, 0.25, 10, 1, 10, 3),
        (10, 1, 1, 1.5, 10, 1, 10, 15),
        (10, 1, 1, 0.01, 10, 1, 10, 1),
        (10, 1, 1, 0.3, 10, 1, 10, 3),
        (100, 1, 1, 1.1, 100, 1, 100, 110),
        (0, 4, 2, 3, 0, 1, 1, 3),
    ],
)
def test_steps_with_every_rounding(examples, batch, accumulation, epochs, batches, accumulated, per_epoch, steps):
    plan = StepPlan(examples=examples, batch_size=batch, accumulation=accumulation, epochs=epochs)
    assert (plan.batches, plan.effective_accumulation, plan.steps_per_epoch, plan.steps) == (
        batches,
        accumulated,
        per_epoch,
        steps,
    )
    assert plan.examples_per_step == batch * accumulated


@pytest.mark.parametrize(("max_steps", "steps"), [(0, 20), (1, 1), (7, 7), (50, 50)])
def test_maximum_steps_replace_epochs(max_steps, steps):
    plan = StepPlan(examples=10, batch_size=1, accumulation=1, epochs=2, max_steps=max_steps)
    assert plan.steps == steps
    assert plan.steps_per_epoch == 10


@pytest.mark.parametrize(
    ("examples", "epochs", "asked", "warmup"),
    [
        (40, 2, 0, 0),
        (40, 2, 0.05, 4),
        (41, 2, 0.05, 5),
        (40, 2, 0.9, 40),
        (1000, 4, 0.02, 80),
        (1000, 4, 0.5, 100),
        (100, 1, 0.07, 7),
        (100, 1, 0.29, 29),
        (10, 1, 0.001, 1),
        (40, 2, 1, 1),
        (40, 2, 7.0, 7),
        (40, 2, 7.9, 7),
        (1000, 4, 500, 500),
    ],
)
def test_warmup(examples, epochs, asked, warmup):
    assert StepPlan(examples=examples, batch_size=1, accumulation=1, epochs=epochs).warmup(asked) == warmup


@pytest.mark.parametrize(
    ("count", "limit", "numbers"),
    [(0, 3, []), (1, 3, [0]), (3, 3, [0, 1, 2]), (6, 3, [1, 3, 5]), (1517, 3, [252, 758, 1264])],
)
def test_numbers_spread_evenly_leave_out_the_beginning(count, limit, numbers):
    assert spread_evenly(count, limit) == numbers


def test_the_smoothed_loss_begins_as_the_first_and_moves_a_tenth_of_the_way():
    assert smooth_loss(None, 3.0) == 3.0
    assert smooth_loss(3.0, 2.0) == pytest.approx(2.9)
    assert smooth_loss(2.9, 2.0) == pytest.approx(2.81)
    assert smooth_loss(0.0, 1.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s"),
        (0.4, "0.4 s"),
        (45, "45 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (60, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (100 * 3600 + 59 * 60 + 59, "100 h 59 min"),
    ],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("byte_count", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (98_400_000, "98.4 MB"),
        (98_000_000, "98 MB"),
        (999_400, "999 kB"),
        (999_999, "1 MB"),
        (999_999_999, "1 GB"),
        (1.4e9, "1.4 GB"),
        (84e9, "84 GB"),
        (1.234e12, "1234 GB"),
    ],
)
def test_sizes(byte_count, words):
    assert size(byte_count) == words


@pytest.mark.parametrize(
    "names",
    [
        ["chapter 1", "chapter 2", "chapter 10"],
        ["1.txt", "2.txt", "10.txt", "a.txt"],
        ["A1", "a2", "A10"],
        ["v1.2.txt", "v1.10.txt"],
        ["part", "part 1", "part 1b", "part 2"],
        ["1", "2²", "10²"],
        ["٢", "10"],
    ],
)
def test_natural_order(names):
    backwards, shuffled = names[::-1], random.Random(1).sample(names, len(names))
    assert sorted(backwards, key=natural_key) == names
    assert sorted(shuffled, key=natural_key) == names


@pytest.mark.parametrize(
    ("step", "reason", "name"),
    [
        (120, "", "checkpoint-120"),
        (120, "user", "checkpoint-120-user"),
        (7, "epoch-2", "checkpoint-7-epoch-2"),
        (0, "loss-1_80", "checkpoint-0-loss-1_80"),
    ],
)
def test_checkpoint_names_contain_their_step(step, reason, name):
    assert checkpoint_name(step, reason) == name
    assert checkpoint_step(name) == step


@pytest.mark.parametrize(
    "name", ["backup", "checkpoint-", "checkpoint-x", "checkpoint-5-", "my-checkpoint-5", "x"]
)
def test_other_folders_are_no_checkpoints(name):
    assert checkpoint_step(name) is None


@pytest.mark.parametrize(
    ("now", "moment", "words"),
    [
        ((2026, 11, 21, 22, 15), (2026, 11, 21, 23, 59), "23:59"),
        ((2026, 11, 21, 22, 15), (2026, 11, 22, 0, 5), "00:05 tomorrow"),
        ((2026, 12, 30, 22, 15), (2027, 1, 2, 6, 40), "06:40 in 3 days"),
    ],
)
def test_the_time_of_day_when_it_will_be_done(now, moment, words):
    assert time_of_day(datetime(*moment).timestamp(), datetime(*now).timestamp()) == words


@pytest.mark.parametrize(
    ("vocabulary", "on_card", "rows"), [(49152, False, 160), (49152, True, 672), (262144, False, 32)]
)
def test_the_rows_of_a_head_pass_keep_the_logits_small(vocabulary, on_card, rows):
    assert head_rows(vocabulary, on_card=on_card) == rows


def test_plurals():
    assert [f"{n} {plural(n, 'step')}" for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [format_count(n, "batch", "batches") for n in (0, 1, 2000)] == ["0 batches", "1 batch", "2,000 batches"]
    assert [format_times_range(*seen) for seen in ((1, 1), (2, 2), (1, 3))] == ["once", "2 times", "1 to 3 times"]


def test_a_time_beyond_the_calendar_is_given_in_years():
    assert time_of_day(1.8e9 + 1e12, 1.8e9) == "in 31,688 years"


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize(("examples", "batch", "accumulation"), [(10, 4, 1), (10, 2, 2), (16, 4, 2), (3, 4, 2)])
def test_the_examples_of_the_steps_of_an_epoch_are_all_examples(examples, batch, accumulation, processes):
    plan = StepPlan(examples, batch, accumulation, epochs=2, processes=processes)
    counts = [plan.examples_in_step(step) for step in range(1, 2 * plan.steps_per_epoch + 1)]
    assert sum(counts) == 2 * (examples + plan.repeated_examples)
    assert all(0 < count <= plan.examples_per_step for count in counts)


def test_columns_without_values_are_left_out_of_a_table():
    assert known_columns([("a", "b", "c"), ("1", "", "-"), ("2", "x", "")]) == [("a", "b"), ("1", ""), ("2", "x")]
    assert known_columns([("a", "b")]) == []


def test_the_examples_of_each_step():
    """Five examples, two a batch, two batches a step: the second step of an epoch has the last example."""
    plan = StepPlan(5, 2, 2, epochs=2)
    assert [plan.examples_in_step(step) for step in (1, 2, 3, 4)] == [4, 1, 4, 1]
    assert plan.repeated_examples == 0
    of_three_steps = StepPlan(10, 2, 2, epochs=2)
    assert [of_three_steps.examples_in_step(step) for step in range(1, 7)] == [4, 4, 2, 4, 4, 2]


def test_examples_are_repeated_for_several_processes_only():
    plan = StepPlan(5, 2, 1, epochs=1, processes=2)
    assert plan.repeated_examples == 3
    assert [plan.examples_in_step(step) for step in (1, 2)] == [4, 4]


@pytest.mark.parametrize(("every", "times"), [(1, 11), (3, 5), (5, 3), (10, 2), (11, 2)])
def test_an_action_runs_before_the_first_step_and_at_the_end(every, times):
    assert StepPlan(10, 1, 1, epochs=1).occurrences(every) == times


@pytest.mark.parametrize(
    ("every", "first", "logged"),
    [
        (3, False, [3, 6, 9, 10]),
        (3, True, [1, 3, 6, 9, 10]),
        (20, False, [10]),
        ("auto", False, list(range(1, 11))),
    ],
)
def test_the_steps_that_are_logged(every, first, logged):
    assert [step for step in range(1, 11) if is_logged(step, 10, every, first)] == logged


@pytest.mark.parametrize("every", ["auto", float("inf"), float("nan"), 0, -2])
def test_an_interval_that_is_none_logs_each_step(every):
    """The settings of an event may come from a damaged record."""
    assert all(is_logged(step, 10, every, False) for step in range(1, 11))


def test_the_key_of_natural_order():
    assert natural_key("Chapter 2b") == [(0, 0, "chapter "), (1, 2, ""), (0, 0, "b")]
    assert natural_key("7" * 1001) == [(0, 0, ""), (1, int("7" * 1000), ""), (0, 0, "")]


@pytest.mark.parametrize(
    ("interval", "steps", "expected"),
    [(0, 10, 0), (0.5, 10, 5), (0.01, 10, 1), (1, 10, 1), (1.5, 10, 1), (7, 10, 7)],
)
def test_an_interval_in_steps_or_as_a_share(interval, steps, expected):
    assert interval_steps(interval, steps) == expected


def test_perplexity_is_infinite_where_a_float_overflows():
    assert (perplexity(0), perplexity(700)) == (1, math.exp(700))
    assert perplexity(700.5) == perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_a_column_is_kept_if_only_its_first_cell_is_known():
    assert known_columns([["a", "b", "c"], ["1", "", "-"], ["", "", ""]]) == [("a",), ("1",), ("",)]


@pytest.mark.parametrize(
    ("value", "digits", "words"),
    [(4.524e-05, 3, "0.0000452"), (2e-4, 3, "0.0002"), (0.0, 3, "0"), (1e-4, 2, "0.0001"), (12345.6, 3, "12300")],
)
def test_numbers_without_an_exponent(value, digits, words):
    assert format_digits(value, digits) == words
