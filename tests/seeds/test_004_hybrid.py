"""Promises of the feature request "Hybrid Training Approach", one test for each."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from training_pro.core.host import get_model_card
from training_pro.core.jobs import EvaluationDone, Job, Note, PhasesMeasured, Step
from training_pro.engine.training import trainer
from training_pro.engine.training.setup import prepare_data
from training_pro.settings import other_names
from training_pro.settings.definitions import SETTINGS, TrainingSettings
from training_pro.settings.parsing import training_settings
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.architectures import read_graph, read_log, record_batches

CONVERSATIONS, TURNS = 6, 3
HYBRID = {
    "data": ["chats.jsonl"],
    "cutoff": "auto",
    "batching": "length_then_order",
    "batch_size": 2,
    "epochs": 3,
    "train_on": "everything",
    "save_each_epoch": False,
}
PAIRS = {"switch_pairs": True, "switch_at": 1, "second_switch_at": 2}
EPOCH = CONVERSATIONS * TURNS // 2


def exchange(conversation, turn):
    words = "slowly " * ((5 * conversation + 3 * turn) % 7)  # lengths differ
    texts = {"instruction": f"Turn {turn} of {conversation}?", "output": f"I {words}say {turn} of {conversation}."}
    return {"conversation_id": conversation, "turn": turn, **texts}


@pytest.fixture
def chats(place):
    """A workspace with conversations of three turns, whose rows are mixed: all last turns come first."""
    rows = [exchange(conversation, turn) for turn in (2, 0, 1) for conversation in range(CONVERSATIONS)]
    place.write("chats.jsonl", "\n".join(map(json.dumps, rows)))
    place.write("eval.jsonl", "\n".join(json.dumps(exchange(n, turn)) for n in (7, 8) for turn in range(TURNS)))
    return place


@pytest.fixture
def curve(chats):
    """The smoothed losses of a run by length."""
    run_events(chats, name="by-length", batching="by_length")
    return [entry["smoothed_loss"] for entry in read_graph(chats, "by-length")]


@pytest.fixture
def steps(monkeypatch):

    return record_batches(monkeypatch, trainer)


def run_events(place, **more):
    job = Job("training", "a test")
    place.train(job=job, **{**HYBRID, **more})
    return job.log.since(0)


def phases(place):
    """The phase of each step."""
    return [entry["phase"] for entry in read_graph(place, "a") if "loss" in entry]


def place_in_conversation(number):
    """Conversation and turn of an example: the program puts the rows in the order of their conversations."""
    return divmod(number, TURNS)


def test_initial_phase_groups_exchanges_by_length(chats, steps):
    run_events(chats)
    first = steps[:EPOCH]
    assert phases(chats)[:EPOCH] == ["by length"] * EPOCH
    spread = sum(max(step.lengths) - min(step.lengths) for step in first)
    in_order = sum(max(step.lengths) - min(step.lengths) for step in steps[EPOCH : 2 * EPOCH])
    assert spread < in_order / 2
    assert max(first[0].lengths) == max(length for step in first for length in step.lengths)


def test_transition_phase_groups_two_sequential_entries_as_a_single_sample(chats, steps):
    run_events(chats, **PAIRS)
    assert phases(chats)[EPOCH : 2 * EPOCH] == ["pairs of neighbors"] * EPOCH
    pairs = [step for step in steps[EPOCH : 2 * EPOCH] if step.joins[1]]  # the second reads the first
    assert len(pairs) == CONVERSATIONS
    for first, second in pairs:
        conversation, turn = place_in_conversation(first)
        assert place_in_conversation(second) == (conversation, turn + 1)


def test_pairs_come_at_once_and_not_gradually(chats, steps):
    run_events(chats, switch_pairs=True, switch_at=1, second_switch_at=3)
    pairs = [sum(step.joins) for step in steps]
    assert not any(pairs[:EPOCH])
    assert sum(pairs[EPOCH : 2 * EPOCH]) == sum(pairs[2 * EPOCH :]) == CONVERSATIONS
    assert "starts at once" in read_page("The transition phase introduces pairs gradually.")


def test_final_phase_feeds_conversations_and_messages_in_their_original_order(chats, steps):
    run_events(chats, **PAIRS)
    assert phases(chats)[2 * EPOCH :] == ["sequential"] * EPOCH
    numbers = [number for step in steps[2 * EPOCH :] for number in step]
    expected = [(conversation, turn) for conversation in range(CONVERSATIONS) for turn in range(TURNS)]
    assert [place_in_conversation(number) for number in numbers] == expected


def test_the_rows_of_a_conversation_are_found_wherever_they_are_in_the_file(chats):
    host, job = chats.host(), Job("training", "a test")
    examples = prepare_data(chats.settings(**HYBRID), host, get_model_card(host), job).examples
    texts = [example.text for example in examples]
    assert all(f"Turn {n % TURNS} of {n // TURNS}?" in text for n, text in enumerate(texts))


@pytest.mark.parametrize("epochs", [1, 2])
def test_epoch_based_transition(chats, epochs):
    run_events(chats, switch_after="epochs", switch_at=epochs)
    assert phases(chats) == ["by length"] * EPOCH * epochs + ["sequential"] * EPOCH * (3 - epochs)


def test_step_based_transition(chats):
    run_events(chats, switch_after="steps", switch_at=4)
    assert phases(chats) == ["by length"] * 4 + ["sequential"] * (3 * EPOCH - 4)


def switch_notes(events):
    return [event.text for event in events if isinstance(event, Note) and "Batch order after" in event.text]


def first_step_below(events, bound):
    return next(event.step for event in events if isinstance(event, Step) and event.smoothed <= bound)


def test_loss_threshold_for_transition(chats, curve):
    events = run_events(chats, switch_after="loss", switch_loss_low=0.1, switch_loss_high=curve[6])
    first = first_step_below(events, curve[6])
    (note,) = switch_notes(events)
    assert note.startswith(f"Batch order after step {first}: sequential")
    found = phases(chats)
    assert found[first - 1] == "by length"
    assert found[first + 1] == "sequential"  # one batch was fetched before


def test_secondary_transition_at_a_loss_of_its_own(chats, curve, steps):
    bounds = {"switch_loss_high": curve[4], "second_switch_loss_high": curve[14]}
    low = {"switch_loss_low": 0.1, "second_switch_loss_low": 0.1}
    steps.clear()  # of the run by length
    events = run_events(chats, switch_after="loss", switch_pairs=True, **bounds, **low)
    first, second = (first_step_below(events, bound) for bound in bounds.values())
    pair_note, order_note = switch_notes(events)
    assert pair_note.startswith(f"Batch order after step {first}: pairs of neighbors, because the smoothed loss")
    assert order_note.startswith(f"Batch order after step {second}: sequential, because the smoothed loss")
    expected = ["by length"] * (first + 1) + ["pairs of neighbors"] * (second - first)  # one batch was fetched
    assert phases(chats) == [*expected, *["sequential"] * (3 * EPOCH - len(expected))]
    joins = [any(step.joins) for step in steps]
    assert any(joins[first + 1 : second + 1]) and not any(joins[: first + 1] + joins[second + 1 :])


def test_a_loss_that_has_fallen_past_the_range_switches_too(chats):
    past = {"switch_loss_low": 50, "switch_loss_high": 60}
    (note,) = switch_notes(run_events(chats, switch_after="loss", max_steps=4, **past))
    assert note.startswith("Batch order after step 1: sequential")
    assert note.endswith("is already at or below the lower bound (50), so the previous phase was short.")
    statement = "The transition happens when the loss falls into the range."
    assert "at or below the upper bound" in read_page(statement)


def test_the_proposed_loss_ranges_are_the_defaults():
    """2.0 to 2.5 for the first transition, 1.5 to 2 for the second one."""
    values = TrainingSettings().values()
    assert (values["switch_loss_low"], values["switch_loss_high"]) == (2.0, 2.5)
    assert (values["second_switch_loss_low"], values["second_switch_loss_high"]) == (1.5, 2.0)


def test_the_examples_of_the_request_are_settings_that_are_accepted():
    """10 epochs, 20,000 steps, a loss range; in one stage or in two."""
    base = {"name": "a", "data": ["chats.jsonl"], "batching": "length_then_order"}
    for values in (
        {"switch_after": "epochs", "switch_at": 10, "epochs": 20},
        {"switch_after": "steps", "switch_at": 20_000},
        {"switch_after": "loss"},
        {"switch_after": "loss", "switch_pairs": True},
        {"switch_after": "steps", "switch_at": 20_000, "switch_pairs": True, "second_switch_at": 30_000},
    ):
        settings = training_settings({**base, **values})
        assert all(settings.values()[key] == value for key, value in values.items())
    assert set(SETTINGS["switch_after"].choices) == {"epochs", "steps", "loss"}


def test_the_transition_is_done_in_a_single_stage_or_in_two(chats):
    run_events(chats)
    assert list(dict.fromkeys(phases(chats))) == ["by length", "sequential"]
    run_events(chats, if_exists="replace", **PAIRS)
    assert list(dict.fromkeys(phases(chats))) == ["by length", "pairs of neighbors", "sequential"]


def test_monitoring_evaluates_the_performance_impact_of_each_phase(chats):
    events = run_events(chats, eval_data=["eval.jsonl"], eval_every=10**6, **PAIRS)
    evaluated = [event.step for event in events if isinstance(event, EvaluationDone)]
    assert evaluated == [0, EPOCH, 2 * EPOCH, 3 * EPOCH]
    (measured,) = [event for event in events if isinstance(event, PhasesMeasured)]
    for phase, (before, after) in zip(measured.phases, pairwise(evaluated), strict=True):
        assert (phase.before.step, phase.after.step, phase.steps) == (before, after, EPOCH)
        assert phase.after.loss != phase.before.loss
        assert phase.examples == CONVERSATIONS * TURNS
    names = [phase["name"] for phase in read_log(chats)["phases"]]
    assert names == ["by length", "pairs of neighbors", "sequential"]
    assert "evaluated at each switch" in read_page("Monitor the performance impact of each phase.")


def test_metrics_specific_to_context_understanding_and_conversation_coherence(chats):
    """The loss of a turn alone minus its loss after the turn before it, of the same conversation."""
    events = run_events(chats, eval_data=["eval.jsonl"], **PAIRS)
    (measured,) = [event for event in events if isinstance(event, PhasesMeasured)]
    gains = [phase.after.context_gain for phase in measured.phases]
    assert all(gain is not None for gain in gains)
    assert len(set(gains)) == len(gains)
    report = (chats.lora() / "report.html").read_text(encoding="utf-8")
    assert "<th>Context gain</th>" in report
    assert all(f"{gain:.4f}" in report for gain in gains)


def test_one_metric_covers_context_understanding_and_coherence(chats):
    run_events(chats, eval_data=["eval.jsonl"], max_steps=2, switch_after="steps")
    phases_logged = read_log(chats)["phases"]
    assert [set(phase["after"]) for phase in phases_logged] == [{"step", "loss", "perplexity", "context_gain"}] * 2
    statement = "Track metrics for context understanding and for conversation coherence."
    assert read_page(statement).startswith("One metric covers both: [context gain]")


@pytest.mark.parametrize(("turns", "known"), [(1, False), (2, True)])
def test_context_gain_needs_an_earlier_turn_of_the_same_conversation(chats, turns, known):
    rows = [exchange(conversation, turn) for conversation in (7, 8, 9) for turn in range(turns)]
    chats.write("eval.jsonl", "\n".join(map(json.dumps, rows)))
    events = run_events(chats, eval_data=["eval.jsonl"], max_steps=2)
    gains = [event.context_gain for event in events if isinstance(event, EvaluationDone)]
    assert gains and all((gain is not None) == known for gain in gains)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("Hybrid Training Approach", "batching"),
        ("length-based batching", "batching"),
        ("sequential feeding", "batching"),
        ("Epoch-Based Transition", "switch_after"),
        ("Step-Based Transition", "switch_after"),
        ("Loss Threshold for Transition", "switch_after"),
        ("number of training steps", "switch_at"),
        ("Transition Phase", "switch_pairs"),
        ("secondary transition", "second_switch_at"),
    ],
)
def test_the_words_of_the_request_lead_to_the_settings(theirs, ours):
    page = other_names.render_markdown()
    section = page.split("## The feature request for hybrid training")[1].split("\n## ")[0]
    (row,) = [line for line in section.splitlines() if f"`{theirs}`" in line]
    assert row.endswith(f"| {SETTINGS[ours].label} | `{ours}` |")
    assert ours in [named.key for named in other_names.find_settings(theirs)[:3]]
