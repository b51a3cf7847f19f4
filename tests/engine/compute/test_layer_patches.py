"""Patched layers compute the same as the originals, are used only where they do, and are removed afterwards."""

from __future__ import annotations

import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from training_pro.core.jobs import Job
from training_pro.engine.compute import apply_machine_settings, patch_lora_layers
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import (
    CONFIGS,
    OTHERS,
    add_random_lora,
    loss_and_gradients,
    make_model,
    max_relative_error,
    random_examples,
    supervised_loss,
)
from training_pro.tests.engine.batches import packed_batch, padded_batch
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

GATED = {"llama", "mistral", "qwen2", "qwen3"}
ROTARY = GATED | {"gemma2", "gemma3", "phi3", "gpt_neox"}


def machine_settings(base, packing="off"):
    """The context in which a run trains; with packing, also its attention."""
    settings = training_settings({"name": "a", "data": ["x.txt"], "packing": packing})
    return apply_machine_settings(settings.machine, base, Job("training", "a test"))


def is_patched(module):
    return "forward" in vars(module)


def assert_same(actual, expected, most=1e-5):
    assert actual["loss"] == pytest.approx(expected["loss"], rel=most)
    assert max_relative_error(actual["gradients"], expected["gradients"]) < most


@pytest.mark.parametrize("name", [*CONFIGS, *OTHERS])
@pytest.mark.parametrize("batch", [packed_batch, padded_batch], ids=["packed", "padded"])
def test_loss_and_gradients_are_the_models_own(name, batch):
    torch.manual_seed(5)  # with other seeds, rounding exceeds the bound in a few numbers
    base = make_model(name)
    model, rows = add_random_lora(base), random_examples(9, 17, 3, 12)
    expected = loss_and_gradients(model, lambda: supervised_loss(model, batch(rows)))
    with machine_settings(base, "auto"):
        patch_lora_layers(model)
        assert any("lora" in type(m).__module__ for m in model.modules() if is_patched(m))
        actual = loss_and_gradients(model, lambda: supervised_loss(model, batch(rows)))
    assert_same(actual, expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_only_known_modules_are_patched_and_restored(name):
    base = make_model(name)
    source = vars(sys.modules[type(base).__module__])
    rotary = source.get("apply_rotary_pos_emb")
    with machine_settings(base):
        kinds = {type(m).__name__ for m in base.modules() if is_patched(m)}
        assert (source.get("apply_rotary_pos_emb") is not rotary) == (name in ROTARY)
    assert any(kind.endswith("MLP") for kind in kinds) == (name in GATED)
    assert any(kind.endswith("RMSNorm") for kind in kinds) == (name in GATED | {"phi3"})
    assert not any(map(is_patched, base.modules()))
    assert source.get("apply_rotary_pos_emb") is rotary


def test_modules_that_compute_something_else_or_cannot_be_tested_are_not_patched(monkeypatch):
    base = make_model("llama")
    first, second = base.model.layers
    norm_forward = type(base.model.norm).forward
    doubling = {"forward": lambda self, x: 2 * norm_forward(self, x)}
    failing = {"forward": lambda self, x: self.only_on_a_card}
    first.mlp.act_fn = torch.nn.GELU()
    for norm, forward in ((first.input_layernorm, doubling), (second.input_layernorm, failing)):
        norm.__class__ = type("OtherRMSNorm", (type(norm),), forward)
    source = sys.modules[type(base).__module__]
    other_rotary = lambda q, k, cos, sin: (q, k)  # noqa: E731
    monkeypatch.setattr(source, "apply_rotary_pos_emb", other_rotary)
    with machine_settings(base):
        assert source.apply_rotary_pos_emb is other_rotary
        assert not any(map(is_patched, (first.mlp, first.input_layernorm, second.input_layernorm)))
        assert all(map(is_patched, (second.mlp, first.post_attention_layernorm)))


@pytest.mark.parametrize("variant", [{}, {"use_rslora": True}, {"use_dora": True}, {"lora_bias": True}])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_every_kind_of_lora_gives_what_pefts_own_gives(dtype, most, variant):
    base = torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.Linear(10, 6)).to(dtype)
    options = {"r": 3, "lora_alpha": 5, "target_modules": ["0", "1"], "init_lora_weights": False}
    model = get_peft_model(base, LoraConfig(**options, **variant))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    inputs = torch.randn(2, 4, 12, generator=torch.Generator().manual_seed(2)).to(dtype)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            return model(inputs).float().square().sum()

    with model.disable_adapter():
        without = model(inputs)
    expected = loss_and_gradients(model, step)
    patch_lora_layers(model)
    actual = loss_and_gradients(model, step)
    assert_same(actual, expected, most)
    assert {gradient.dtype for gradient in actual["gradients"].values()} == {torch.float32}
    with model.disable_adapter():
        assert torch.equal(model(inputs), without)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_is_the_same(checkpointing):
    base = make_model("llama")
    model, batch = add_random_lora(base, lora_dropout=0.3).train(), packed_batch(random_examples(9, 17, 3, 12))
    if checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.enable_input_require_grads()

    def drawn(seed):
        torch.manual_seed(seed)
        return loss_and_gradients(model, lambda: supervised_loss(model, batch))

    expected, other = drawn(1), drawn(2)
    with machine_settings(base):
        patch_lora_layers(model)
        assert_same(drawn(1), expected)
    assert max_relative_error(other["gradients"], expected["gradients"]) > 1e-2


@pytest.mark.parametrize("norm_class", [LlamaRMSNorm, Olmo2RMSNorm])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_in_half_precision_rounds_as_the_original(dtype, norm_class):
    """The one before it multiplies by the weight, the other after it."""
    base = make_model("llama").to(dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    base.model.norm = norm = norm_class(32).to(dtype).requires_grad_(False)
    norm.weight.data = torch.rand(32, generator=generator).to(dtype)
    rows, upstream = (torch.randn(50, 32, generator=generator).to(dtype) for _ in range(2))

    def output_and_gradient():
        inputs = rows.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            output = norm(inputs)
        output.backward(upstream)
        return output, inputs.grad.float()

    expected, expected_gradient = output_and_gradient()
    with machine_settings(base):
        assert is_patched(norm)
        output, gradient = output_and_gradient()
    assert output.dtype == dtype
    assert torch.equal(output, expected)
    assert (gradient - expected_gradient).norm() < 5e-3 * expected_gradient.norm()
