"""The novice's training guide on batch, epoch, learning rate and accumulation: what one step of a run does."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import EvaluationDone, Job, Step
from training_pro.engine.inference.eval_loop import EvalLoop
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training import trainer
from training_pro.records.report import judge_run
from training_pro.settings.parsing import training_settings
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.architectures import read_graph, read_log, record_batches
from training_pro.train_utils import StepPlan

SAMPLES = 16
PLAIN_SGD = {
    "method": "full", "optimizer": "sgd", "schedule": "constant", "warmup_steps": 0, "max_grad_norm": 0,
    "learning_rate": 0.01, "batch_size": SAMPLES,
}  # fmt: skip


def run_events(place, **more):
    job = Job("training", "a test")
    place.train(job=job, **more)
    return job.log.since(0)


def steps_of(place, **more):
    return [event for event in run_events(place, **more) if isinstance(event, Step)]


def changes(place, name, **more):
    """By how much each weight of the model changes in one run with plain gradient descent."""
    place.train(name=name, **{**PLAIN_SGD, "max_steps": 1, **more})
    before = load_file(place.tiny / "model.safetensors")
    after = load_file(place.folders.models / name / "model.safetensors")
    return torch.cat([(after[key].float() - before[key].float()).flatten() for key in sorted(before)])


def memory(place, **more):
    return PeftEngine().check(place.settings(**more), place.host()).memory.total


def verdict(losses):
    return judge_run([{"current_steps": n, "loss": x, "smoothed_loss": x} for n, x in enumerate(losses, 1)], {})


@pytest.mark.parametrize(
    ("batch_size", "batches"),
    [(SAMPLES, [16]), (1, [1] * 16), (6, [6, 6, 4]), (64, [16])],
    ids=["batch gradient descent", "stochastic", "mini-batch with a smaller final batch", "more than samples"],
)
def test_the_batch_size_is_the_number_of_samples_before_each_update(place, monkeypatch, batch_size, batches):
    records = record_batches(monkeypatch, trainer)
    steps = steps_of(place, batch_size=batch_size)
    assert [len(record) for record in records] == batches
    assert [step.step for step in steps] == list(range(1, len(batches) + 1))


def test_in_one_epoch_each_sample_is_used_once(place, monkeypatch):
    records = record_batches(monkeypatch, trainer)
    place.train(epochs=2, batch_size=4)
    numbers = [number for record in records for number in record]
    assert sorted(numbers[:SAMPLES]) == sorted(numbers[SAMPLES:]) == list(range(SAMPLES))
    assert numbers[:SAMPLES] != numbers[SAMPLES:], "each epoch has an order of its own"


def test_larger_batch_sizes_result_in_higher_memory_usage_and_accumulation_does_not(place):
    assert memory(place, batch_size=8) > memory(place, batch_size=2)
    assert memory(place, batch_size=2, accumulation=4) == memory(place, batch_size=2)


@pytest.mark.parametrize("size", [32, 64, 128])
def test_popular_batch_sizes(size):
    asked = training_settings({"name": "a", "data": ["a.txt"], "batch_size": size})
    assert StepPlan(examples=1000, batch_size=asked.steps.batch_size, accumulation=1, epochs=1).steps == -(
        -1000 // size
    )


def test_a_batch_size_of_32_from_8_samples_and_4_accumulation_steps():
    assert StepPlan(examples=1000, batch_size=8, accumulation=4, epochs=1).examples_per_step == 32


def test_the_evaluation_batch_is_no_part_of_the_memory_estimate(place):
    small, large = (memory(place, eval_share=0.2, eval_batch_size=size) for size in (1, 1024))
    assert small == large
    assert "split in halves" in read_page("evaluation batch in the memory estimate")


def test_an_evaluation_batch_that_takes_too_much_memory_is_split_in_halves(place, monkeypatch):
    add_part, sizes = EvalLoop._add_part, []

    def fits_two(self, sums, part):
        if len(part) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(part))
        add_part(self, sums, part)

    monkeypatch.setattr(EvalLoop, "_add_part", fits_two)
    events = run_events(place, eval_share=0.25, eval_batch_size=4, max_steps=1, recall_passages=0)
    assert any(isinstance(event, EvaluationDone) for event in events) and max(sizes) == 2


def test_the_number_of_epochs_ends_at_1000_and_the_number_of_steps_does_not(place):
    """The guide sets no limit: max_steps goes on from there."""
    with pytest.raises(SettingsError, match=r"Epochs: 1001 is out of range\. Allowed: 0\.01 to 1000\."):
        training_settings({"name": "a", "data": ["a.txt"], "epochs": 1001})
    report = PeftEngine().check(place.settings(max_steps=5000, batch_size=SAMPLES), place.host())
    assert report.problems == () and report.steps == 5000, "one step is one epoch"
    assert "Epochs ends at 1000" in read_page("an infinite number of epochs")


def test_a_smaller_learning_rate_requires_more_epochs(place):
    """high learning rate = less epochs: the same loss after fewer of them."""
    losses = {
        rate: [step.loss for step in steps_of(place, name=name, **{**PLAIN_SGD, "learning_rate": rate}, epochs=4)]
        for name, rate in (("slow", 0.002), ("fast", 0.01))
    }
    reached = min(losses[0.002])
    assert losses[0.002][-1] == reached and losses[0.01][1] < reached


def test_in_sgd_each_variable_changes_by_the_learning_rate_times_its_gradient(place):
    """V = V - (lr * grad): the gradient is the same, so twice the rate is twice the change."""
    once, twice = changes(place, "a"), changes(place, "b", learning_rate=0.02)
    assert once.norm() > 0
    assert (twice - 2 * once).norm() < 0.01 * twice.norm()


def test_a_step_along_the_gradient_lowers_the_loss(place):
    losses = [step.loss for step in steps_of(place, **PLAIN_SGD, epochs=3)]
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 3


@pytest.mark.parametrize("batch_size", [8, 4, 2])
def test_the_sum_of_the_accumulated_gradients_is_the_gradient_of_the_full_batch(place, batch_size):
    full = changes(place, "a")
    accumulated = changes(place, "b", batch_size=batch_size, accumulation=SAMPLES // batch_size)
    assert (accumulated - full).norm() < 1e-3 * full.norm()


def test_variables_are_updated_in_the_fifth_step_only(place, monkeypatch):
    records = record_batches(monkeypatch, trainer)
    steps = steps_of(place, batch_size=3, accumulation=5, max_steps=1)
    assert (len(records), len(steps)) == (5, 1)


@pytest.mark.parametrize("rate", [0, -1e-5, 1.0, "1", 1.5])
def test_the_learning_rate_is_between_0_and_1_and_not_these_values_themselves(rate):
    with pytest.raises(SettingsError, match="Learning Rate"):
        training_settings({"name": "a", "data": ["a.txt"], "learning_rate": rate})


def test_wild_fluctuations_of_the_loss_are_a_sign_of_a_too_high_rate():
    wild = verdict([4.0 if n % 2 else 0.9 for n in range(40)])
    assert "lower the learning rate" in wild.text
    assert "learning rate" not in verdict([3 - n / 40 for n in range(40)]).text


def test_a_too_small_rate_makes_no_noticeable_progress(place):
    place.train(learning_rate=1e-9, epochs=3, eval_share=0.2)
    verdict = read_log(place)["verdict"]
    assert verdict["kind"] == "did not learn" and "higher learning rate may help" in verdict["text"]


def test_a_run_stops_by_a_lack_of_change_in_model_error(place):
    events = run_events(place, early_stopping=2, eval_every=1, eval_share=0.2, learning_rate=1e-9, epochs=20)
    assert max(event.step for event in events if isinstance(event, Step)) < 10


def test_dual_learning_curves_of_the_loss_and_of_a_performance_metric(place):
    run_events(place, eval_share=0.2, eval_every=2, epochs=2)
    graph = read_graph(place)
    trained = [entry for entry in graph if "loss" in entry]
    evaluated = [entry for entry in graph if "eval_loss" in entry]
    assert len(trained) >= 6 and len(evaluated) >= 3
    assert all(0 <= entry["eval_accuracy"] <= 1 for entry in evaluated)
    assert [entry["epoch"] for entry in trained] == sorted(entry["epoch"] for entry in trained)


def test_an_evaluation_measures_data_that_were_not_trained_on(place, monkeypatch):
    records = record_batches(monkeypatch, trainer)
    events = run_events(place, eval_share=0.25)
    (first, *_) = [event for event in events if isinstance(event, EvaluationDone)]
    trained = {number for record in records for number in record}
    assert math.isfinite(first.loss) and first.tokens > 0
    assert len(trained) < SAMPLES
