"""Promises of the feature request "Hybrid Training Approach"."""

from __future__ import annotations

from itertools import pairwise

import pytest
from training_pro.core.jobs import EvaluationDone, Note, PhasesMeasured, Step, event_text
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.architectures import read_graph, read_log
from training_pro.tests.seeds.conftest import run_events, write_rows

CONVERSATIONS, TURNS = 6, 3
HYBRID = {
    "data": ["chats.jsonl"], "cutoff": "auto", "batching": "length_then_order", "batch_size": 2, "epochs": 3,
    "train_on": "everything", "save_each_epoch": False,
}  # fmt: skip
PAIRS = {"switch_pairs": True, "switch_at": 1, "second_switch_at": 2}
EPOCH = CONVERSATIONS * TURNS // 2
LENGTH, NEIGHBORS, ORDER = "by length", "pairs of neighbors", "sequential"


def exchange(conversation, turn):
    words = "slowly " * ((5 * conversation + 3 * turn) % 7)  # lengths differ
    texts = {"instruction": f"Turn {turn} of {conversation}?", "output": f"I {words}say {turn} of {conversation}."}
    return {"conversation_id": conversation, "turn": turn, **texts}


@pytest.fixture
def chats(place):
    """Conversations of three turns, whose rows are mixed: all last turns come first."""
    mixed = [exchange(conversation, turn) for turn in (2, 0, 1) for conversation in range(CONVERSATIONS)]
    write_rows(place, *mixed, name="chats.jsonl")
    write_rows(place, *[exchange(n, turn) for n in (7, 8) for turn in range(TURNS)], name="eval.jsonl")
    return place


def phases(place):
    """The phase of each step."""
    return [entry["phase"] for entry in read_graph(place, "a") if "loss" in entry]


def test_each_of_three_phases_is_evaluated_by_its_loss_and_context_gain(chats):
    """The gain is the loss of a turn alone minus its loss after the turn before it, of the same conversation."""
    events = run_events(chats, **HYBRID, **PAIRS, eval_data=["eval.jsonl"], eval_every=10**6)
    assert phases(chats) == [LENGTH] * EPOCH + [NEIGHBORS] * EPOCH + [ORDER] * EPOCH
    evaluated = [event.step for event in events if isinstance(event, EvaluationDone)]
    assert evaluated == [0, EPOCH, 2 * EPOCH, 3 * EPOCH]
    (measured,) = [event for event in events if isinstance(event, PhasesMeasured)]
    for phase, (before, after) in zip(measured.phases, pairwise(evaluated), strict=True):
        assert (phase.before.step, phase.after.step, phase.steps) == (before, after, EPOCH)
        assert phase.after.loss != phase.before.loss
        assert phase.examples == CONVERSATIONS * TURNS
    assert all(name in event_text(measured) for name in (LENGTH, NEIGHBORS, ORDER))
    logged = read_log(chats)["phases"]
    assert [phase["name"] for phase in logged] == [LENGTH, NEIGHBORS, ORDER]
    assert all(set(phase["after"]) == {"step", "loss", "perplexity", "context_gain"} for phase in logged)
    gains = [phase["after"]["context_gain"] for phase in logged]
    assert len(set(gains)) == 3 and None not in gains
    report = (chats.lora() / "report.html").read_text(encoding="utf-8")
    assert "<th>Context gain</th>" in report and all(f"{gain:.4f}" in report for gain in gains)
    assert "evaluated at each switch" in read_page("Monitor the performance impact of each phase.")
    statement = "Track metrics for context understanding and for conversation coherence."
    assert read_page(statement).startswith("One metric covers both: [context gain]")


@pytest.mark.long
@pytest.mark.parametrize(("turns", "known"), [(1, False), (2, True)])
def test_context_gain_needs_an_earlier_turn_of_the_same_conversation(chats, turns, known):
    write_rows(chats, *[exchange(n, turn) for n in (7, 8, 9) for turn in range(turns)], name="eval.jsonl")
    events = run_events(chats, kind=EvaluationDone, **HYBRID, eval_data=["eval.jsonl"], max_steps=2)
    assert events and all((event.context_gain is not None) == known for event in events)


@pytest.mark.long
@pytest.mark.parametrize(
    ("after", "at", "first"), [("epochs", 1, EPOCH), ("epochs", 2, 2 * EPOCH), ("steps", 4, 4)]
)
def test_epoch_based_and_step_based_transition_in_a_single_stage(chats, after, at, first):
    run_events(chats, **HYBRID, switch_after=after, switch_at=at)
    assert phases(chats) == [LENGTH] * first + [ORDER] * (3 * EPOCH - first)


@pytest.mark.long
def test_loss_threshold_for_each_transition(chats, batches):
    """The secondary transition has a loss of its own. One batch is fetched before each switch."""
    run_events(chats, name="by-length", **{**HYBRID, "batching": "by_length"})
    curve = [entry["smoothed_loss"] for entry in read_graph(chats, "by-length")]
    batches.clear()
    bounds = {"switch_loss_high": curve[4], "second_switch_loss_high": curve[14]}
    low = {"switch_loss_low": 0.1, "second_switch_loss_low": 0.1}
    events = run_events(chats, **HYBRID, switch_after="loss", switch_pairs=True, **bounds, **low)
    losses = [event for event in events if isinstance(event, Step)]
    first, second = (next(s.step for s in losses if s.smoothed <= bound) for bound in bounds.values())
    notes = [event.text for event in events if isinstance(event, Note) and "Batch order after" in event.text]
    for note, step, phase in zip(notes, (first, second), (NEIGHBORS, ORDER), strict=True):
        assert note.startswith(f"Batch order after step {step}: {phase}, because the smoothed loss")
    expected = [LENGTH] * (first + 1) + [NEIGHBORS] * (second - first)
    assert phases(chats) == [*expected, *[ORDER] * (3 * EPOCH - len(expected))]
    joins = [any(batch.joins) for batch in batches]
    assert any(joins[first + 1 : second + 1]) and not any(joins[: first + 1] + joins[second + 1 :])


@pytest.mark.long
def test_a_loss_that_has_fallen_past_the_range_switches_too(chats):
    past = {"switch_after": "loss", "switch_loss_low": 50, "switch_loss_high": 60, "max_steps": 4}
    notes = [note.text for note in run_events(chats, kind=Note, **HYBRID, **past)]
    (note,) = [text for text in notes if text.startswith("Batch order after step 1: sequential")]
    assert note.endswith("is already at or below the lower bound (50), so the previous phase was short.")
    assert "at or below the upper bound" in read_page("The transition happens when the loss falls into the range.")
