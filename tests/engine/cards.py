"""Graphics cards that are none: tensors say that they lie on one, and are worked out on the processor.

What a card would refuse is refused: numbers of two cards, or of a card and the processor, in one operation.
Learning is left out, since torch's own part of it asks the driver.
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
MOVES = {ATEN._to_copy.default, ATEN.copy_.default}
PLACES_FROM_ANYWHERE = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default}
CPU = torch.device("cpu")


class OnCard(Tensor):
    """A tensor that names a card as its device; its numbers are in `held`."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> OnCard:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=device, requires_grad=False
        )
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"{self.held!r} on {self.device}"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Some of torch's methods ask the driver before they do anything; these do the same without it."""
        if func in WITHOUT_DRIVER:
            return WITHOUT_DRIVER[func](*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _done(func, args, kwargs or {})


class _OnCards(TorchDispatchMode):
    """Also what is made anew on a card, from nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _done(func, args, kwargs or {})


def _done(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    place = _place(func, args, kwargs)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": CPU}
    known = {id(x.held): x for x in tree_leaves((args, kwargs)) if isinstance(x, OnCard)}
    args, kwargs = tree_map(_held, (args, kwargs))
    found = func(*args, **kwargs)
    if place is None or place.type == "cpu":
        return found
    return tree_map(lambda x: known.get(id(x), OnCard(x, place)) if isinstance(x, Tensor) else x, found)


def _place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Where the result is; None where no card has to do with it. A single number may come from anywhere."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if kwargs.get("device") is not None:
        wanted = torch.device(kwargs["device"])
        return torch.device("cuda", wanted.index or 0) if wanted.type == "cuda" else wanted
    if func in MOVES or func in PLACES_FROM_ANYWHERE:
        tensors = tensors[:1]
    places = {x.device for x in tensors if x.dim()} or {x.device for x in tensors}
    if len(places) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {places} in {func}")
    (place,) = places or {None}
    return place if place is not None and place.type == "cuda" else None


def _held(thing: Any) -> Any:
    return thing.held if isinstance(thing, OnCard) else thing


def _there(places: Any, device: torch.device) -> Any:
    """Places in a tensor, which may be on its card or on the processor."""
    if isinstance(places, tuple):
        return tuple(_there(place, device) for place in places)
    if isinstance(places, OnCard) and places.dim() and places.device != device:
        raise RuntimeError(f"indices should be on the same device as the indexed tensor ({device})")
    return _held(places)


def _part(tensor: Tensor, places: Any) -> Tensor:
    if not isinstance(tensor, OnCard):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    return OnCard(tensor.held[_there(places, tensor.device)], tensor.device)


def _put_into(tensor: Tensor, places: Any, value: Any) -> None:
    if isinstance(value, Tensor) and value.dim() and value.device != tensor.device:
        raise RuntimeError(f"Expected {value.device} to be {tensor.device}")
    _held(tensor)[_there(places, tensor.device)] = _held(value)


def _asked_of_numbers(name: str) -> Callable[..., Any]:
    return lambda tensor: getattr(tensor.held, name)()


READ = (Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__)
WITHOUT_DRIVER: dict[Any, Callable[..., Any]] = {
    **{method: _asked_of_numbers(method.__name__) for method in READ},
    Tensor.nonzero: ATEN.nonzero.default,
    Tensor.__invert__: ATEN.bitwise_not.default,
    Tensor.cpu: lambda tensor: tensor.to("cpu"),
    Tensor.contiguous: lambda tensor: tensor.clone(memory_format=torch.contiguous_format),
    Tensor.__getitem__: _part,
    Tensor.__setitem__: _put_into,
}


def on_cards(model: torch.nn.Module, where: Callable[[str], str]) -> None:
    """Weights and buffers of each module onto the card that its name asks for; one tensor stays one."""
    made: dict[int, Tensor] = {}
    for name, module in model.named_modules():
        for own, fixed in ((module._parameters, True), (module._buffers, False)):
            for key, tensor in own.items():
                if tensor is not None and not isinstance(tensor, OnCard):
                    there = OnCard(tensor.detach().clone(), torch.device(where(name)))
                    weight = torch.nn.Parameter(there, requires_grad=False) if fixed else there
                    own[key] = made.setdefault(id(tensor), weight)


@contextmanager
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, tensors may be put on any number of cards."""
    tensor = torch.tensor

    def made(data: Any, *, device: Any = None, **more: Any) -> Tensor:
        found, place = tensor(data, **more), torch.device(device or "cpu")
        return found if place.type == "cpu" else OnCard(found, place)

    monkeypatch.setattr(torch, "tensor", made)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    with torch.no_grad(), _OnCards():
        yield
