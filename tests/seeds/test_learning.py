"""What the guides and notes say of one step: weight decay, optimizers, learning rates and checkpointing."""

from __future__ import annotations

import math
import re

import pytest
import torch
from training_pro.core.jobs import Step
from training_pro.engine.checks import optimizer_problems
from training_pro.schedulers import SCHEDULES
from training_pro.tests.coming_from import read_page
from training_pro.tests.seeds.conftest import checked, model_host, model_weights, rates, refusal
from training_pro.tests.tiny import watched_job
from transformers.trainer_utils import SchedulerType


@pytest.mark.long
def test_weight_decay_spares_biases_and_layer_norms(place):
    """In a GPT-2, whose layers and norms have biases."""
    host = model_host(place, "gpt2")
    plain = {"schedule": "constant", "warmup_steps": 0, "max_grad_norm": 0, "learning_rate": 0.01}
    without, decayed = (
        model_weights(place, name, host=host, **plain, batch_size=16, weight_decay=decay)
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


def test_cosine_annealing_with_eta_min_is_entered_as_points():
    """The points in the refusal are near the curve from 1 to 0.1."""
    said = refusal(schedule="cosine_with_min_lr")
    values = rates(said.partition("For a minimum above 0, enter points, such as ")[2].removesuffix("."))
    curve = [0.1 + 0.45 * (1 + math.cos(math.pi * step / 100)) for step in range(100)]
    assert max(abs(rate - wanted) for rate, wanted in zip(values, curve, strict=True)) < 0.04
    assert "cosine decays to 0 over the run" in read_page("cosine with a minimum rate and a cycle of T")


def test_every_scheduler_type_of_transformers_is_one_here_or_answered():
    answer = r"is called 'constant' in Training PRO|is not a valid value in Training PRO\. .*\bcosine\b"
    names = {kind.value for kind in SchedulerType} - SCHEDULES.keys()
    assert {name for name in names if not re.search(answer, refusal(schedule=name))} == set() != names


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
