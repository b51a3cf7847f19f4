"""The curve as SVG: well-formed, small, reproducible, and escaped."""

from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree

import pytest
from training_pro.records.report import read_evaluations, read_steps
from training_pro.records.report.curve_svg import (
    MAX_POINTS,
    Mark,
    describe_curve,
    draw_curve,
    steps_per_epoch,
    thin_steps,
)
from training_pro.records.report.svg import MAX_EPOCH_TICKS, epoch_ticks

RATES = [1e-3 * share / 10 for share in range(10, 0, -1)]


def points(count, loss=lambda step: 3 / step):
    return read_steps(
        {"current_steps": n, "loss": loss(n), "smoothed_loss": loss(n) + 0.1, "learning_rate": 1e-3}
        for n in range(1, count + 1)
    )


def parsed(picture):
    return ElementTree.fromstring(picture)


def lines(picture):
    """Return the points of each line by its class."""
    points_by_class = {}
    for line in parsed(picture).iter("polyline"):
        line_points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        points_by_class[line.get("class")] = line_points
    return points_by_class


def test_the_plan_alone_can_be_drawn():
    drawn = lines(draw_curve([], RATES))
    assert drawn.keys() == {"tp-rate"}
    assert len(drawn["tp-rate"]) == 10
    assert [y for _, y in drawn["tp-rate"]] == sorted(y for _, y in drawn["tp-rate"])


def test_losses_fall_from_left_to_right():
    drawn = lines(draw_curve(points(8), RATES))
    loss = drawn["tp-loss"]
    assert len(loss) == len(drawn["tp-smoothed"]) == 8
    assert [x for x, _ in loss] == sorted({x for x, _ in loss})
    assert [y for _, y in loss] == sorted(y for _, y in loss)  # y grows downwards in SVG


@pytest.mark.parametrize("fall", [0.001, 0.03, 0.3, 3.0])
def test_the_labels_of_the_losses_look_evenly_spaced(fall):
    """With two digits, a range of 0.03 was labeled 3.68, 3.69, 3.71, 3.72."""
    picture = draw_curve(points(8, lambda step: 3.7 - fall * step / 8), [])
    labels = [float(text.text) for text in parsed(picture).iter("text") if "." in text.text][:4]
    distances = [higher - lower for lower, higher in itertools.pairwise(labels)]
    assert len(labels) == 4 and min(distances) > 0.85 * max(distances)


@pytest.mark.parametrize("drawn", [([], []), (points(1), [1e-3]), (points(1), []), (points(2), [0.0, 0.0])])
def test_the_smallest_runs_are_well_formed(drawn):
    assert parsed(draw_curve(*drawn)).tag == "svg"


@pytest.mark.parametrize(("count", "dots"), [(0, 0), (1, 1), (2, 0)])
def test_a_single_step_is_a_dot_since_a_line_of_one_point_is_invisible(count, dots):
    circles = [
        dot
        for dot in parsed(draw_curve(points(count), RATES)).iter("circle")
        if dot.get("class") == "tp-smoothed-dot"
    ]
    assert len(circles) == dots


def test_what_the_user_wrote_is_escaped():
    picture = draw_curve(points(3), RATES, [Mark(2, '<img src=x onerror="alert(1)">&')])
    titles = [title.text for title in parsed(picture).iter("title")]
    assert 'step 2: <img src=x onerror="alert(1)">&' in titles
    assert "<img" not in picture


def test_a_run_of_a_hundred_thousand_steps_stays_small():
    rates = [1e-3] * 100_000
    picture = draw_curve(points(100_000, lambda step: 2 + math.sin(step)), rates)
    assert len(picture.encode()) < 200_000
    assert parsed(picture).tag == "svg"


def test_thinning_keeps_the_ends_and_the_extremes():
    all_points = points(10_000, lambda step: 50.0 if step == 4321 else -7.0 if step == 1234 else 2 + step % 7)
    selection = thin_steps(all_points)
    assert len(selection) <= MAX_POINTS + 2
    assert all(point in selection for point in (all_points[4320], all_points[1233], all_points[-1]))
    assert [p.step for p in selection] == sorted({p.step for p in selection})
    assert thin_steps(all_points[:600]) == all_points[:600]


def test_a_loss_that_is_no_number_breaks_nothing():
    picture = draw_curve(points(5, lambda step: math.nan if step > 3 else 2.0), RATES)
    assert "nan" not in "".join(str(places) for places in lines(picture).values())
    assert len(lines(picture)["tp-loss"]) == 3
    assert parsed(draw_curve(points(2, lambda step: math.inf), RATES)).tag == "svg"


def test_the_curve_in_a_sentence():
    assert describe_curve([], 10) == "Planned: 10 steps."
    assert describe_curve(points(3), 10) == (
        "Loss over 3 of 10 steps: the smoothed loss goes from 3.100 to 1.100. The last loss is 1.000."
    )


def test_the_same_run_gives_the_same_picture():
    assert draw_curve(points(700), RATES) == draw_curve(points(700), RATES)


def test_the_validation_loss_is_a_line_that_starts_before_the_first_step():
    losses = {0: 3.2, 4: 2.0, 6: None, 8: 1.0}
    validation = read_evaluations({"current_steps": step, "eval_loss": loss} for step, loss in losses.items())
    picture = draw_curve(points(8), RATES, [], validation)
    drawn = lines(picture)
    assert len(drawn["tp-kept"]) == 3
    assert drawn["tp-kept"][0][0] < drawn["tp-loss"][0][0]
    assert "step 4: validation loss 2.0000" in picture
    assert lines(draw_curve([], RATES, [], validation)).keys() == {"tp-rate", "tp-loss", "tp-smoothed", "tp-kept"}


def with_phases(count=8, names=("by length", "pairs <of>", "sequential"), at=(1, 3, 6)):
    graph = [{"current_steps": n, "loss": 3 / n, "epoch": n / 4} for n in range(1, count + 1)]
    for entry in graph:
        entry["phase"] = [name for name, begin in zip(names, at, strict=True) if begin <= entry["current_steps"]][
            -1
        ]
    return read_steps(graph)


def test_each_phase_begins_with_a_line_and_its_name():
    picture = parsed(draw_curve(with_phases(), RATES))
    lines_of_phases = [line for line in picture.iter("line") if line.get("class") == "tp-phase"]
    names = [text for text in picture.iter("text") if text.get("class") == "tp-phase-name"]
    assert [name.text for name in names] == ["by length", "pairs <of>", "sequential"]
    assert [line.find("title").text for line in lines_of_phases] == [
        "from step 1: by length", "from step 3: pairs <of>", "from step 6: sequential",
    ]  # fmt: skip
    places = [float(line.get("x1")) for line in lines_of_phases]
    assert places == sorted(set(places))
    assert [name.get("dy") for name in names] == ["1em", "2.2em", "3.4em"]
    assert [name.get("text-anchor") for name in names] == ["start", "start", "start"]


def test_the_name_of_a_phase_stays_in_the_picture():
    late = with_phases(10, ("by length", "sequential"), (1, 10))
    names = [text for text in parsed(draw_curve(late, RATES)).iter("text") if text.get("class") == "tp-phase-name"]
    assert [name.get("text-anchor") for name in names] == ["start", "end"]


def test_a_run_with_one_order_has_no_marks_of_phases():
    assert "tp-phase" not in draw_curve(points(8), RATES)


def test_a_point_of_the_validation_loss_has_all_its_figures():
    figures = {"eval_loss": 2.0, "eval_perplexity": 7.389, "context_gain": 0.0125}
    picture = draw_curve(points(8), RATES, [], read_evaluations([{"current_steps": 4, **figures}]))
    assert "step 4: validation loss 2.0000, perplexity 7.389, context gain 0.0125" in picture


def axis_labels(picture, css_class):
    (group,) = [group for group in parsed(picture).iter("g") if group.get("class") == css_class]
    return [(float(text.get("x")), text.text) for text in group.iter("text")]


def test_the_axis_counts_steps_or_epochs_of_the_same_points():
    picture = draw_curve(with_phases(), RATES)
    by_step, by_epoch = axis_labels(picture, "tp-by-step"), axis_labels(picture, "tp-by-epoch")
    assert [text for _, text in by_step] == ["1", "2", "5", "8", "10"]
    assert [text for _, text in by_epoch] == ["0.5", "1", "1.5", "2", "2.5"]
    places = {text: place for place, text in by_step}
    assert {text: place for place, text in by_epoch}["2"] == places["8"]  # four steps an epoch
    assert "learning rate 0, epoch 0.25" in picture


def test_without_known_epochs_there_are_only_steps():
    assert steps_per_epoch(points(4)) == 0
    assert "tp-by-" not in draw_curve(points(4), RATES)


@pytest.mark.parametrize("last", [0.001, 0.3, 1, 2, 7.5, 33, 1000])
def test_epochs_on_the_axis_are_few_round_numbers(last):
    ticks = epoch_ticks(0, last)
    assert 2 <= len(ticks) <= MAX_EPOCH_TICKS
    assert all(0 <= tick <= last and len(f"{tick:g}") <= 6 for tick in ticks)
    assert ticks[-1] > last / 2
    assert epoch_ticks(last, last) == [last]
