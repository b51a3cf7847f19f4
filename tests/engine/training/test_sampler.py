"""Examples of each step, for each kind of batching, also after a resume."""

from __future__ import annotations

import pytest
from training_pro.engine.training import trainer
from training_pro.tests.engine.architectures import record_batches, simulate_kill


@pytest.fixture
def steps(monkeypatch):
    return record_batches(monkeypatch, trainer)


def test_sequential_is_the_order_of_the_data(place, steps):
    place.train(batching="sequential", batch_size=3, epochs=2)
    count = sum(map(len, steps)) // 2
    flat = [n for step in steps for n in step]
    assert flat == list(range(count)) * 2


@pytest.mark.parametrize("batching", ["shuffled", "by_length"])
def test_every_example_once_an_epoch_in_another_order_each(place, steps, batching):
    place.train(batching=batching, batch_size=3, accumulation=2, epochs=2)
    flat = [n for step in steps for n in step]
    first, second = flat[: len(flat) // 2], flat[len(flat) // 2 :]
    assert sorted(first) == sorted(second) == list(range(len(first)))
    assert first != second


@pytest.mark.parametrize("batching", ["shuffled", "by_length", "sequential"])
def test_a_resumed_run_sees_the_same_and_ends_with_the_same_bytes(place, steps, batching):
    options = {"batching": batching, "batch_size": 3, "accumulation": 2, "epochs": 2, "save_every": 1}
    options["keep_checkpoints"] = 99  # keep all to resume from
    place.train(name="whole", **options)
    whole = list(steps)
    place.train(name="cut", **options)
    for start in (5, 3, 1):
        simulate_kill(place, "cut", start)
        steps.clear()
        place.train(name="cut", **options, resume="newest")
        assert steps == whole[start * 2 :]
        assert place.weights("cut") == place.weights("whole")


def test_by_length_the_longest_comes_first(place, steps):
    place.train(batching="by_length", batch_size=2)
    lengths = [max(step.lengths) for step in steps]
    assert lengths[0] == max(lengths)
