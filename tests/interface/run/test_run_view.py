"""The state of a run on the page, built from its events."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from training_pro.core import jobs
from training_pro.core.errors import Remedy
from training_pro.interface.run import RunView

STEPS = 20_000
FIGURES = {"why": "planned", "perplexity": 4.5, "accuracy": 0.5, "tokens": 9, "seconds": 1.0}


def step(number, steps=9, loss=2.0, **more):
    figures = {
        "learning_rate": 1e-4,
        "gradient_norm": 0.5,
        "tokens": 400,
        "seconds": 0.5,
        "epoch": 3 * number / steps,
    }
    return jobs.Step(**{"step": number, "steps": steps, "loss": loss, "smoothed": loss, **figures, **more})


def planned(steps=9, **more):
    values = {"name": "x", "model": "m", "settings": {}, "first_step": 0, "rates": (1e-4,) * steps}
    return jobs.RunPlanned(**{**values, "steps": steps, "steps_per_epoch": max(1, steps // 3), **more})


def evaluation(at, loss=2.0, **more):
    return jobs.EvaluationDone(**{"step": at, "epoch": 1.0, "loss": loss, **FIGURES, **more})


def view_of(*events):
    job = jobs.Job("training", "Training 'x'")
    for event in events:
        job.log.append(event)
    view = RunView(job)
    view.catch_up()
    return view


def html_of(*events):
    return view_of(*events).html()


def test_an_update_of_a_long_run_stays_small():
    """The size in bytes of everything that an update may contain; first and last step are drawn."""
    wave = (3 - 2 * n / STEPS + (n % 97) / 500 for n in range(1, STEPS + 1))
    steps = (step(n, STEPS, loss, by_source={"a": 2.0, "b": 1.0}) for n, loss in enumerate(wave, 1))
    saved = (
        jobs.CheckpointSaved(step=n, folder=Path(f"checkpoint-{n}"), reason="") for n in range(1000, STEPS, 1000)
    )
    view = view_of(planned(STEPS), *steps, *saved)
    html = view.html() + view.extra_charts() + view.samples()
    assert len(html.encode()) < 200_000 and f"{STEPS} / {STEPS}" in html
    assert max(len(polyline.split()) for polyline in re.findall(r'points="([^"]*)"', html)) < 1500
    drawn = [int(n) for n in re.findall(r"<title>step (\d+): loss", view.html())]
    assert min(drawn) == 1 and max(drawn) > STEPS * 0.99
    assert view.html() is view.html(), "all pages share one drawing"


def test_a_resumed_run_continues_what_was_before():
    sample = jobs.SampleGenerated(step=2, prompt="Who?", text="The ferryman.", without="A man.")
    saved = jobs.CheckpointSaved(step=2, folder=Path("checkpoint-2"), reason="")
    earlier = (*(step(n, smoothed=3.0, at=0.0, phase="by length") for n in (1, 2)), sample, saved)
    plan = planned(earlier=earlier, first_step=2)
    view = view_of(plan, step(3, phase="by length"), step(4, phase="sequential"))
    html = view.html()
    assert "an hour ago" not in html and "none yet" not in html and "step 2<" in html
    assert "step 2: checkpoint-2" in html and "The ferryman." in view.samples()
    phases = re.findall(r"<title>(from step \d+: [a-z ]+)", html)
    assert phases == ["from step 1: by length", "from step 4: sequential"]
    assert re.findall(r"<td[^>]*>(by length|sequential)</td>", html) == ["by length", "sequential"], "their table"


def test_what_was_asked_of_a_run_is_said_until_it_is_done():
    def after(*requests, stage=None):
        view = view_of(planned(), step(3), *([stage] if stage else []))
        for request in requests:
            view.job.control.ask(request)
        return view.html()

    saving = jobs.Stage(text="Saving the LoRA")
    measuring = jobs.Stage(text="Reading", kind=jobs.StageKind.MEASURING)
    paused = jobs.Stage(text="Paused after step 3", kind=jobs.StageKind.PAUSED)
    assert "Stopping" not in after(stage=saving) and "ends at about" in after()
    assert "Pausing after this step ..." in after(jobs.Request.PAUSE)
    assert paused.text in after(jobs.Request.PAUSE, stage=paused)
    assert "Pausing after" not in after(jobs.Request.PAUSE, stage=paused)
    assert "wait until" not in after(jobs.Request.PAUSE, jobs.Request.CHECKPOINT, stage=paused)
    assert "requests wait until you" in after(jobs.Request.PAUSE, jobs.Request.SAMPLE, stage=paused)
    stopped = after(jobs.Request.PAUSE, jobs.Request.STOP, stage=paused)
    assert "Stopping after this step ..." in stopped and "Paused" not in stopped and "ends at about" not in stopped
    assert "Stopping. Saving the LoRA" in after(jobs.Request.STOP, stage=saving)
    assert "recall is measured. Then the LoRA is saved." in after(jobs.Request.STOP, stage=measuring)
    discarded = after(jobs.Request.STOP, jobs.Request.DISCARD, stage=measuring)
    assert "Stopping. Reading" in discarded, "a discarded run saves nothing"


def test_memory_use_is_one_line_during_the_run_and_a_figure_at_its_end():
    use = jobs.MachineUse(cards=0, peak=3_100_000_000, total=16_000_000_000)
    running = [planned(), step(1), replace(use, peak=1), use]
    assert "Program memory: peak 3.1 GB of 16 GB so far" in html_of(*running)
    ended = html_of(*running, jobs.JobEnded(outcome="finished", text="Done."))
    assert "so far" not in ended and "peak memory" in ended and "3.1 GB" in ended


def test_an_evaluation_is_a_figure_and_a_point_of_a_chart():
    once = view_of(planned(), step(1), evaluation(1, 1.5))
    assert "Validation perplexity, measured once so far: 4.5 at step 1" in once.extra_charts()
    best = "validation loss at step 2 (best: 1.5000 at step 1)"
    for first in ((), (evaluation(0, math.nan),)):
        view = view_of(planned(), step(1), *first, evaluation(1, 1.5), step(2), evaluation(2, 1.75))
        assert best in view.html() and "Validation perplexity" in view.extra_charts()
    assert "context gain" not in (view.html() + view.extra_charts()).lower()
    gains = view_of(planned(), step(1), evaluation(3, context_gain=0.125), evaluation(6, context_gain=0.25))
    assert "context gain" in gains.html() and "0.2500" in gains.html()
    assert "Context gain: context gain from 0.125 to 0.25" in gains.extra_charts()


def test_sample_answers_are_a_table_of_steps_by_prompts():
    sampled = [
        jobs.SampleGenerated(step=s, prompt=p, text=f"{p}{s}<", without=f"bare {p}")
        for s in range(9)
        for p in "ab"
    ]
    rows = view_of(planned(), *sampled).samples().split("<tr>")[1:]
    assert "<th>a</th><th>b</th>" in rows[0] and "without the LoRA" in rows[1] and "bare a" in rows[1]
    assert "step 8" in rows[2] and "a8&lt;" in rows[2] and "step 1" in rows[-1] and len(rows) == 7


def test_a_failure_shows_its_reason_and_a_button_for_each_remedy():
    remedies = (Remedy("rank 16 (saves about 1 GB)", {"rank": 16}),)
    end = jobs.JobEnded(outcome="failed", text="The disk is full.", details="Traceback", remedies=remedies)
    view = view_of(planned(), step(1), end)
    assert not view.running
    for words in ("Training &#39;x&#39;: failed", "The disk is full.", "Traceback"):
        assert words in view.html()
    assert 'data-tp-set="{&#34;rank&#34;: 16}">Rank 16 (saves about 1 GB)</button>' in view.html()


def test_the_smoothed_loss_of_an_hour_ago_is_shown():
    steps = [step(n, 90, 3 - n / 100, at=100.0 * n) for n in range(1, 51)]
    assert "smoothed loss (an hour ago: 2.860)" in html_of(planned(90), *steps)
    assert "an hour ago" not in html_of(planned(90), *steps[:30])


@pytest.mark.parametrize("measured", [True, False])
def test_the_sentence_on_the_loss_follows_the_validation_loss(measured):
    """Page one showed a validation loss that rose beside "The loss is falling: the model is learning"."""
    steps = [step(n, 20, 4 - n / 10) for n in range(1, 21)]
    evaluations = [
        evaluation(n, loss, perplexity=1.0) for n, loss in ((0, 4.0), (6, 3.88), (12, 4.34)) if measured
    ]
    html = html_of(planned(20), *steps, *evaluations)
    assert ("The validation loss has risen since step 6" in html) == measured == ("is learning" not in html)
