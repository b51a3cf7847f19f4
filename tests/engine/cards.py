"""Fake GPUs: tensors report a GPU as their device and are computed on the CPU.

Operations that a GPU would refuse are refused: mixing tensors of two GPUs, or of a GPU and the CPU. Training is
not covered, since torch's autograd asks the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ATEN = torch.ops.aten
MOVE_OPS = {ATEN._to_copy.default, ATEN.copy_.default}
INDEX_OPS = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default}
CPU = torch.device("cpu")


class FakeGpuTensor(Tensor):
    """A tensor that reports a GPU as its device; its values are in `held`."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> FakeGpuTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=device, requires_grad=False
        )
        tensor.held = held
        return tensor

    def __repr__(self) -> str:
        return f"{self.held!r} on {self.device}"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Replace tensor methods that ask the driver by equivalents without it."""
        if func in WITHOUT_DRIVER:
            return WITHOUT_DRIVER[func](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


class _FakeGpuMode(TorchDispatchMode):
    """Covers tensors that are created on a fake GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = _result_device(func, args, kwargs)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": CPU}
    wrapped = {id(x.held): x for x in tree_leaves((args, kwargs)) if isinstance(x, FakeGpuTensor)}
    args, kwargs = tree_map(_unwrap, (args, kwargs))
    result = func(*args, **kwargs)
    if device is None or device.type == "cpu":
        return result
    return tree_map(lambda x: wrapped.get(id(x), FakeGpuTensor(x, device)) if isinstance(x, Tensor) else x, result)


def _result_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Device of the result; None if no GPU is involved. A scalar may come from any device."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if kwargs.get("device") is not None:
        requested = torch.device(kwargs["device"])
        return torch.device("cuda", requested.index or 0) if requested.type == "cuda" else requested
    if func in MOVE_OPS or func in INDEX_OPS:
        tensors = tensors[:1]
    devices = {x.device for x in tensors if x.dim()} or {x.device for x in tensors}
    if len(devices) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {devices} in {func}")
    (device,) = devices or {None}
    return device if device is not None and device.type == "cuda" else None


def _unwrap(value: Any) -> Any:
    return value.held if isinstance(value, FakeGpuTensor) else value


def _unwrap_indices(indices: Any, device: torch.device) -> Any:
    """Unwrap indices, which may be on the tensor's device or on the CPU."""
    if isinstance(indices, tuple):
        return tuple(_unwrap_indices(index, device) for index in indices)
    if isinstance(indices, FakeGpuTensor) and indices.dim() and indices.device != device:
        raise RuntimeError(f"indices should be on the same device as the indexed tensor ({device})")
    return _unwrap(indices)


def _get_item(tensor: Tensor, indices: Any) -> Tensor:
    if not isinstance(tensor, FakeGpuTensor):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    return FakeGpuTensor(tensor.held[_unwrap_indices(indices, tensor.device)], tensor.device)


def _set_item(tensor: Tensor, indices: Any, value: Any) -> None:
    if isinstance(value, Tensor) and value.dim() and value.device != tensor.device:
        raise RuntimeError(f"Expected {value.device} to be {tensor.device}")
    _unwrap(tensor)[_unwrap_indices(indices, tensor.device)] = _unwrap(value)


def _on_values(name: str) -> Callable[..., Any]:
    return lambda tensor: getattr(tensor.held, name)()


READ_METHODS = (Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__)
WITHOUT_DRIVER: dict[Any, Callable[..., Any]] = {
    **{method: _on_values(method.__name__) for method in READ_METHODS},
    Tensor.nonzero: ATEN.nonzero.default,
    Tensor.__invert__: ATEN.bitwise_not.default,
    Tensor.cpu: lambda tensor: tensor.to("cpu"),
    Tensor.contiguous: lambda tensor: tensor.clone(memory_format=torch.contiguous_format),
    Tensor.__getitem__: _get_item,
    Tensor.__setitem__: _set_item,
}


def move_to_fake_gpus(model: torch.nn.Module, where: Callable[[str], str]) -> None:
    """Move each module's weights and buffers to the device that `where` names; shared tensors stay shared."""
    moved: dict[int, Tensor] = {}
    for name, module in model.named_modules():
        for tensors, is_parameter in ((module._parameters, True), (module._buffers, False)):
            for key, tensor in tensors.items():
                if tensor is not None and not isinstance(tensor, FakeGpuTensor):
                    fake = FakeGpuTensor(tensor.detach().clone(), torch.device(where(name)))
                    weight = torch.nn.Parameter(fake, requires_grad=False) if is_parameter else fake
                    tensors[key] = moved.setdefault(id(tensor), weight)


@contextmanager
def fake_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow tensors on any number of fake GPUs."""
    create = torch.tensor

    def tensor(data: Any, *, device: Any = None, **more: Any) -> Tensor:
        result, target = create(data, **more), torch.device(device or "cpu")
        return result if target.type == "cpu" else FakeGpuTensor(result, target)

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    with torch.no_grad(), _FakeGpuMode():
        yield
