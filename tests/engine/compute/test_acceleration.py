"""Attention, compiled and patched layers and workers: the results are the same, and the model is restored."""

from __future__ import annotations

import json
import shutil
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Note
from training_pro.engine.compute import (
    apply_machine_settings,
    count_workers,
    layer_patches,
    machine,
    patch_lora_layers,
    use_packed_attention,
)
from training_pro.engine.training import run
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import (
    CONFIGS,
    OTHERS,
    add_random_lora,
    loss_and_gradients,
    make_model,
    max_relative_error,
    packed_batch,
    padded_batch,
    random_examples,
    read_graph,
    supervised_loss,
)
from training_pro.tests.engine.watching import texts
from training_pro.tests.tiny import watched_job
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

WITH_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler wants one for C++")


def test_attention_changes_and_comes_back_after_an_error_too(place):
    model = place.host().loaded_model().model
    machine = place.settings(attention="eager").machine
    with pytest.raises(KeyError), apply_machine_settings(machine, model, Job("training", "a test")):
        assert attention_of(model) == "eager"
        raise KeyError
    assert attention_of(model) == attention_of(model.model) == "sdpa"


@pytest.mark.parametrize(
    ("cpu", "inside"),
    [
        ({"cpu_name": "AMD Ryzen 9 9950X 16-Core Processor", "avx512_f": True, "amx_tile": False}, "medium"),
        ({"cpu_name": "AMD Ryzen 7 5800X 8-Core Processor", "avx512_f": False, "amx_tile": False}, "highest"),
        ({"cpu_name": "Intel(R) Xeon(R) Platinum 8480+", "avx512_f": True, "amx_tile": True}, "highest"),
    ],
)
def test_onednn_multiplies_on_an_amd_cpu_and_float32_stays_float32(place, monkeypatch, cpu, inside):
    model, settings = place.host().loaded_model().model, place.settings().machine
    rows, weight = torch.randn(64, 576), torch.randn(1536, 576)
    exact = rows.double() @ weight.double().t()
    if torch.cpu._is_amx_tile_supported():
        pytest.skip("on this CPU, it would be bfloat16 inside")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu)
    with pytest.raises(KeyError), apply_machine_settings(settings, model, Job("training", "a test")):
        assert torch.get_float32_matmul_precision() == inside
        assert (rows @ weight.t() - exact).norm() < 1e-6 * exact.norm()
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["eager", pytest.param("inductor", marks=WITH_COMPILER)])
@pytest.mark.timeout(900)
def test_a_run_with_compiled_layers_has_the_same_losses_and_leaves_them_as_they_were(place, monkeypatch, compiler):
    """Although dynamo is disabled, as in the webui; `eager` runs the layers as they are."""
    disabled, compile_layer, job, host = [], torch.nn.Module.compile, Job("training", "a test"), place.host()

    def compiled(self, **options):
        disabled.append(torch._dynamo.config.disable)
        compile_layer(self, backend=compiler, **options)

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    seconds = iter([1e6, 0.0])
    monkeypatch.setattr(run, "time_batch", lambda *_: next(seconds))
    place.train(name="plain", max_steps=2)
    with torch._dynamo.config.patch(disable=True):
        place.train(host, name="compiled", compile=True, max_steps=2, job=job)
        assert torch._dynamo.config.disable is True
    assert disabled == [False] * 4, "two layers, in the test at the start and in the run"
    assert any("2 layers are compiled" in text for text in texts(job, Note))
    assert not any(layer._compiled_call_impl for layer in host.loaded_model().model.model.layers)
    losses = [[entry["loss"] for entry in read_graph(place, name)] for name in ("plain", "compiled")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_layers_are_not_compiled_where_the_run_would_not_save_time(place, monkeypatch):
    compile_layer, job, host = torch.nn.Module.compile, Job("training", "a test"), place.host()
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **_: compile_layer(self, backend="eager"))
    place.train(host, name="asked", compile=True, max_steps=2, job=job)
    assert any("they are not compiled, because that would not save time" in text for text in texts(job, Note))
    place.train(name="plain", max_steps=2)
    assert place.weights("asked") == place.weights("plain")


@pytest.mark.parametrize("changes", [False, True])
def test_liger_is_used_where_it_is_installed_and_agrees(place, monkeypatch, tmp_path, changes):
    """A stand-in: Liger needs a GPU."""
    (tmp_path / "liger_kernel-1.2.dist-info").mkdir()
    (tmp_path / "liger_kernel-1.2.dist-info" / "METADATA").write_text("Name: liger-kernel\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)

    def apply_liger_kernel(model, _):
        up = model.model.layers[0].mlp.up_proj
        up.forward = lambda rows: type(up).forward(up, rows) * (2 if changes else 1)

    fake = SimpleNamespace(apply_liger_kernel=apply_liger_kernel)
    monkeypatch.setitem(sys.modules, "transformers.integrations.liger", fake)
    monkeypatch.setattr(machine, "liger_problems", lambda device: ())
    model, job = place.host().loaded_model().model, Job("training", "a test")
    with apply_machine_settings(place.settings().machine, model, job):
        assert is_patched(model.model.layers[0].mlp.up_proj) != changes
        assert is_patched(model.model.layers[0].mlp) == changes, "else our own kernels"
    (note,) = (text for text in texts(job, Note) if "Liger" in text)
    assert note.startswith("Liger kernels (1.2) are not used" if changes else "Liger kernels (1.2) are used")
    assert not is_patched(model.model.layers[0].mlp.up_proj)
    if changes:
        with pytest.raises(SettingsError, match="change the logits"):
            apply_machine_settings(place.settings(liger=True).machine, model, job).__enter__()


def test_a_failing_compiler_is_logged_and_training_continues(place, monkeypatch):
    def failing(self, **_):
        raise RuntimeError("no C++ compiler")

    compile_layer, job = torch.nn.Module.compile, Job("training", "a test")
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **_: compile_layer(self, backend=failing))
    assert place.train(job=job, compile=True, max_steps=1).outcome == "finished"
    assert any(text.startswith("Compile: compiling the layers failed (") for text in texts(job, Note))


def test_a_batch_that_does_not_fit_while_compiling_is_tried_is_told_and_training_continues(place, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(run, "time_batch", fail)
    job = Job("training", "a test")
    assert place.train(job=job, compile=True, max_steps=1).outcome == "finished"
    assert "Compile: CUDA out of memory. The run continues without compiled layers." in texts(job, Note)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there are no workers")
def test_with_workers_a_run_learns_the_same_but_only_where_they_are_forked_in_our_own_process(place):
    """Also by dataset, which is known by its source: a worker sends no examples, since rows can't be sent."""
    rows = [{"instruction": f"What is {n}?", "output": f"It is {n}."} for n in range(12)]
    place.write("chats.json", json.dumps(rows))
    for name, count in (("none", 0), ("one", 1)):
        place.train(name=name, workers=count, max_steps=3, data=["story.txt", "chats.json"], cutoff=64)
    assert place.weights("none") == place.weights("one")
    assert [count_workers(2, lambda method=method: method) for method in ("fork", "spawn")] == [2, 0]
    host = place.host()
    host.owns_process = False
    with pytest.raises(SettingsError, match="inside the webui, Training PRO starts no worker processes"):
        place.train(host, workers=1)


def machine_settings(base, packing="off"):
    """The context in which a run trains; with packing, also its attention."""
    settings = training_settings({"name": "a", "data": ["x.txt"], "packing": packing})
    return apply_machine_settings(settings.machine, base, Job("training", "a test"))


def is_patched(module):
    return "forward" in vars(module)


def assert_same(actual, expected):
    assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert max_relative_error(actual["gradients"], expected["gradients"]) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("name", [*CONFIGS, *OTHERS])
@pytest.mark.parametrize("batch", [packed_batch, padded_batch], ids=["packed", "padded"])
def test_loss_and_gradients_are_the_models_own(name, batch):
    torch.manual_seed(5)  # with other seeds, rounding exceeds the bound in a few numbers
    base = make_model(name)
    model, rows = add_random_lora(base), random_examples(9, 17, 3, 12)
    expected = loss_and_gradients(model, lambda: supervised_loss(model, batch(rows)))
    with machine_settings(base, "auto"), patch_lora_layers(model):
        assert any("lora" in type(m).__module__ for m in model.modules() if is_patched(m))
        actual = loss_and_gradients(model, lambda: supervised_loss(model, batch(rows)))
    assert_same(actual, expected)


def test_what_a_pass_that_ran_out_of_memory_left_is_freed_with_the_next_one():
    model = add_random_lora(base := make_model("llama"))
    with machine_settings(base, "auto"), patch_lora_layers(model):
        rows = torch.randn(2, base.config.hidden_size, requires_grad=True)
        base.model.layers[0].self_attn.q_proj(rows)  # computes those of k and v, too, which nobody fetches
        left = weakref.ref(rows)
        del rows
        seen = []
        base.model.layers[0].register_forward_pre_hook(lambda *_: seen.append(left()))  # before its own
        assert left() is not None
        model(input_ids=torch.ones(1, 2, dtype=torch.long))
        assert seen == [None]


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


OURS = layer_patches.ATTENTION_NAME


def attention_of(model):
    return model.config._attn_implementation


def block(*lengths):
    return torch.block_diag(*[torch.ones(n, n).tril() for n in lengths]).bool()


def packed_mask(visible, **more):
    """What `packed_mask` makes of a row in which these tokens see each other."""
    options = {"batch_size": 1, "q_length": len(visible), "kv_length": len(visible), "allow_is_causal_skip": False}
    options["mask_function"] = lambda batch, head, query, key: visible[query, key]
    return layer_patches.packed_mask(**{**options, **more})


def test_a_mask_is_read_as_the_bounds_of_its_texts_but_never_in_memory_as_a_whole(monkeypatch):
    """A packed row of 16,000 tokens took 2.4 GB."""
    assert packed_mask(block(3, 1, 2)).tolist() == [0, 3, 4, 6]
    assert packed_mask(block(5), allow_is_causal_skip=True) is None
    sizes, own = [], layer_patches.sdpa_mask
    watched = lambda *args, **more: sizes.append((mask := own(*args, **more)).numel()) or mask  # noqa: E731
    monkeypatch.setattr(layer_patches, "sdpa_mask", watched)
    assert packed_mask(block(2000, 1000)).tolist() == [0, 2000, 3000]
    assert max(sizes) == layer_patches.ROWS_AT_ONCE * 3000


def test_a_mask_with_a_window_padding_or_joined_texts_is_left_as_it_is():
    for query, key, seen in ((1203, 0, False), (slice(None), 0, False), (2005, 1, True)):
        visible = block(1600, 1200)
        visible[query, key] = seen
        assert torch.equal(packed_mask(visible)[0, 0], visible)


@pytest.mark.parametrize("works", [True, False])
def test_a_kernel_for_all_texts_is_used_once_a_layer_if_its_results_agree(monkeypatch, works):
    """Both kernels run on a GPU only; this one computes the same on the CPU."""
    base, calls = make_model("llama"), []

    def kernel(query, key, value, bounds, longest, scale):
        calls.append((bounds.dtype, longest, query.shape[0]))
        states = [states.transpose(0, 1)[None].split(bounds.diff().tolist(), 2) for states in (query, key, value)]
        texts = [
            torch.nn.functional.scaled_dot_product_attention(*text, is_causal=works, scale=scale, enable_gqa=True)
            for text in zip(*states, strict=True)
        ]
        return torch.cat(texts, 2)[0].transpose(0, 1)

    monkeypatch.setattr(layer_patches, "one_call_kernels", lambda device: [kernel])
    batch = packed_batch(random_examples(9, 17, 3))
    expected = float(supervised_loss(base, batch))
    with use_packed_attention(base) as is_used:
        assert is_used
        calls.clear()
        inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
        base(**inputs, use_cache=False)
        assert calls == ([(torch.int32, 17, 29)] * 2 if works else [])
        assert float(supervised_loss(base, batch)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("works", [True, False])
def test_the_attention_of_a_model_is_switched_if_the_results_agree_and_restored(works):
    base = make_model("llama")
    if not works:
        base.model.norm.register_forward_hook(lambda _, given, out: out * (1 + (attention_of(base) == OURS)))
    with use_packed_attention(base) as is_used:
        assert (is_used, attention_of(base)) == (works, OURS if works else "sdpa")
    assert attention_of(base) == "sdpa"


@pytest.mark.long
@pytest.mark.parametrize("packing", ["on", "off"])
def test_a_packed_run_uses_it_and_the_patches_of_layers_and_restores_the_model(place, packing):
    host, seen = place.host(), set()
    model = host.loaded_model().model
    mlp = model.model.layers[0].mlp
    look = lambda *_: seen.update({attention_of(model), "forward" in vars(mlp)})  # noqa: E731
    place.train(host, job=watched_job(look), max_steps=2, packing=packing)
    assert (OURS in seen, True in seen) == (packing == "on", True)
    assert (attention_of(model), "forward" in vars(mlp)) == ("sdpa", False)
