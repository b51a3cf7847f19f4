"""Machine settings of a run, and that they are restored afterwards."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch
from training_pro.core.errors import SettingsError
from training_pro.engine.checks import run_checks
from training_pro.engine.compute import acceleration
from training_pro.engine.lora import dtypes, state_guards
from training_pro.tests.engine.architectures import read_graph
from training_pro.tests.tiny import watched_job


class Libc:
    def __init__(self):
        self.calls = []

    def mallopt(self, what, value):
        self.calls.append((what, value))

    def malloc_trim(self, rest):
        self.calls.append("trim")


def test_memory_is_kept_on_the_cpu_and_returned_also_after_an_error(monkeypatch):
    libc = Libc()
    monkeypatch.setattr(acceleration, "_glibc", lambda: libc)
    with pytest.raises(KeyError), acceleration.keep_freed_memory("cpu"):
        assert libc.calls == [(-3, 32 * 2**20), (-1, 2**31 - 1)]
        raise KeyError
    assert libc.calls[2:] == [(-1, 64 * 2**20), "trim"]


def test_on_a_gpu_the_allocator_is_not_changed(monkeypatch):
    libc = Libc()
    monkeypatch.setattr(acceleration, "_glibc", lambda: libc)
    with acceleration.keep_freed_memory("cuda"):
        pass
    assert not libc.calls


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_the_real_glibc_accepts_the_settings():
    with acceleration.keep_freed_memory("cpu"):
        pass


@pytest.fixture
def model(place):
    return place.host().loaded_model().model


def test_attention_changes_and_comes_back(place):
    host, seen = place.host(), []
    model = host.loaded_model().model
    before = model.config._attn_implementation
    assert before == "sdpa"
    job = watched_job(lambda job, event: seen.append(model.config._attn_implementation))
    place.train(host, job=job, attention="eager", max_steps=1)
    assert "eager" in seen
    assert model.config._attn_implementation == model.model.config._attn_implementation == before


def test_attention_comes_back_after_an_error_too(model):
    with pytest.raises(KeyError), acceleration.use_attention("eager", model):
        raise KeyError
    assert model.config._attn_implementation == "sdpa"


def test_flash_attention_is_refused_with_its_requirements(place, monkeypatch):
    with pytest.raises(SettingsError, match=r"flash_attention_2 needs an NVIDIA GPU\. Choose auto"):
        place.train(attention="flash_attention_2")
    monkeypatch.setattr(run_checks, "find_spec", lambda name: None)
    (problem,) = run_checks.attention_problems("flash_attention_2", "cuda", "")
    assert "pip install flash-attn" in problem.text


@pytest.mark.parametrize("on", [True, False])
def test_tf32_is_put_back(on):
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with acceleration.use_tf32(on):
        assert matmul.allow_tf32 is on
    assert matmul.allow_tf32 is before


@pytest.fixture
def flags():
    """All TF32 flags, old and new, restored after the test."""
    flags = list(acceleration._tf32_flags())
    yield flags
    for backend, name, value in flags:
        setattr(backend, name, value)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("new_flag", ["", "tf32", "ieee"])
def test_tf32_set_by_the_new_flags_is_restored(on, new_flag, flags):
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has no newer names")
    if new_flag:
        matmul.fp32_precision = new_flag
    before = list(acceleration._tf32_flags())
    assert (len(before) < len(flags)) is (new_flag == "tf32")
    with acceleration.use_tf32(on):
        assert dtypes.is_tf32_enabled() is on
    after = list(acceleration._tf32_flags())
    assert [flag for flag in before if flag not in after] == []
    assert dtypes.is_tf32_enabled() is (new_flag == "tf32")


def test_liger_is_refused_with_its_requirements(place, monkeypatch):
    with pytest.raises(SettingsError, match=r"Liger kernels: .*(pip install liger-kernel|GPU)"):
        place.train(liger=True)
    monkeypatch.setattr(run_checks, "find_spec", lambda name: object())
    with pytest.raises(SettingsError, match="kernels need a GPU"):
        place.train(liger=True)


def test_methods_replaced_by_kernels_are_restored(model):
    """Patched as by Liger: methods of modules, attributes, classes, and functions of the model's source file."""
    source = sys.modules[type(model).__module__]
    norm, rope = model.model.norm, source.apply_rotary_pos_emb
    norm_class, attributes = type(norm), set(vars(norm))
    other_class = type("OtherNorm", (norm_class,), {})
    with state_guards.restore_methods(model):
        norm.forward, norm.offset = (lambda hidden: hidden), 1.0
        norm.__class__ = other_class
        source.apply_rotary_pos_emb = source.LlamaMLP = None
    assert (type(norm), set(vars(norm))) == (norm_class, attributes)
    assert source.apply_rotary_pos_emb is rope
    assert source.LlamaMLP is not None


def test_compiled_layers_are_tested_in_the_dtype_of_training(model):
    """In another dtype they would be compiled twice, and errors would show only at the first step."""
    seen = []
    model.to(torch.bfloat16).requires_grad_(True)
    model.model.layers[0].register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    acceleration._run_one_step(model)
    assert seen == [True]
    assert all(weights.grad is None for weights in model.parameters())


def test_layers_are_compiled_although_the_webui_disables_dynamo(place, monkeypatch):
    """With a compiler that only counts the layers."""
    import torch._dynamo

    compiled, texts = [], []
    compile_layer = torch.nn.Module.compile

    def counted(self, **kwargs):
        compiled.append(torch._dynamo.config.disable)
        compile_layer(self, backend="eager", **kwargs)

    monkeypatch.setattr(torch.nn.Module, "compile", counted)
    host = place.host()
    model = host.loaded_model().model
    with torch._dynamo.config.patch(disable=True):
        place.train(name="plain", max_steps=2)
        place.train(
            host,
            job=watched_job(lambda job, event: texts.append(getattr(event, "text", ""))),
            compile=True,
            max_steps=2,
        )
        assert torch._dynamo.config.disable is True
    assert compiled == [False, False]
    assert any("2 layers are compiled" in text for text in texts)
    assert all(layer._compiled_call_impl is None for layer in model.model.layers)
    losses = [[e["loss"] for e in read_graph(place, name)] for name in ("plain", "a")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler wants one for C++ on a processor")
@pytest.mark.timeout(900)
def test_the_real_compiler_gives_the_same_losses(place):
    for name, compile_layers in (("plain", False), ("compiled", True)):
        texts: list[str] = []
        place.train(
            name=name,
            compile=compile_layers,
            max_steps=3,
            job=watched_job(lambda job, event, texts=texts: texts.append(getattr(event, "text", ""))),
        )
    assert any("2 layers are compiled" in text for text in texts)
    losses = [[e["loss"] for e in read_graph(place, name)] for name in ("plain", "compiled")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_failing_compiler_is_logged_and_training_continues(place, monkeypatch):
    texts = []

    def failing(self, **kwargs):
        self._compiled_call_impl = lambda *args, **kwargs: (_ for _ in ()).throw(RuntimeError("no C++ compiler"))

    monkeypatch.setattr(torch.nn.Module, "compile", failing)
    place.train(
        job=watched_job(lambda job, event: texts.append(getattr(event, "text", ""))), compile=True, max_steps=1
    )
    assert any(text.startswith("Compile: compiling the layers failed (no C++ compiler)") for text in texts)


def test_workers_only_where_they_are_forked_and_the_process_is_our_own(place):
    assert acceleration.count_workers(2, lambda: "fork") == 2
    assert acceleration.count_workers(2, lambda: "spawn") == 0
    host = place.host()
    host.owns_process = False
    with pytest.raises(SettingsError, match="inside the webui, Training PRO starts no worker processes"):
        place.train(host, workers=1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there are none")
@pytest.mark.parametrize("data", [["story.txt"], ["chats.json"], ["story.txt", "chats.json"]], ids=" ".join)
def test_with_workers_the_losses_are_the_same(place, data):
    """Also by dataset, which is known by its source: a worker sends no examples, since rows can't be sent."""
    place.write(
        "chats.json", json.dumps([{"instruction": f"What is {n}?", "output": f"It is {n}."} for n in range(12)])
    )
    for name, count in (("none", 0), ("one", 1)):
        place.train(name=name, workers=count, max_steps=3, data=data, cutoff=64)
    assert place.weights("none") == place.weights("one")
