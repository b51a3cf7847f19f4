"""Promises of the feature request "Hybrid Training Approach"."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from training_pro.core.jobs import EvaluationDone, Note, PhasesMeasured, Step, event_text
from training_pro.engine.training import trainer
from training_pro.hosts.standalone import standalone_folders
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.architectures import read_graph, read_log, record_batches
from training_pro.tests.seeds.conftest import prepared, run_events, settings, write_rows
from training_pro.tests.tiny import Workspace

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


def write_chats(place):
    """Conversations of three turns, whose rows are mixed: all last turns come first."""
    mixed = [exchange(conversation, turn) for turn in (2, 0, 1) for conversation in range(CONVERSATIONS)]
    write_rows(place, *mixed, name="chats.jsonl")
    write_rows(place, *[exchange(n, turn) for n in (7, 8) for turn in range(TURNS)], name="eval.jsonl")
    return place


@pytest.fixture
def chats(place):
    return write_chats(place)


@pytest.fixture(scope="module")
def three_phases(tmp_path_factory, tiny):
    """A run in three phases, with an evaluation at each switch: its workspace, events and batches."""
    place = write_chats(Workspace(standalone_folders(tmp_path_factory.mktemp("hybrid") / "user_data"), tiny))
    with pytest.MonkeyPatch.context() as patch:
        batches = record_batches(patch, trainer)
        events = run_events(place, **HYBRID, **PAIRS, eval_data=["eval.jsonl"], eval_every=10**6)
    return SimpleNamespace(place=place, events=events, batches=batches)


def phases(place):
    """The phase of each step."""
    return [entry["phase"] for entry in read_graph(place, "a") if "loss" in entry]


@pytest.mark.long
def test_initial_phase_groups_exchanges_by_length_and_final_phase_feeds_the_original_order(three_phases):
    batches = three_phases.batches
    assert phases(three_phases.place) == [LENGTH] * EPOCH + [NEIGHBORS] * EPOCH + [ORDER] * EPOCH
    spread, in_order = (
        sum(max(batch.lengths) - min(batch.lengths) for batch in part)
        for part in (batches[:EPOCH], batches[2 * EPOCH :])
    )
    assert spread < in_order / 2
    assert max(batches[0].lengths) == max(length for batch in batches[:EPOCH] for length in batch.lengths)
    assert [number for batch in batches[2 * EPOCH :] for number in batch] == list(range(CONVERSATIONS * TURNS))


def test_the_rows_of_a_conversation_are_found_wherever_they_are_in_the_file(chats):
    texts = [example.text for example in prepared(chats, **HYBRID).examples]
    assert all(f"Turn {n % TURNS} of {n // TURNS}?" in text for n, text in enumerate(texts))


def test_transition_phase_groups_two_sequential_entries_as_a_single_sample_at_once(three_phases):
    """The second reads the first; the request introduces the pairs gradually."""
    pairs = [batch for batch in three_phases.batches if any(batch.joins)]
    assert len(pairs) == CONVERSATIONS and all(batch in three_phases.batches[EPOCH : 2 * EPOCH] for batch in pairs)
    for first, second in pairs:
        assert second == first + 1 and first // TURNS == second // TURNS
    assert "starts at once" in read_page("The transition phase introduces pairs gradually.")


def test_monitoring_evaluates_the_performance_impact_of_each_phase(three_phases):
    evaluated = [event.step for event in three_phases.events if isinstance(event, EvaluationDone)]
    assert evaluated == [0, EPOCH, 2 * EPOCH, 3 * EPOCH]
    (measured,) = [event for event in three_phases.events if isinstance(event, PhasesMeasured)]
    for phase, (before, after) in zip(measured.phases, pairwise(evaluated), strict=True):
        assert (phase.before.step, phase.after.step, phase.steps) == (before, after, EPOCH)
        assert phase.after.loss != phase.before.loss
        assert phase.examples == CONVERSATIONS * TURNS
    assert all(name in event_text(measured) for name in (LENGTH, NEIGHBORS, ORDER))
    assert "evaluated at each switch" in read_page("Monitor the performance impact of each phase.")


def test_one_metric_covers_context_understanding_and_coherence(three_phases):
    """The loss of a turn alone minus its loss after the turn before it, of the same conversation."""
    logged = read_log(three_phases.place)["phases"]
    assert [phase["name"] for phase in logged] == [LENGTH, NEIGHBORS, ORDER]
    assert all(set(phase["after"]) == {"step", "loss", "perplexity", "context_gain"} for phase in logged)
    gains = [phase["after"]["context_gain"] for phase in logged]
    assert len(set(gains)) == 3 and None not in gains
    report = (three_phases.place.lora() / "report.html").read_text(encoding="utf-8")
    assert "<th>Context gain</th>" in report and all(f"{gain:.4f}" in report for gain in gains)
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


def test_the_examples_of_the_request_are_settings_that_are_accepted():
    """10 epochs, 20,000 steps, a loss range; in one stage or in two."""
    for values in (
        {"switch_after": "epochs", "switch_at": 10, "epochs": 20},
        {"switch_after": "steps", "switch_at": 20_000, "switch_pairs": True, "second_switch_at": 30_000},
        {"switch_after": "loss", "switch_pairs": True},
    ):
        made = settings(batching="length_then_order", **values).values()
        assert all(made[key] == value for key, value in values.items())
    assert set(SETTINGS["switch_after"].choices) == {"epochs", "steps", "loss"}
    defaults = {"switch_loss_low": 2.0, "switch_loss_high": 2.5}
    defaults |= {"second_switch_loss_low": 1.5, "second_switch_loss_high": 2.0}
    assert {key: SETTINGS[key].default for key in defaults} == defaults
