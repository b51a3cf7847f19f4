"""Patched layers compute the same as the originals, are used only where they do, and are removed afterwards."""

from __future__ import annotations

import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch.autograd import gradcheck
from training_pro.engine.compute import fused_ops, layer_patches
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
from training_pro.tests.tiny import watched_job
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

GATED = {"llama", "mistral", "qwen2", "qwen3"}
ROTARY = GATED | {"gemma2", "gemma3", "phi3", "gpt_neox"}


def patched_loras(model):
    return [m for m in model.modules() if isinstance(m, LoraLayer) and "forward" in vars(m)]


@pytest.mark.parametrize("name", [*CONFIGS, *OTHERS])
@pytest.mark.parametrize("batch", [packed_batch, padded_batch], ids=["packed", "padded"])
def test_loss_and_gradients_are_the_models_own(name, batch):
    torch.manual_seed(5)  # with other seeds, rounding exceeds the bound in a few numbers
    base = make_model(name)
    model, rows = add_random_lora(base), random_examples(9, 17, 3, 12)
    expected = loss_and_gradients(model, lambda: supervised_loss(model, batch(rows)))
    with layer_patches.patch_base_layers(base):
        layer_patches.patch_lora_layers(model)
        assert patched_loras(model)
        actual = loss_and_gradients(model, lambda: supervised_loss(model, batch(rows)))
    assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert max_relative_error(actual["gradients"], expected["gradients"]) < 1e-5


def patched(base):
    """Classes of the patched modules, and whether the rotary embedding is patched."""
    with layer_patches.patch_base_layers(base):
        source = vars(sys.modules[type(base).__module__])
        classes = {type(m).__name__ for m in base.modules() if "forward" in vars(m)}
        return classes, isinstance(source.get(layer_patches.ROTARY_FUNCTION), layer_patches.partial)


@pytest.mark.parametrize("name", CONFIGS)
def test_only_known_modules_are_patched(name):
    base = make_model(name)
    kinds, turned = patched(base)
    assert any(kind.endswith("MLP") for kind in kinds) == (name in GATED)
    assert any(kind.endswith("RMSNorm") for kind in kinds) == (name in GATED | {"phi3"})
    assert turned == (name in ROTARY)
    assert not any("forward" in vars(m) for m in base.modules())
    assert patched(base) == (kinds, turned)  # the model's source is restored


def test_modules_that_compute_something_else_are_not_patched():
    base = make_model("llama")
    layer = base.model.layers[0]
    layer.mlp.act_fn = torch.nn.GELU()
    type_of_norm = type(layer.input_layernorm)
    doubling = type(
        "DoublingRMSNorm", (type_of_norm,), {"forward": lambda self, x: 2 * type_of_norm.forward(self, x)}
    )
    layer.input_layernorm.__class__ = doubling
    assert not layer_patches.is_gated_mlp(layer.mlp)
    assert not layer_patches.is_rms_norm(layer.input_layernorm)
    assert layer_patches.is_gated_mlp(base.model.layers[1].mlp)
    assert layer_patches.is_rms_norm(layer.post_attention_layernorm)
    assert not layer_patches.is_rotary_embedding(lambda q, k, cos, sin: (q, k))


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def test_gradients_match_finite_differences():
    assert gradcheck(fused_ops.SiluMul.apply, (doubles(3, 5), doubles(2, 3, 5)[0]))
    assert gradcheck(fused_ops.RMSNorm.apply, (doubles(2, 3, 6), doubles(6).detach(), 1e-3))
    cosine, sine = doubles(1, 1, 3, 8).detach(), doubles(2, 1, 3, 8)[1:].detach()
    assert gradcheck(fused_ops.RotaryEmbedding.apply, (doubles(1, 2, 3, 8), cosine, sine))
    parts = (doubles(3, 4), doubles(3, 5), doubles(2, 5), doubles(4, 2))
    assert gradcheck(fused_ops.AddLora.apply, (*parts, 1.5))


@pytest.mark.parametrize("variant", [{}, {"use_rslora": True}, {"use_dora": True}, {"lora_bias": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kind_of_lora_gives_what_pefts_own_gives(dtype, variant):
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
    layer_patches.patch_lora_layers(model)
    actual = loss_and_gradients(model, step)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert actual["loss"] == pytest.approx(expected["loss"], rel=tolerance)
    assert max_relative_error(actual["gradients"], expected["gradients"]) < tolerance
    assert {gradient.dtype for gradient in actual["gradients"].values()} == {torch.float32}
    with model.disable_adapter():
        assert torch.equal(model(inputs), without)


def test_a_run_uses_the_patches_and_restores_the_model(place):
    host, seen = place.host(), []
    model = host.loaded_model().model
    gate = next(m for m in model.modules() if layer_patches.is_gated_mlp(m))

    def watch(job, event):
        seen.append("forward" in vars(gate))

    place.train(host, job=watched_job(watch), max_steps=2)
    assert any(seen)
    assert "forward" not in vars(gate)


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
    with layer_patches.patch_base_layers(base):
        layer_patches.patch_lora_layers(model)
        actual = drawn(1)
    assert max_relative_error(actual["gradients"], expected["gradients"]) < 1e-5
    assert max_relative_error(other["gradients"], expected["gradients"]) > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_in_half_precision_rounds_as_the_original(monkeypatch, dtype):
    base = make_model("llama").to(dtype).requires_grad_(False)
    norm = next(m for m in base.modules() if layer_patches.is_rms_norm(m))
    assert layer_patches.rounds_before_weight(norm)
    norm.weight.data = torch.rand(32, generator=torch.Generator().manual_seed(3)).to(dtype)
    rows = torch.randn(50, 32, generator=torch.Generator().manual_seed(4)).to(dtype)
    upstream = torch.randn(50, 32, generator=torch.Generator().manual_seed(5)).to(dtype)

    def output_and_gradient():
        inputs = rows.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            output = norm(inputs)
        output.backward(upstream)
        return output, inputs.grad.float()

    expected, expected_gradient = output_and_gradient()
    calls = []
    monkeypatch.setattr(
        layer_patches, "half_rms_norm", lambda *parts: calls.append(parts) or fused_ops.half_rms_norm(*parts)
    )
    with layer_patches.patch_base_layers(base):
        calls.clear()  # those of the test before a patch
        output, gradient = output_and_gradient()
    assert len(calls) == 1
    assert output.dtype == dtype
    assert torch.equal(output, expected)
    assert (gradient - expected_gradient).norm() < 5e-3 * expected_gradient.norm()


def test_a_norm_that_rounds_after_the_weight_keeps_its_own_forward_in_half_precision():
    base = make_model("llama").to(torch.bfloat16).requires_grad_(False)
    base.model.norm = Olmo2RMSNorm(32).to(torch.bfloat16).requires_grad_(False)
    assert layer_patches.is_rms_norm(base.model.norm)
    with layer_patches.patch_base_layers(base):
        assert base.model.norm.forward.func is layer_patches._rms_norm_forward
        assert base.model.layers[0].input_layernorm.forward.func is layer_patches._half_rms_norm_forward
        rows = torch.randn(2, 32, dtype=torch.bfloat16)
        assert torch.equal(base.model.norm(rows), Olmo2RMSNorm.forward(base.model.norm, rows))


def test_a_norm_with_more_arguments_runs_the_original():
    norm = next(m for m in make_model("llama").requires_grad_(False).modules() if layer_patches.is_rms_norm(m))
    original = lambda x, gate=None: x if gate is None else x * gate  # noqa: E731
    inputs = torch.randn(2, 32)
    assert torch.equal(layer_patches._rms_norm_forward(norm, original, inputs, 2 * inputs), inputs * 2 * inputs)
    assert torch.equal(layer_patches._rms_norm_forward(norm, original, inputs, gate=inputs), inputs * inputs)
    assert not torch.equal(layer_patches._rms_norm_forward(norm, original, inputs), inputs)


def test_state_that_a_model_computes_meanwhile_is_kept():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = {"max_position_embeddings": 16, "rope_parameters": rope}
    long_ids = torch.randint(3, 150, (1, 30), generator=torch.Generator().manual_seed(1))

    def logits(model, ids):
        with torch.no_grad():
            return model(input_ids=ids, use_cache=False).logits

    fresh, used = make_model("llama", **config), make_model("llama", **config)
    logits(used, long_ids.repeat(1, 2))
    with layer_patches.patch_base_layers(used):
        logits(used, long_ids[:, :10])
    assert torch.equal(logits(used, long_ids), logits(fresh, long_ids))


def test_a_layer_that_cannot_be_tested_is_not_patched():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, x):
            raise AssertionError("only on a card")

    assert not layer_patches.is_rms_norm(Odd())
