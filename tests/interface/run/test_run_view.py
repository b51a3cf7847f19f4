"""The state of a run on the page, built from its events."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from training_pro.core.errors import Remedy
from training_pro.core.jobs import (
    Advice,
    CheckpointSaved,
    EvaluationDone,
    Job,
    JobEnded,
    MachineUse,
    Note,
    Request,
    RunPlanned,
    SampleGenerated,
    Stage,
    Step,
)
from training_pro.interface.base import CSS, load_script
from training_pro.interface.run import RunView
from training_pro.interface.run.charts import run_charts

STEPS = 100_000


def step(number, steps, loss=2.0, **more):
    return Step(
        step=number,
        steps=steps,
        epoch=3 * number / steps,
        loss=loss,
        smoothed=loss,
        learning_rate=1e-4,
        gradient_norm=0.5,
        tokens=400,
        seconds=0.5,
        **more,
    )


def planned(steps):
    return RunPlanned(
        name="x", model="m", steps=steps, steps_per_epoch=max(1, steps // 3), first_step=0,
        rates=(1e-4,) * steps, settings={},
    )  # fmt: skip


def view_of(*events):
    job = Job("training", "Training 'x'")
    for event in events:
        job.log.append(event)
    view = RunView(job)
    view.catch_up()
    return view


@pytest.fixture(scope="module")
def long_run():
    steps = (
        step(n, STEPS, loss=3 - 2 * n / STEPS + (n % 97) / 500, by_source={"a": 2.0, "b": 1.0})
        for n in range(1, STEPS + 1)
    )
    saved = (CheckpointSaved(step=n, folder=Path(f"checkpoint-{n}"), reason="") for n in range(5000, STEPS, 5000))
    return view_of(planned(STEPS), *steps, *saved)


def test_an_update_of_a_long_run_stays_small(long_run):
    """The size in bytes of everything that an update of 100,000 steps may contain."""
    html = long_run.html() + long_run.extra_charts() + long_run.samples()
    assert len(html.encode()) < 200_000
    points = [len(polyline.split()) for polyline in re.findall(r'points="([^"]*)"', html)]
    assert points and max(points) < 1500


def test_the_first_and_last_step_are_drawn(long_run):
    steps = [int(n) for n in re.findall(r"<title>step (\d+): loss", long_run.html())]
    assert min(steps) == 1 and max(steps) > STEPS * 0.99
    assert f"{STEPS} / {STEPS}" in long_run.html()


def test_losses_per_dataset_and_gradient_norms_are_under_more_curves():
    view = view_of(planned(9), *(step(n, 9, by_source={"<a>": 2.0 + n, "b": 1.0}) for n in range(1, 9)))
    curves = view.extra_charts()
    assert "Loss on each dataset" in curves and "Gradient norm" in curves
    assert "&lt;a&gt;" in curves and "<a>" not in curves
    assert "Validation" not in curves


def test_a_resumed_run_has_a_checkpoint_but_no_loss_of_an_hour_ago():
    earlier = tuple(replace(step(n, 9), smoothed=3.0, at=0.0) for n in (1, 2))
    resumed = replace(planned(9), first_step=2, earlier=earlier)
    html = view_of(resumed, step(3, 9)).html()
    assert "an hour ago" not in html
    assert "none yet" not in html and "step 2<" in html


def test_a_resumed_run_has_the_samples_of_its_earlier_part():
    sample = SampleGenerated(step=2, prompt="Who?", text="The ferryman.", without="A man.")
    resumed = replace(planned(9), first_step=2, earlier=(sample,))
    assert "The ferryman." in view_of(resumed).samples()


def test_the_curve_of_a_resumed_run_marks_its_earlier_checkpoints():
    saved = CheckpointSaved(step=2, folder=Path("checkpoint-2"), reason="")
    earlier = (*(step(n, 9) for n in (1, 2)), saved)
    html = view_of(replace(planned(9), first_step=2, earlier=earlier), step(3, 9)).html()
    assert "step 2: checkpoint-2" in html


def test_a_paused_run_is_called_paused_once_its_step_is_done():
    view = view_of(planned(9), step(3, 9))
    view.job.control.ask(Request.PAUSE)
    assert "Pausing after this step ..." in view.html()
    paused = view_of(planned(9), step(3, 9), Stage(text="Paused after step 3; the model stays in memory."))
    paused.job.control.ask(Request.PAUSE)
    assert "Paused after step 3; the model stays in memory." in paused.html()
    assert "Pausing after" not in paused.html()
    paused.job.control.ask(Request.STOP)
    assert "Stopping after this step ..." in paused.html() and "Paused after" not in paused.html()


def test_a_run_that_is_stopping_says_so_until_its_end():
    view = view_of(planned(9), step(3, 9), Stage(text="Saving the LoRA"))
    assert "Stopping" not in view.html()
    view.job.control.ask(Request.STOP)
    assert "Stopping. Saving the LoRA" in view.html()
    measuring = view_of(planned(9), step(3, 9), Stage(text="Measuring recall"))
    measuring.job.control.ask(Request.STOP)
    assert "Stopping. First, recall is measured. Then the LoRA is saved." in measuring.html()
    measuring.job.control.ask(Request.DISCARD)
    assert "Stopping. Measuring recall" in measuring.html(), "a discarded run saves nothing"


def test_a_stopping_run_shows_no_remaining_time():
    view = view_of(planned(9), step(3, 9))
    assert "ends at about" in view.html()
    view.job.control.ask(Request.STOP)
    assert "ends at about" not in view.html()


def test_memory_use_is_one_line_during_the_run_and_a_figure_at_its_end():
    use = MachineUse(cards=0, peak=3_100_000_000, total=16_000_000_000)
    running = [planned(9), step(1, 9), replace(use, peak=1), use]
    text = "Program memory: peak 3.1 GB of 16 GB so far"
    assert f'<p class="tp-quiet">{text}</p>' in view_of(*running).html()
    ended = view_of(*running, JobEnded(outcome="finished", text="Done.")).html()
    assert "so far" not in ended and "peak memory" in ended and "3.1 GB" in ended


def test_an_evaluation_is_a_figure_and_a_point_of_a_chart():
    def evaluation(at, loss):
        return EvaluationDone(
            step=at, epoch=1, why="planned", loss=loss, perplexity=3, accuracy=0.5, tokens=9, seconds=1
        )

    view = view_of(planned(9), step(1, 9), evaluation(1, 1.5), step(2, 9), evaluation(2, 1.75))
    assert "validation loss at step 2 (best: 1.5000 at step 1)" in view.html()
    assert "Validation perplexity" in view.extra_charts()
    after_nan = view_of(planned(9), step(1, 9), evaluation(0, math.nan), evaluation(1, 1.5), evaluation(2, 1.75))
    assert "validation loss at step 2 (best: 1.5000 at step 1)" in after_nan.html()


def test_context_gain_is_a_figure_and_a_chart_where_it_is_measured():
    evaluation = EvaluationDone(
        step=3, epoch=1, why="asked", loss=1, perplexity=4.5, accuracy=0.5, tokens=9, seconds=1, context_gain=0.125
    )
    view = view_of(planned(9), step(1, 9), evaluation, replace(evaluation, step=6, context_gain=0.25))
    assert "context gain" in view.html() and "0.2500" in view.html()
    assert "Context gain: context gain from 0.125 to 0.25" in view.extra_charts()
    without = view_of(planned(9), step(1, 9), replace(evaluation, context_gain=None))
    assert "context gain" not in (without.html() + without.extra_charts()).lower()


def test_a_single_value_is_a_sentence_and_no_chart():
    evaluation = EvaluationDone(
        step=3, epoch=1, why="asked", loss=1, perplexity=4.5, accuracy=0.5, tokens=9, seconds=1
    )
    charts = run_charts([], [evaluation], [])
    assert "Validation perplexity, measured once so far: 4.5 at step 3" in charts
    assert "<svg" not in charts
    charts = run_charts([], [evaluation, replace(evaluation, step=6, perplexity=4)], [])
    assert charts.count("<svg") == 2


def test_a_long_list_in_a_message_is_folded():
    many = ", ".join(f"model.layers.{n}.<proj" for n in range(20))
    sentences = f"Step 5: {'a batch does not fit. ' * 9}"
    notes = (f"The LoRA is added to all: {many}", "Short: so.", sentences)
    html = view_of(planned(9), step(1, 9), *(Note(text=text) for text in notes)).html()
    assert "<summary>The LoRA is added to all.</summary>model.layers.0.&lt;proj, model" in html
    assert "<li>Short: so.</li>" in html and f"<li>{sentences}</li>" in html, "only lists are folded"


def test_sample_answers_are_a_table_of_steps_by_prompts():
    sampled = [
        SampleGenerated(step=s, prompt=p, text=f"{p}{s}<", without=f"bare {p}") for s in range(9) for p in "ab"
    ]
    table = view_of(planned(9), *sampled).samples()
    rows = table.split("<tr>")[1:]
    assert "<th>a</th><th>b</th>" in rows[0]
    assert "without the LoRA" in rows[1] and "bare a" in rows[1]
    assert "step 8" in rows[2] and "a8&lt;" in rows[2]
    assert "step 1" in rows[-1] and len(rows) == 7


def test_a_failure_shows_its_reason():
    view = view_of(
        planned(9), step(1, 9), JobEnded(outcome="failed", text="The disk is full.", details="Traceback")
    )
    html = view.html()
    assert "Training &#39;x&#39;: failed" in html and "The disk is full." in html and "Traceback" in html
    assert not view.running


def test_each_remedy_after_a_failure_is_a_button():
    remedies = (Remedy("rank 16 (saves about 1 GB)", {"rank": 16}),)
    html = view_of(planned(9), JobEnded(outcome="failed", text="Out of memory.", remedies=remedies)).html()
    assert 'data-tp-set="{&#34;rank&#34;: 16}">Rank 16 (saves about 1 GB)</button>' in html


def test_earlier_notes_are_folded_and_advice_stays_visible():
    notes = [Note(text=f"Note number {number}.") for number in range(1, 4)]
    html = str(view_of(planned(9), step(1, 9), notes[0], Advice(text="Lower the rate."), *notes[1:]).html())
    visible, _, folded = html.partition('<details data-tp-fold="notes">')
    assert "Lower the rate." in visible and "Note number 3." in visible
    assert folded.startswith("<summary>Earlier notes (2)</summary>")
    assert folded.index("Note number 2.") < folded.index("Note number 1.") and "Note number 3." not in folded
    assert "Earlier notes" not in view_of(planned(9), step(1, 9), notes[0]).html(), "a single note needs no fold"


def test_a_resumed_run_shows_the_phases_from_before():
    plan = replace(planned(6), earlier=tuple(step(n, 6, phase="by length") for n in (1, 2)), first_step=2)
    html = view_of(plan, step(3, 6, phase="by length"), step(4, 6, phase="sequential")).html()
    assert re.findall(r"<title>(from step \d+: [a-z ]+)", html) == [
        "from step 1: by length",
        "from step 4: sequential",
    ]


def test_the_live_page_has_a_table_by_phase_with_the_context_gain():
    figures = {"why": "planned", "loss": 2.0, "perplexity": 7.4, "accuracy": 0.5, "tokens": 9, "seconds": 1.0}
    done = (EvaluationDone(step=n, epoch=0.0, context_gain=0.01 + n / 100, **figures) for n in (0, 2))
    first, second = done
    steps = [step(n, 6, phase="by length", examples=4) for n in (1, 2)]
    html = view_of(planned(6), first, *steps, second, step(3, 6, phase="sequential", examples=4)).html()
    rows = [re.findall(r"<td>([^<]*)", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    assert rows[1][:3] == ["by length", "2 (1 to 2)", "8"]
    assert rows[1][-1] == "0.0100 to 0.0300"
    assert rows[2][:2] == ["sequential", "1 (3 to 3)"]
    assert "<span>context gain</span>" in html
    assert "<th>Phase</th>" not in view_of(planned(6), first, step(1, 6)).html()


def test_one_switch_shows_all_curves_by_step_or_by_epoch():
    view = view_of(planned(6), *(step(n, 6) for n in range(1, 7)))
    assert view.html().count("data-tp-axis") == 1
    charts = view.extra_charts()
    assert charts.count("tp-by-step") == charts.count("tp-by-epoch") == charts.count("<svg") > 1
    assert "data-tp-axis" not in view_of(planned(6)).html()
    classes = {"tp-by-step", "tp-by-epoch"}
    assert all(f".{name} {{display: var(--{name}" in CSS for name in classes)
    assert "[data-tp-axis]" in load_script("clicks")


def test_the_smoothed_loss_of_an_hour_ago_is_shown():
    steps = [replace(step(n, 90, loss=3 - n / 100), at=100.0 * n) for n in range(1, 51)]
    assert "smoothed loss (an hour ago: 2.860)" in view_of(planned(90), *steps).html()
    assert "an hour ago" not in view_of(planned(90), *steps[:30]).html()


def test_the_sentence_on_the_loss_follows_the_validation_loss():
    """Page one showed a validation loss that rose beside "The loss is falling: the model is learning"."""
    figures = {"why": "planned", "perplexity": 1.0, "accuracy": 0.5, "tokens": 9, "seconds": 1.0}
    steps = [step(n, 20, loss=4 - n / 10) for n in range(1, 21)]
    losses = {0: 4.0, 6: 3.88, 12: 4.34}
    evaluations = [EvaluationDone(step=n, epoch=1.0, loss=loss, **figures) for n, loss in losses.items()]
    html = view_of(planned(20), *steps, *evaluations).html()
    assert "The validation loss has risen since step 6: the model memorizes more than it learns." in html
    assert "is learning" not in html and "is learning" in view_of(planned(20), *steps).html()
