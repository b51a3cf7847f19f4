"""report.html: one self-contained page, in which all text of the user is escaped."""

import re
from html import unescape
from pathlib import Path

import pytest
from training_pro.core.jobs import (
    Advice,
    CheckpointSaved,
    JobEnded,
    Note,
    PlanChanged,
    RunPlanned,
    SampleGenerated,
    Stage,
    Step,
)
from training_pro.records.folder import LoraEntry, inventory
from training_pro.records.report.report import ReportData, render_report
from training_pro.settings.definitions import TrainingSettings

ODD = "<b>&\"'</b></p><script>alert(1)</script>"
NOON = 1_795_262_400.0


RATES = {"learning_rate": 1e-3, "tokens": 100, "seconds": 2.0}


def entry(step, loss=2.0, **more):
    return {"current_steps": step, "loss": loss, "smoothed_loss": loss, "epoch": step / 4, **RATES, **more}


def evaluation(step, loss, **more):
    figures = {"eval_perplexity": 7.5, "eval_accuracy": 0.25, "eval_tokens": 9, "eval_by_source": {ODD: loss}}
    others = {"epoch": step / 4, "why": "planned", "kept_aside": "k", "eval_seconds": 1.0}
    return {"current_steps": step, "eval_loss": loss, **figures, **others, **more}


def planned(**settings):
    values = {**TrainingSettings().values(), "name": ODD, "data": [ODD], **settings}
    counts = {"steps": 8, "steps_per_epoch": 4, "first_step": 0, "rates": 8 * (1e-3,)}
    return RunPlanned(at=NOON, name=ODD, model=ODD, settings=values, **counts)


def step(number):
    figures = {"steps": 8, "loss": 2.0, "smoothed": 2.0, "gradient_norm": None, **RATES}
    return Step(at=NOON + number, step=number, epoch=number / 4, **figures)


def sample(step, text):
    return SampleGenerated(step=step, prompt=ODD, text=text, without="first")


EVENTS = [
    Stage(at=NOON, text="Training"),
    planned(rank=64, hard_cut=ODD, sample_prompts=[ODD, "two"], overlap=False),
    step(1),
    Note(at=NOON + 61, text=ODD),
    step(2),
    Advice(at=NOON + 62, text="Mind the gap"),
    CheckpointSaved(at=NOON + 63, step=2, folder=Path("loras/x/checkpoint-2"), reason=""),
]
GRAPH = [evaluation(0, 3.0), *(entry(n, 3 - n / 10) for n in range(1, 9)), evaluation(8, 2.25)]
PART = inventory.LoraPart("checkpoint-2", "checkpoint", 2, 2_000_000, Path("checkpoint-2"))
FIGURES = {"step": 8, "steps": 8, "loss": 2.2, "when": NOON, "size": 3_000_000, "note": "", "model": "toy"}
ENTRY = LoraEntry(name=ODD, folder=Path("/loras") / "odd & name", status="finished", parts=(PART,), **FIGURES)
SAMPLES = [sample(0, "first"), sample(4, "middle\x00"), sample(8, ODD)]
LOG = {
    "data": {"examples": 42, "tokens": 2053, "trained_tokens": 2011, "cutoff": 64},
    "versions": {"torch": "2.13"},
    "verdict": {"text": f"About right {ODD}"},
    "device": ODD,
}
TEXT = f"finished {ODD}\nAbout right {ODD}"
ENDED = JobEnded(at=NOON + 70, outcome="finished", text=TEXT, verdict="about right")


def text_in(html):
    """Return the text of a page (tests/interface/test_drawn_from_types.py proves that no text becomes markup)."""
    words = re.sub(r"<style.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(words))


@pytest.fixture(scope="module")
def html():
    return render_report(ReportData(EVENTS, ENDED, GRAPH, SAMPLES, LOG, ENTRY))


def test_it_is_self_contained_and_escaped_and_every_section_is_there(html):
    assert not re.search(r"<script|<b>| src=| href=| on\w+=\"|http(?!-equiv)|@import", html)
    assert html.count("&lt;script&gt;") > 10
    text = text_in(html)
    for part in ("Loss curve", "Samples", "Events", "Validation", "Run", "On disk"):
        assert f" {part} " in text
    for words in (
        *("steps 8 of 8", "3.0000 → 2.2500", "Mind the gap", "2,053 (2,011 trained)", "torch 2.13"),
        *("Without the LoRA first", "After step 4 middle\ufffd", "With the LoRA, after step 8"),
        "checkpoint-2 full checkpoint 2 MB the LoRA and its records 1 MB",
    ):
        assert words in text, words
    assert text.count("About right") == html.count("<svg") == 1


def test_only_settings_that_differ_are_named_by_their_labels(html):
    text = text_in(html)
    table = text[text.index("Settings that differ") : text.index("On disk")]
    for words in ("LoRA Rank 64 32", "Overlap blocks off on", "Hard cut", "two"):
        assert words in table
    assert "LoRA Alpha" not in table


def test_a_run_that_broke_off_is_reported_up_to_there():
    failed = JobEnded(at=NOON + 90_000, outcome="failed", text="OSError: no space", details=f"Traceback {ODD}")
    events = [*EVENTS, PlanChanged(at=NOON + 64, step=2, steps=12, rates=12 * (1e-3,), why="4 steps more")]
    html = render_report(ReportData(events, failed, [entry(1), entry(2)], (), {}, ENTRY))
    text = text_in(html)
    for words in ("OSError: no space", "Traceback", "steps 2 of 12", "too early to tell what the model learned"):
        assert words in text
    assert 'class="failed"' in html


def test_a_run_with_phases_has_a_table_of_them_and_the_context_gain():
    gains = [evaluation(n, 3 - n / 8, context_gain=n / 100) for n in (0, 4, 8)]
    phases = [entry(n, phase="by length" if n <= 4 else "sequential", examples=4) for n in range(1, 9)]
    graph = [gains[0], *phases[:4], gains[1], *phases[4:], gains[2]]
    text = text_in(render_report(ReportData(EVENTS, ENDED, graph, (), {}, ENTRY)))
    assert "by length 4 (1 to 4) 16 2.0000 2.0000 3.0000 to 2.5000" in text and "0.0400 to 0.0800" in text
