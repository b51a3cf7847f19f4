"""A borrowed host is restored: the model bit for bit, its flags, the tokenizer, random states, environment."""

from __future__ import annotations

import hashlib
import os
import random
import shutil

import numpy as np
import pytest
import torch
from training_pro.core.errors import ModelError
from training_pro.core.jobs import Note, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import read_samples
from training_pro.tests.engine.watching import at, first, texts

LOADINGS = ("float32", "bfloat16", "4bit")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def digest(tensor):
    raw = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()


def tensors(model):
    """Hashes of all parameters and buffers, with the quantization state of quantized ones."""
    states = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        states[name] = (tensor.dtype, tuple(tensor.shape), digest(tensor))
        if state := getattr(tensor, "quant_state", None):
            states[f"{name}.quant"] = {key: digest(part) for key, part in state.as_dict(packed=True).items()}
    return states


def flags(model):
    """What a run may change on a model besides its weights."""
    modules = {
        name: (type(module), module.training, set(vars(module)), [len(getattr(module, hook)) for hook in HOOKS])
        for name, module in model.named_modules()
    }
    parameters = {name: (p.requires_grad, p.grad is not None) for name, p in model.named_parameters()}
    checkpointing = {n: getattr(m, "gradient_checkpointing", None) for n, m in model.named_modules()}
    own = {"config": model.config.to_dict(), "generation": model.generation_config.to_dict()}
    return {**own, "modules": modules, "parameters": parameters, "checkpointing": checkpointing}


def full_state(host):
    """The model, and what is outside of it and must not change either."""
    model, tokenizer = host.loaded_model().model, host.card().tokenizer
    backend = tokenizer.backend_tokenizer
    return {
        "tensors": tensors(model),
        **flags(model),
        "tokenizer": (backend.to_str(), backend.padding, backend.truncation, backend.encode_special_tokens),
        "special": (dict(tokenizer.special_tokens_map), tokenizer.padding_side, tokenizer.chat_template),
        "random": (random.getstate(), str(np.random.get_state()), digest(torch.get_rng_state())),
        "environment": dict(os.environ),
        "torch": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()),
    }


def differences(before, after, path=""):
    """Differences of two states by name, since a diff of whole models is unreadable."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(before.keys() | after.keys())
        return [d for n in names for d in differences(before.get(n), after.get(n), f"{path}/{n}")]
    return [] if before == after else [f"{path}: {str(before)[:200]} was, {str(after)[:200]} is"]


def with_unusual_state(host):
    """Change the host from the state after loading."""
    model = host.loaded_model().model
    model.model.layers[1].train()
    model.model.norm.weight.requires_grad_(False)
    model.config.use_cache = True
    tokenizer = host.card().tokenizer
    tokenizer.backend_tokenizer.enable_padding(length=7)
    tokenizer.backend_tokenizer.enable_truncation(9)
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)
    return host


@pytest.fixture(autouse=True)
def accelerate_environment(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "WARNING")


def run_with_many_options(place, host):
    options = {"sample_every": 2, "sample_prompts": ["The keeper"], "gradient_checkpointing": "on"}
    place.train(host, name="run", dropout=0.1, rslora=True, accumulation=2, eval_share=0.2, **options)
    assert len(read_samples(place.lora("run"))) > 1


def failing_run(place, host):
    with pytest.raises(ZeroDivisionError):
        place.train(host, job=at({2: lambda job: 1 / 0}), name="run", gradient_checkpointing="on")


def run_failing_inside_a_step(place, host):
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError("in the middle of the model")

    hook = host.loaded_model().model.model.layers[1].register_forward_hook(fail)
    with pytest.raises(ModelError, match="Out of memory"):
        place.train(host, name="run", gradient_checkpointing="on")
    hook.remove()


def answers(place, host):
    place.answer(host, lora="a", temperature=1.0)
    place.attach_lora(host, "a")
    place.answer(host, lora="a")
    place.detach_lora(host)


@pytest.mark.parametrize("loading", LOADINGS)
def test_everything_is_restored(with_lora, loading):
    host = with_unusual_state(with_lora.host(loading))
    with_lora.answer(host)  # bitsandbytes would repack 4-bit weights at first use
    before = full_state(host)
    for act in (run_with_many_options, failing_run, run_failing_inside_a_step, answers):
        act(with_lora, host)
        assert differences(before, full_state(host)) == [], act.__name__
        shutil.rmtree(with_lora.lora("run"), ignore_errors=True)


@pytest.mark.parametrize("loading", LOADINGS)
def test_a_loaded_lora_is_off_during_a_run_and_on_again_afterwards(with_lora, loading):
    host, during = with_lora.host(loading), []
    with_lora.attach_lora(host, "a", 0.5)
    before = (tensors(host.loaded_model().model), flags(host.loaded_model().model))
    job = at({2: lambda job: during.append((host.loaded_model().loras, type(host.loaded_model().model).__name__))})
    with_lora.train(host, job=job, name="b")
    after = (tensors(host.loaded_model().model), flags(host.loaded_model().model))
    assert during == [((), "LlamaForCausalLM")]
    assert "a is detached for this run and attached again afterward." in texts(job, Note)
    assert host.loaded_model().loras == ("a",)
    assert [difference for pair in zip(before, after, strict=True) for difference in differences(*pair)] == []
    failing_run(with_lora, host)
    assert (host.loaded_model().loras, tensors(host.loaded_model().model)) == (("a",), before[0])
    with_lora.train(with_lora.host(loading), name="bare")
    assert with_lora.weights("b") == with_lora.weights("bare")


def test_several_loras_merged_by_the_webui_are_restored(with_lora):
    from peft import PeftModel

    host = with_lora.host()
    model = PeftModel.from_pretrained(host.loaded_model().model, str(with_lora.lora("a")), adapter_name="a")
    model.load_adapter(str(next(with_lora.lora("a").glob("checkpoint-*"))), "b")
    model.add_weighted_adapter(["a", "b"], [1, 1], "__merged")
    model.set_adapter("__merged")
    model.half()
    host.set_loras(model.eval(), ["a", "b"])
    before = tensors(host.loaded_model().model)
    with_lora.train(host, name="c")
    assert differences(before, tensors(host.loaded_model().model)) == []
    assert (host.loaded_model().model.active_adapters, host.loaded_model().loras) == (["__merged"], ("a", "b"))


def test_a_job_that_fails_in_the_session_leaves_no_lora(place):
    def full(job):
        raise OSError("disk full")

    host = place.host()
    before = tensors(host.loaded_model().model)
    broken = first(Note, full)
    job = Session().start("training", "t", host, lambda job: PeftEngine().train(place.settings(), host, broken))
    (*_, end) = job.log.follow()
    assert (end.outcome, "disk full" in end.text) == ("failed", True)
    assert tensors(host.loaded_model().model) == before
    assert not place.lora().exists()
