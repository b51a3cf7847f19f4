"""The curve as SVG: well-formed, small, reproducible, and escaped."""

import math
from xml.etree import ElementTree

from training_pro.records.report import (
    Mark,
    draw_curve,
    read_evaluations,
    read_steps,
)
from training_pro.records.report import charts as svg

RATES = [1e-3 * share / 10 for share in range(10, 0, -1)]
PHASES = ((1, "by length"), (3, "pairs <of>"), (6, "sequential"))


def points(count, loss=lambda step: 3 / step, phases=()):
    graph = [
        {"current_steps": n, "loss": loss(n), "smoothed_loss": loss(n) + 0.1, "learning_rate": 1e-3}
        for n in range(1, count + 1)
    ]
    for begin, name in phases:
        for entry in graph[begin - 1 :]:
            entry |= {"phase": name, "epoch": entry["current_steps"] / 4}
    return read_steps(graph)


def elements(picture, tag, css_class=None):
    found = ElementTree.fromstring(picture).iter(tag)
    return [each for each in found if css_class is None or each.get("class") == css_class]


def lines(picture):
    """Return the points of each line by its class."""
    return {
        line.get("class"): [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in elements(picture, "polyline")
    }


def test_the_plan_alone_and_losses_fall_from_left_to_right():
    drawn = lines(draw_curve([], RATES))
    assert drawn.keys() == {"tp-rate"} and len(drawn["tp-rate"]) == 10
    drawn |= lines(draw_curve(points(8), RATES))
    assert len(drawn["tp-loss"]) == len(drawn["tp-smoothed"]) == 8
    for line in drawn.values():  # y grows downwards in SVG
        assert line == sorted(line) and [y for _, y in line] == sorted(y for _, y in line)
    assert "Loss over 3 of 10 steps" in draw_curve(points(3), RATES)


def test_the_smallest_runs_are_well_formed_and_a_single_step_is_a_dot():
    for steps, rates in (([], []), (points(2), [0.0, 0.0]), (points(2, lambda _: math.inf), RATES)):
        ElementTree.fromstring(draw_curve(steps, rates))
    dots = [len(elements(draw_curve(points(n), RATES), "circle", "tp-smoothed-dot")) for n in range(3)]
    assert dots == [0, 1, 0]
    picture = draw_curve(points(5, lambda step: math.nan if step > 3 else 2.0), RATES)
    assert "nan" not in str(lines(picture)) and len(lines(picture)["tp-loss"]) == 3


def test_what_the_user_wrote_is_escaped():
    picture = draw_curve(points(3), RATES, [Mark(2, '<img src=x onerror="alert(1)">&')])
    assert 'step 2: <img src=x onerror="alert(1)">&' in [title.text for title in elements(picture, "title")]
    assert "<img" not in picture


def test_a_long_run_stays_small_and_keeps_its_ends_and_extremes():
    every = points(10_000, lambda step: 50.0 if step == 4321 else -7.0 if step == 1234 else 2 + step % 7)
    assert len(draw_curve(every, [1e-3] * 10_000).encode()) < 200_000
    kept = svg.thin_steps(every)
    assert len(kept) <= svg.MAX_POINTS + 2
    assert all(point in kept for point in (every[4320], every[1233], every[-1]))


def test_the_validation_loss_is_a_line_that_starts_before_the_first_step():
    validation = [{"current_steps": n, "eval_loss": loss} for n, loss in ((0, 3.2), (6, None), (8, 1.0))]
    figures = {"eval_loss": 2.0, "eval_perplexity": 7.389, "context_gain": 0.0125}
    evaluations = read_evaluations([validation[0], {"current_steps": 4, **figures}, *validation[1:]])
    picture = draw_curve(points(8), RATES, [], evaluations)
    drawn = lines(picture)
    assert len(drawn["tp-kept"]) == 3 and drawn["tp-kept"][0][0] < drawn["tp-loss"][0][0]
    assert "step 4: validation loss 2.0000, perplexity 7.389, context gain 0.0125" in picture


def test_the_axis_counts_steps_or_epochs_of_the_same_points_and_each_phase_begins_with_a_line():
    picture = draw_curve(points(8, phases=PHASES), RATES)
    by_step, by_epoch = (
        {text.text: float(text.get("x")) for text in elements(picture, "g", f"tp-by-{unit}")[0].iter("text")}
        for unit in ("step", "epoch")
    )
    assert (list(by_step), list(by_epoch)) == (["1", "2", "5", "8", "10"], ["0.5", "1", "1.5", "2", "2.5"])
    assert by_epoch["2"] == by_step["8"]  # four steps an epoch
    marks = [mark.find("title").text for mark in elements(picture, "line", "tp-phase")]
    assert marks == [f"from step {n}: {name}" for n, name in PHASES]
