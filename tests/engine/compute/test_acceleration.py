"""Machine settings of a run, and that they are restored afterwards."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec

import pytest
import torch
import torch._dynamo
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Note
from training_pro.engine.checks import attention_problems
from training_pro.engine.compute import apply_machine_settings, count_workers
from training_pro.engine.lora import restore_methods
from training_pro.tests.engine.architectures import read_graph


@pytest.fixture
def model(place):
    return place.host().loaded_model().model


def notes_of(job):
    return [event.text for event in job.log.since(0) if isinstance(event, Note)]


def losses_of(place, name):
    return [entry["loss"] for entry in read_graph(place, name)]


def test_attention_changes_and_comes_back_after_an_error_too(place, model):
    machine = place.settings(attention="eager").machine
    with pytest.raises(KeyError), apply_machine_settings(machine, model, Job("training", "a test")):
        assert model.config._attn_implementation == "eager"
        raise KeyError
    assert model.config._attn_implementation == model.model.config._attn_implementation == "sdpa"


def test_flash_attention_and_liger_are_refused_with_their_requirements(place):
    with pytest.raises(SettingsError, match=r"flash_attention_2 needs an NVIDIA GPU\. Choose auto"):
        place.train(attention="flash_attention_2")
    with pytest.raises(SettingsError, match=r"Liger kernels: .*(pip install liger-kernel|GPU)"):
        place.train(liger=True)
    if find_spec("flash_attn") is None:
        (problem,) = attention_problems("flash_attention_2", "cuda", "")
        assert "pip install flash-attn" in problem.text


def test_methods_replaced_by_kernels_are_restored(model):
    """Patched as by Liger: methods of modules, attributes, classes, and functions of the model's source file."""
    source = sys.modules[type(model).__module__]
    norm, rope = model.model.norm, source.apply_rotary_pos_emb
    norm_class, attributes = type(norm), set(vars(norm))
    with restore_methods(model):
        norm.forward, norm.offset = (lambda hidden: hidden), 1.0
        norm.__class__ = type("OtherNorm", (norm_class,), {})
        source.apply_rotary_pos_emb = source.LlamaMLP = None
    assert (type(norm), set(vars(norm))) == (norm_class, attributes)
    assert source.apply_rotary_pos_emb is rope
    assert source.LlamaMLP is not None


def test_a_run_with_compiled_layers_has_the_same_losses_and_leaves_them_as_they_were(place, monkeypatch):
    """With a compiler that runs the layers as they are, and dynamo disabled as in the webui."""
    disabled, compile_layer, job, host = [], torch.nn.Module.compile, Job("training", "a test"), place.host()

    def compiled(self, **options):
        disabled.append(torch._dynamo.config.disable)
        compile_layer(self, backend="eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    place.train(name="plain", max_steps=2)
    with torch._dynamo.config.patch(disable=True):
        place.train(host, name="compiled", compile=True, max_steps=2, job=job)
        assert torch._dynamo.config.disable is True
    assert disabled == [False, False]
    assert any("2 layers are compiled" in text for text in notes_of(job))
    assert not any(layer._compiled_call_impl for layer in host.loaded_model().model.model.layers)
    assert losses_of(place, "compiled") == pytest.approx(losses_of(place, "plain"), rel=1e-5)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler wants one for C++ on a processor")
@pytest.mark.timeout(900)
def test_the_real_compiler_gives_the_same_losses(place):
    job = Job("training", "a test")
    place.train(name="plain", max_steps=3)
    place.train(name="compiled", compile=True, max_steps=3, job=job)
    assert any("2 layers are compiled" in text for text in notes_of(job))
    assert losses_of(place, "compiled") == pytest.approx(losses_of(place, "plain"), rel=1e-5)


def test_a_failing_compiler_is_logged_and_training_continues(place, monkeypatch):
    def failing(self, **_):
        raise RuntimeError("no C++ compiler")

    compile_layer, job = torch.nn.Module.compile, Job("training", "a test")
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **_: compile_layer(self, backend=failing))
    assert place.train(job=job, compile=True, max_steps=1).outcome == "finished"
    assert any(text.startswith("Compile: compiling the layers failed (") for text in notes_of(job))


def test_workers_only_where_they_are_forked_and_the_process_is_our_own(place):
    assert [count_workers(2, lambda method=method: method) for method in ("fork", "spawn")] == [2, 0]
    host = place.host()
    host.owns_process = False
    with pytest.raises(SettingsError, match="inside the webui, Training PRO starts no worker processes"):
        place.train(host, workers=1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there are none")
def test_with_workers_the_losses_are_the_same(place):
    """Also by dataset, which is known by its source: a worker sends no examples, since rows can't be sent."""
    rows = [{"instruction": f"What is {n}?", "output": f"It is {n}."} for n in range(12)]
    place.write("chats.json", json.dumps(rows))
    for name, count in (("none", 0), ("one", 1)):
        place.train(name=name, workers=count, max_steps=3, data=["story.txt", "chats.json"], cutoff=64)
    assert place.weights("none") == place.weights("one")
    first = read_graph(place, "one")[0]
    assert first["loss_by_source"] == read_graph(place, "none")[0]["loss_by_source"]
