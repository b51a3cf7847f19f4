"""A borrowed host is restored: the model bit for bit, its flags, the tokenizer, random states, environment."""

from __future__ import annotations

import hashlib
import os
import random

import numpy as np
import pytest
import torch
from training_pro.core.errors import ModelError
from training_pro.core.jobs import Job, Note, Request, Step
from training_pro.records.folder import read_samples
from training_pro.tests.tiny import watched_job

LOADINGS = ("float32", "bfloat16", "4bit")


def tensors(model):
    """Hashes of all parameters and buffers, with the quantization state of quantized ones."""
    states = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        states[name] = (tensor.dtype, tuple(tensor.shape), digest(tensor))
        if state := getattr(tensor, "quant_state", None):
            quant_state = state.as_dict(packed=True)
            states[name + ".quant"] = {key: digest(part) for key, part in quant_state.items()}
    return states


def digest(tensor):
    raw = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()


def flags(model):
    """What a run may change on a model besides its weights."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "kinds": {name: type(module) for name, module in model.named_modules()},
        "modes": {name: module.training for name, module in model.named_modules()},
        "own": {name: set(vars(module)) for name, module in model.named_modules()},
        "hooks": {name: [len(getattr(module, h)) for h in hooks] for name, module in model.named_modules()},
        "checkpointing": {
            name: module.gradient_checkpointing
            for name, module in model.named_modules()
            if hasattr(module, "gradient_checkpointing")
        },
        "trained": {name: parameter.requires_grad for name, parameter in model.named_parameters()},
        "gradients": [name for name, parameter in model.named_parameters() if parameter.grad is not None],
        "config": model.config.to_dict(),
        "generation": model.generation_config.to_dict(),
        "peft": hasattr(model, "peft_config"),
    }


def process_state(host):
    """State outside of the model that must not change either."""
    tokenizer = host.card().tokenizer
    backend = tokenizer.backend_tokenizer
    return {
        "tokenizer": (backend.to_str(), backend.padding, backend.truncation, backend.encode_special_tokens),
        "special": (dict(tokenizer.special_tokens_map), tokenizer.padding_side, tokenizer.chat_template),
        "python": random.getstate(),
        "numpy": [str(part) for part in np.random.get_state()],
        "torch": digest(torch.get_rng_state()),
        "environment": dict(os.environ),
        "torch's": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()),
    }


def full_state(host):
    model = host.loaded_model().model
    return {"tensors": tensors(model), **flags(model), **process_state(host)}


def differences(before, after, path=""):
    """Differences of two states by name, since a diff of whole models is unreadable."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(before.keys() | after.keys())
        return [d for n in names for d in differences(before.get(n), after.get(n), f"{path}/{n}")]
    if before == after:
        return []
    if isinstance(before, set) and isinstance(after, set):
        return [f"{path}: {sorted(before - after)} went, {sorted(after - before)} came"]
    texts = [value if len(repr(value)) < 200 else type(value) for value in (before, after)]
    return [f"{path}: {texts[0]} was, {texts[1]} is"]


def with_unusual_state(host):
    """Change the host from the state after loading: mixed modes and gradients, tokenizer options, seeds."""
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


def run(place, host):
    place.train(host, name="run")
    assert place.weights("run")


def run_with_many_options(place, host):
    place.train(host, name="run", gradient_checkpointing="on", dropout=0.1, rslora=True, accumulation=2)


def run_with_samples(place, host):
    settings = {"sample_every": 2, "sample_prompts": ["The keeper"], "gradient_checkpointing": "on"}
    place.train(host, name="run", **settings)
    assert len(read_samples(place.lora("run"))) == 3


def stopped_run(place, host):
    def watch(job, event):
        if isinstance(event, Step) and event.step == 1:
            job.control.ask(Request.STOP)

    assert place.train(host, job=watched_job(watch), name="run").outcome == "stopped"


def failing_run(place, host):
    def watch(job, event):
        if isinstance(event, Step) and event.step == 2:
            raise ZeroDivisionError("in the middle")

    with pytest.raises(ZeroDivisionError):
        place.train(host, job=watched_job(watch), name="run", gradient_checkpointing="on")


def run_failing_inside_a_step(place, host):
    model = host.loaded_model().model
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError("in the middle of the model")

    hook = model.model.layers[1].register_forward_hook(fail)
    with pytest.raises(ModelError, match="Out of memory"):
        place.train(host, name="run", gradient_checkpointing="on")
    hook.remove()


def put_on_and_take_off(place, host):
    place.attach_lora(host, "a")
    assert host.loaded_model().loras == ("a",)
    place.detach_lora(host)
    assert host.loaded_model().loras == ()


def answer(place, host):
    assert place.answer(host, lora="a", temperature=1.0)


def answers_with_and_without_a_loaded_lora(place, host):
    place.attach_lora(host, "a")
    place.answer(host, lora="a")
    place.detach_lora(host)


ACTIONS = (
    run,
    run_with_many_options,
    run_with_samples,
    stopped_run,
    failing_run,
    run_failing_inside_a_step,
    put_on_and_take_off,
    answer,
    answers_with_and_without_a_loaded_lora,
)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
@pytest.mark.parametrize("loading", LOADINGS)
def test_everything_is_restored(with_lora, loading, action):
    place = with_lora
    host = with_unusual_state(place.host(loading))
    place.answer(host)  # bitsandbytes would repack 4-bit weights at first use
    before = full_state(host)
    action(place, host)
    changed = differences(before, full_state(host))
    assert changed == []


@pytest.mark.parametrize("loading", LOADINGS)
def test_a_loaded_lora_is_off_during_a_run_and_on_again_afterwards(with_lora, loading):
    place = with_lora
    host = place.host(loading)
    place.attach_lora(host, "a", 0.5)
    before = (tensors(host.loaded_model().model), flags(host.loaded_model().model), host.loaded_model().loras)
    during, notes = [], []

    def watch(job, event):
        if isinstance(event, Step):
            during.append((host.loaded_model().loras, "LoraModel" in type(host.loaded_model().model).__name__))
        elif isinstance(event, Note):
            notes.append(event.text)

    place.train(host, job=watched_job(watch), name="b")
    after = (tensors(host.loaded_model().model), flags(host.loaded_model().model), host.loaded_model().loras)
    assert during == [((), False)] * 4
    assert "a is detached for this run and attached again afterward." in notes
    assert after[2] == ("a",)
    assert differences(before[0], after[0]) == []
    assert differences(before[1], after[1]) == []
    assert place.weights("b") == weights_without_lora(place, loading)


def weights_without_lora(place, loading):
    place.train(place.host(loading), name="bare")
    return place.weights("bare")


def test_a_lora_is_on_again_after_a_run_that_fails(with_lora):
    place = with_lora
    host = place.host()
    place.attach_lora(host, "a")
    before = tensors(host.loaded_model().model)
    failing_run(place, host)
    assert host.loaded_model().loras == ("a",)
    assert differences(before, tensors(host.loaded_model().model)) == []


def test_several_loras_merged_by_the_webui_are_restored(with_lora):
    from peft import PeftModel

    place = with_lora
    place.train(name="b", seed=7)
    host = place.host()
    model = PeftModel.from_pretrained(host.loaded_model().model, str(place.lora("a")), adapter_name="a")
    model.load_adapter(str(place.lora("b")), "b")
    model.add_weighted_adapter(["a", "b"], [1, 1], "__merged")
    model.set_adapter("__merged")
    model.half()
    host.set_loras(model.eval(), ["a", "b"])
    before = tensors(host.loaded_model().model)
    place.train(host, name="c")
    assert differences(before, tensors(host.loaded_model().model)) == []
    assert (host.loaded_model().model.active_adapters, host.loaded_model().loras) == (["__merged"], ("a", "b"))


def test_a_second_run_in_the_same_process_gives_the_same_weights(place):
    host = place.host()
    place.train(host, name="a")
    place.train(place.host("bfloat16"), name="between")
    place.train(host, name="b")
    assert place.weights("a") == place.weights("b")


def test_a_run_does_not_depend_on_earlier_random_numbers(place):
    place.train(name="a", dropout=0.2)
    torch.manual_seed(99)
    torch.rand(1000)
    place.train(name="b", dropout=0.2)
    assert place.weights("a") == place.weights("b")


def test_a_job_in_the_session_leaves_no_lora_when_it_fails(place):
    from training_pro.core.jobs import Session
    from training_pro.engine.peft_engine import PeftEngine

    host, engine = place.host(), PeftEngine()
    before = tensors(host.loaded_model().model)

    def work(job: Job):
        job.log.append = lambda event: (_ for _ in ()).throw(OSError("disk full"))
        return engine.train(place.settings(), host, job)

    session = Session()
    job = session.start("training", "t", host, lambda job: work(Job("training", "inner")))
    (*_, end) = job.log.follow()
    assert (end.outcome, "disk full" in end.text) == ("failed", True)
    assert tensors(host.loaded_model().model) == before
