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
from training_pro.tests.engine.watching import at, break_down, first, stopping_at, texts

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


def model_state(model):
    """Whatever a run may change about a model."""
    states = {"config": model.config.to_dict(), "generation": model.generation_config.to_dict()}
    for name, module in model.named_modules():
        hooks = [len(getattr(module, hook)) for hook in HOOKS]
        states[name] = (type(module), module.training, set(vars(module)), hooks)
        states[f"{name}.checkpointing"] = getattr(module, "gradient_checkpointing", None)
    gradients = {f"{name}.grad": (p.requires_grad, p.grad is not None) for name, p in model.named_parameters()}
    return {**states, **gradients, "tensors": tensors(model)}


def full_state(host):
    """The model, and what is outside of it and must not change either."""
    tokenizer = host.card().tokenizer
    backend = tokenizer.backend_tokenizer
    return {
        **model_state(host.loaded_model().model),
        "tokenizer": (backend.to_str(), backend.padding, backend.truncation, backend.encode_special_tokens),
        "special": (dict(tokenizer.special_tokens_map), tokenizer.padding_side, tokenizer.chat_template),
        "random": (random.getstate(), str(np.random.get_state()), digest(torch.get_rng_state())),
        "environment": dict(os.environ),
        "torch": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()),
    }


def differences(before, after):
    """Names of what differs, since a diff of whole models is unreadable."""
    return [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]


def in_unusual_state(host):
    """Change the host from the state after loading."""
    model, backend = host.loaded_model().model, host.card().tokenizer.backend_tokenizer
    model.model.layers[1].train()
    model.model.norm.weight.requires_grad_(False)
    model.config.use_cache = True
    backend.enable_padding(length=7)
    backend.enable_truncation(9)
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)
    return host


def run_with_many_options(place, host):
    options = {"sample_every": 2, "sample_prompts": ["The keeper"], "gradient_checkpointing": "on"}
    place.train(host, name="run", dropout=0.1, rslora=True, accumulation=2, eval_share=0.2, **options)
    assert len(read_samples(place.lora("run"))) > 1


def stopped_run(place, host):
    assert place.train(host, name="run", job=stopping_at(1)).outcome == "stopped"


def failing_run(place, host):
    with pytest.raises(OSError, match="the power went"):
        place.train(host, job=at({2: break_down}), name="run", gradient_checkpointing="on")


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


@pytest.mark.long
@pytest.mark.parametrize("loading", LOADINGS)
def test_everything_is_restored(with_lora, monkeypatch, loading):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    host = in_unusual_state(with_lora.host(loading))
    with_lora.answer(host)  # bitsandbytes would repack 4-bit weights at first use
    before = full_state(host)
    for act in (run_with_many_options, stopped_run, failing_run, run_failing_inside_a_step, answers):
        act(with_lora, host)
        assert differences(before, full_state(host)) == [], act.__name__
        shutil.rmtree(with_lora.lora("run"), ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize("loading", LOADINGS)
def test_a_loaded_lora_is_off_during_a_run_and_on_again_afterwards(with_lora, loading):
    host, during = with_lora.host(loading), []
    with_lora.attach_lora(host, "a", 0.5)
    before = model_state(host.loaded_model().model)
    job = at({2: lambda job: during.append((host.loaded_model().loras, type(host.loaded_model().model).__name__))})
    with_lora.train(host, job=job, name="b")
    assert during == [((), "LlamaForCausalLM")]
    assert "a is detached for this run and attached again afterward." in texts(job, Note)
    failing_run(with_lora, host)
    assert host.loaded_model().loras == ("a",)
    assert differences(before, model_state(host.loaded_model().model)) == []
    with_lora.train(with_lora.host(loading), name="bare")
    assert with_lora.weights("b") == with_lora.weights("bare")


def test_a_job_that_fails_in_the_session_leaves_no_lora_and_says_why(place):
    host, failing, settings = place.host(), first(Note, break_down), place.settings()
    before = tensors(host.loaded_model().model)
    run = Session().start("training", "A run", host, lambda job: PeftEngine().train(settings, host, failing))
    (*_, end) = run.log.follow()
    assert (end.outcome, end.text) == ("failed", "A run ended with OSError: the power went")
    assert tensors(host.loaded_model().model) == before and not place.lora().exists()
