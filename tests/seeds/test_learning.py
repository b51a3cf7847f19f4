"""What the guides and notes say of one step: batches, gradients, optimizers, decay and learning rates, in runs."""

from __future__ import annotations

import math
import re

import pytest
import torch
from training_pro.core.jobs import Step
from training_pro.engine.checks import optimizer_problems
from training_pro.schedulers import SCHEDULES
from training_pro.tests.coming_from import read_page, read_section
from training_pro.tests.seeds.conftest import (
    checked,
    model_host,
    model_weights,
    rates,
    refusal,
    settings,
    steps_of,
    write_rows,
)
from training_pro.tests.tiny import watched_job
from transformers.trainer_utils import SchedulerType

SAMPLES = 16
PLAIN = {
    "method": "full", "schedule": "constant", "warmup_steps": 0, "max_grad_norm": 0, "learning_rate": 0.01,
    "batch_size": SAMPLES,
}  # fmt: skip


def cosine(share):
    return 0.5 * (1 + math.cos(share * math.pi))


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "sizes", "steps"),
    [
        ({"batch_size": SAMPLES}, [16], 1),
        ({"batch_size": 1}, [1] * 16, 16),
        ({"batch_size": 6}, [6, 6, 4], 3),
        ({"batch_size": 64}, [16], 1),
        ({"batch_size": 3, "accumulation": 5, "max_steps": 1}, [3] * 5, 1),
    ],
    ids=["batch gradient descent", "stochastic", "smaller final batch", "more than samples", "accumulated"],
)
def test_the_batch_size_is_the_number_of_samples_before_each_update(place, batches, more, sizes, steps):
    assert len(steps_of(place, **more)) == steps
    assert [len(batch) for batch in batches] == sizes


@pytest.mark.long
@pytest.mark.parametrize(("order", "shuffled"), [("shuffled", True), ("sequential", False)])
def test_in_one_epoch_each_sample_is_used_once_and_shuffled_if_you_enable_it(place, batches, order, shuffled):
    place.train(epochs=2, batching=order)
    numbers = [number for batch in batches for number in batch]
    assert sorted(numbers[:SAMPLES]) == sorted(numbers[SAMPLES:]) == list(range(SAMPLES))
    assert (numbers[:SAMPLES] != numbers[SAMPLES:]) == (numbers[:SAMPLES] != list(range(SAMPLES))) == shuffled


@pytest.mark.long
def test_group_by_length_groups_samples_of_roughly_the_same_length(place, batches):
    asked, spreads = write_rows(place, *[{"text": "one " * (1 + 7 * n % 20)} for n in range(24)]), []
    for order in ("shuffled", "by_length"):
        batches.clear()
        place.train(name=order, batching=order, **asked)
        spreads.append(sum(max(batch.lengths) - min(batch.lengths) for batch in batches))
    assert spreads[1] < spreads[0] / 2


@pytest.mark.long
def test_weight_decay_spares_biases_and_layer_norms(place):
    """In a GPT-2, whose layers and norms have biases."""
    host = model_host(place, "gpt2")
    without, decayed = (
        model_weights(place, name, host=host, **PLAIN, weight_decay=decay)
        for name, decay in (("a", 0.0), ("b", 0.5))
    )
    spared = {name for name, weight in without.items() if weight.equal(decayed[name])}
    assert spared == {name for name in without if name.endswith(".bias") or ".ln_" in name}
    assert sum(name.endswith("c_attn.bias") for name in spared) == 2


@pytest.mark.parametrize(
    ("optimizer", "device", "reason"),
    [
        ("adamw_hf", "cuda", "Optimizer: "), ("adamw_apex_fused", "cuda", "Optimizer: "),
        ("adamw_anyprecision", "cuda", "Optimizer: "), ("paged_adamw_32bit", "cpu", "needs a GPU"),
        ("paged_adamw_8bit", "cpu", "needs a GPU"), ("adamw_torch_xla", "cpu", "it is for TPUs"),
    ],
)  # fmt: skip
def test_optimizers_that_are_gone_or_need_what_is_not_here_are_refused(optimizer, device, reason):
    (problem,) = optimizer_problems(optimizer, device)
    assert reason in problem.text
    assert read_page("TPUs") == "Training PRO trains on CPUs and GPUs."


def test_paged_optimizers_run_on_a_gpu_and_save_memory(place):
    pytest.importorskip("bitsandbytes")
    for name in ("paged_adamw_32bit", "paged_adamw_8bit"):
        assert list(optimizer_problems(name, "cuda")) == []
        assert checked(place, optimizer=name).memory.optimizer == 0, "the states can be in RAM"
    assert checked(place, optimizer="adamw_torch").memory.optimizer > 0


def test_each_value_of_the_guide_and_the_notes_is_allowed():
    for rate in (0, -1e-5, 1.0, "1", 1.5):
        assert "Learning Rate" in refusal(learning_rate=rate)
    for decay in (1e-2, 1e-4, 1e-5, 1e-6):
        assert settings(weight_decay=decay).learning.weight_decay == decay
    for norm in (0.3, 1.0, 5.0, 10.0):
        assert settings(max_grad_norm=norm).learning.max_grad_norm == norm


@pytest.mark.parametrize(("gamma", "every"), [(0.1, 2), (0.5, 3)])
def test_step_decay_by_gamma_every_n_epochs_is_entered_as_points(gamma, every):
    levels = range(-(-10 // every))
    points = " ".join(f"{n * every}e:{gamma**n:g} {(n + 1) * every}e:{gamma**n:g}" for n in levels)
    values = rates(settings(schedule=points).learning.schedule)
    assert values == pytest.approx([gamma ** (step // 10 // every) for step in range(100)])
    assert "enter points: 0:1 2e:1 2e:0.1" in read_page("step decay with gamma and N")
    assert "k = 3 over the whole run" in read_page("exponential decay with k")


def test_cosine_annealing_with_eta_min_is_entered_as_points():
    """The points in the refusal are near the curve from 1 to 0.1."""
    said = refusal(schedule="cosine_with_min_lr")
    values = rates(said.partition("For a minimum above 0, enter points, such as ")[2].removesuffix("."))
    assert max(abs(rate - 0.1 - 0.9 * cosine(step / 100)) for step, rate in enumerate(values)) < 0.04
    assert "cosine decays to 0 over the run" in read_page("cosine with a minimum rate and a cycle of T")


@pytest.mark.parametrize("name", [kind.value for kind in SchedulerType if kind.value not in SCHEDULES])
def test_every_scheduler_type_of_transformers_is_one_here_or_answered(name):
    answer = r"is called 'constant' in Training PRO|is not a valid value in Training PRO\. .*\bcosine\b"
    assert re.search(answer, refusal(schedule=name))
    assert f"| `schedule` | `{name}` |" in read_section("Values that are different in Training PRO")


@pytest.mark.long
def test_max_steps_overrides_the_epochs_and_a_part_of_the_last_epoch_is_trained(place):
    last = steps_of(place, epochs=1, max_steps=9)[-1]
    assert (last.step, last.epoch) == (9, 2.25)
    assert len(steps_of(place, name="b", epochs=1.5)) == 6


# half recomputes every second layer, and the first is not one of them
@pytest.mark.parametrize(("value", "passes"), [("on", 2), ("half", 1), ("offload", 2), ("off", 1)])
def test_gradient_checkpointing_is_slower_by_a_second_forward_pass_and_never_reentrant(place, value, passes):
    host, forward, kinds = place.host(), [], []
    model = host.loaded_model().model

    def watch(job, event):
        if isinstance(event, Step):
            found = [getattr(module, "_gradient_checkpointing_func", None) for module in model.modules()]
            kinds.extend(function.keywords["use_reentrant"] for function in found if function)

    hook = model.model.layers[0].mlp.register_forward_pre_hook(
        lambda *_: forward.append(1) if torch.is_grad_enabled() else None
    )
    place.train(host, job=watched_job(watch), gradient_checkpointing=value, max_steps=1)
    hook.remove()
    assert len(forward) == passes and set(kinds) <= {False} and bool(kinds) == (value != "off")
    assert not model.is_gradient_checkpointing, "the model is given back as it was"
    place.train(name="plain", max_steps=1)
    assert place.weights("plain") == place.weights()
