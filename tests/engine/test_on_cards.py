"""A model on one GPU, or spread over two as by accelerate: every tensor is on the device it has to be on.

The GPUs are fakes: tensors report a GPU as their device and are computed on the CPU. Operations that a GPU would
refuse are refused: mixing tensors of two GPUs, or of a GPU and the CPU. So there is no training, because torch's
autograd asks the driver.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from training_pro.core.engine import AnswerRequest
from training_pro.core.jobs import Job
from training_pro.data.examples import Example
from training_pro.engine.compute import (
    StepSums,
    add_neftune_noise,
    collate,
    patch_lora_layers,
    probe_model,
    use_packed_attention,
)
from training_pro.engine.inference import eval_loop, generation
from training_pro.engine.lora import autocast_model, choose_targets, inject_lora, lora_config
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import make_model

FIRST, SECOND = "cuda:0", "cuda:1"
ATEN = torch.ops.aten
INDEXED = {ATEN._to_copy.default, ATEN.copy_.default, ATEN.index.Tensor, ATEN.index_put.default}
INDEXED |= {ATEN.index_put_.default}
"""Operations whose result is where their first tensor is, or where they are asked to move it."""


class FakeGpuTensor(Tensor):
    """A tensor that reports a GPU as its device; its values are in `held`."""

    @staticmethod
    def __new__(cls, held, device):
        layout = {"strides": held.stride(), "dtype": held.dtype, "device": device, "requires_grad": False}
        tensor = Tensor._make_wrapper_subclass(cls, held.shape, **layout)
        tensor.held = held
        return tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Replace tensor methods that ask the driver by equivalents without it."""
        if func in WITHOUT_DRIVER:
            return WITHOUT_DRIVER[func](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


class FakeGpuMode(TorchDispatchMode):
    """Covers tensors that are created on a fake GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


def dispatch(func, args, kwargs):
    device = device_of_result(func, args, kwargs)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    wrapped = {id(x.held): x for x in tree_leaves((args, kwargs)) if isinstance(x, FakeGpuTensor)}
    args, kwargs = tree_map(held, (args, kwargs))
    result = func(*args, **kwargs)
    if device is None or device.type == "cpu":
        return result
    return tree_map(lambda x: wrapped.get(id(x), FakeGpuTensor(x, device)) if isinstance(x, Tensor) else x, result)


def device_of_result(func, args, kwargs):
    """None if no GPU is involved. A scalar may come from any device."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if kwargs.get("device") is not None:
        asked = torch.device(kwargs["device"])
        return torch.device("cuda", asked.index or 0) if asked.type == "cuda" else asked
    tensors = tensors[:1] if func in INDEXED else tensors
    devices = {x.device for x in tensors if x.dim()} or {x.device for x in tensors}
    if len(devices) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {devices} in {func}")
    (device,) = devices or {None}
    return device if device is not None and device.type == "cuda" else None


def held(value):
    return value.held if isinstance(value, FakeGpuTensor) else value


def get_item(tensor, indices):
    return FakeGpuTensor(tensor.held[tree_map(held, indices)], tensor.device)


def set_item(tensor, indices, value):
    if isinstance(value, Tensor) and value.dim() and value.device != tensor.device:
        raise RuntimeError(f"Expected {value.device} to be {tensor.device}")
    held(tensor)[tree_map(held, indices)] = held(value)


def on_values(method):
    return lambda tensor: getattr(tensor.held, method.__name__)()


READ = (Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__)
WITHOUT_DRIVER = {method: on_values(method) for method in READ}
WITHOUT_DRIVER |= {Tensor.nonzero: ATEN.nonzero.default, Tensor.__invert__: ATEN.bitwise_not.default}
WITHOUT_DRIVER |= {Tensor.cpu: lambda tensor: tensor.to("cpu"), Tensor.contiguous: lambda tensor: tensor.clone()}
WITHOUT_DRIVER |= {Tensor.__getitem__: get_item, Tensor.__setitem__: set_item}


def move_to_fake_gpus(model, where):
    """Move each module's weights and buffers to the device that `where` names; shared tensors stay shared."""
    moved = {}
    for name, module in model.named_modules():
        own = [(key, tensor) for key, tensor in module.named_parameters(recurse=False, remove_duplicate=False)]
        for key, tensor in [*own, *module.named_buffers(recurse=False)]:
            if not isinstance(tensor, FakeGpuTensor):
                fake = FakeGpuTensor(tensor.detach().clone(), torch.device(where(name)))
                is_parameter = isinstance(tensor, torch.nn.Parameter)
                weight = torch.nn.Parameter(fake, requires_grad=False) if is_parameter else fake
                setattr(module, key, moved.setdefault(id(tensor), weight))


@contextmanager
def fake_gpus(monkeypatch):
    """Allow tensors on any number of fake GPUs."""
    create = torch.tensor

    def tensor(data, *, device=None, **more):
        result, target = create(data, **more), torch.device(device or "cpu")
        return result if target.type == "cpu" else FakeGpuTensor(result, target)

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    with torch.no_grad(), FakeGpuMode():
        yield


HOOKED = {"model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.1", "model.norm", "lm_head"}


@pytest.mark.parametrize(
    ("dtype", "placement", "head"),
    [
        ("float16", "one card", False),
        ("float32", "two cards, tied", True),
        ("float32", "two cards", False),
        ("bfloat16", "two cards", True),
    ],
)
def test_every_tensor_is_on_the_device_where_it_has_to_be(monkeypatch, dtype, placement, head):
    """The chunked loss is on the device of the head; NEFTune noise and the losses by dataset follow it."""
    settings = training_settings({"name": "a", "data": ["story.txt"], "rank": 4, "train_head": head})
    base = make_model("llama", tied=placement.endswith("tied")).to(getattr(torch, dtype))
    last = ("model.layers.1", "model.norm", *([] if placement.endswith("tied") else ["lm_head"]))

    def where(name):
        late = name.removeprefix("base_model.model.").startswith(last)
        return SECOND if placement != "one card" and late else FIRST

    with inject_lora(base, lora_config(settings.lora, base, choose_targets(settings.lora, base))) as model:
        patch_lora_layers(model)
        move_to_fake_gpus(model, where)
        for name, module in base.named_modules() if placement != "one card" else ():
            if not name or name in HOOKED:
                add_hook_to_module(module, AlignDevicesHook(torch.device(where(name)), io_same_device=not name))
        with fake_gpus(monkeypatch), use_packed_attention(base):
            check_on_cards(model, settings, SECOND if placement == "two cards" else FIRST)


def check_on_cards(model, settings, device):
    capabilities = probe_model(model, settings)
    assert not capabilities.chunked_loss_refusal and capabilities.packed, capabilities
    rows = [Example(np.arange(3, 12), None, None, 0), Example(np.arange(50, 57), None, None, 1)]
    batch = collate(rows, in_one_row=True).to(FIRST)
    with autocast_model(model):
        loop = eval_loop.EvalLoop(model, capabilities, eval_loop.BatchLimit(), lambda: False)
        sums = loop.sums(rows, [0, 1], 2)
        with add_neftune_noise(model.get_input_embeddings(), 1e-3, batch):
            losses = capabilities.loss(model, batch.inputs, batch.labels)
    assert (losses.losses.device, losses.losses.dtype) == (torch.device(device), torch.float32)
    step_sums = StepSums(SimpleNamespace(has_several=True, names=["one", "two"], of=lambda examples: [0, 1]))
    step_sums.add(batch, losses)
    tokens, by_source = step_sums.take()
    assert (tokens, sums.tokens.tolist()) == (16, [8, 6])
    assert list(by_source.values()) == pytest.approx(sums.losses / sums.tokens, rel=3e-2)
    tokenizer, question = SimpleNamespace(pad_token_id=0, eos_token_id=1), AnswerRequest("", max_tokens=3)
    ids = generation.generate_ids(model, torch.arange(3)[None], question, tokenizer, Job("answer", "a test"))
    assert ids.shape[1] > 3
