"""What is borrowed comes back: flags, modes, caches, random states, environment, LoRAs that were on."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@contextmanager
def borrowed(model: torch.nn.Module) -> Iterator[None]:
    """Inside, anything may be done to the model's flags and modes; afterwards they are as before."""
    flags, surroundings = _Flags.of(model), _Surroundings.now()
    try:
        yield
    finally:
        flags.put_back(model)
        surroundings.put_back()


@contextmanager
def same_chance() -> Iterator[None]:
    """Whatever is drawn inside, afterwards the random states are as before."""
    surroundings = _Surroundings.now()
    try:
        yield
    finally:
        surroundings.put_back()


@dataclass(frozen=True)
class _Flags:
    """Of every parameter whether it is trained, of every module its mode, and what the config says."""

    gradients: list[tuple[torch.nn.Parameter, bool]]
    modes: list[tuple[torch.nn.Module, bool]]
    checkpointing: list[tuple[torch.nn.Module, bool]]
    hooks: list[tuple[torch.nn.Module, frozenset[int]]]
    use_cache: Any
    attributes: dict[str, Any]

    @classmethod
    def of(cls, model: torch.nn.Module) -> _Flags:
        modules = list(model.modules())
        return cls(
            gradients=[(p, p.requires_grad) for p in model.parameters()],
            modes=[(m, m.training) for m in modules],
            checkpointing=[(m, m.gradient_checkpointing) for m in modules if hasattr(m, "gradient_checkpointing")],
            hooks=[(m, frozenset(m._forward_hooks)) for m in modules],
            use_cache=getattr(model.config, "use_cache", None),
            attributes={k: v for k, v in vars(model).items() if k in _LEFT_BEHIND},
        )

    def put_back(self, model: torch.nn.Module) -> None:
        self._put_back_checkpointing(model)
        for parameter, trained in self.gradients:
            parameter.grad = None
            if parameter.requires_grad != trained:
                parameter.requires_grad_(trained)
        for module, mode in self.modes:
            module.training = mode
        if getattr(model.config, "use_cache", None) != self.use_cache:
            model.config.use_cache = self.use_cache
        for name in _LEFT_BEHIND:
            if name in self.attributes:
                setattr(model, name, self.attributes[name])
            elif name in vars(model):
                delattr(model, name)

    def go_on(self, model: torch.nn.Module) -> None:
        """As before, without letting go of anything that training holds."""
        for module, on in self.checkpointing:
            module.gradient_checkpointing = on
        for parameter, trained in self.gradients:
            if parameter.requires_grad != trained:
                parameter.requires_grad_(trained)
        for module, mode in self.modes:
            module.training = mode
        model.config.use_cache = self.use_cache

    def _put_back_checkpointing(self, model: torch.nn.Module) -> None:
        for module, on in self.checkpointing:
            module.gradient_checkpointing = on
            if not on:
                vars(module).pop("_gradient_checkpointing_func", None)
        for module, known in self.hooks:  # PEFT too has the input ask for gradients: each of the two leaves a hook
            for number in module._forward_hooks.keys() - known:
                del module._forward_hooks[number]


_LEFT_BEHIND = (
    "peft_config",
    "_hf_peft_config_loaded",
    "warnings_issued",
    "_require_grads_hook",
    "_require_grads_hooks",
)
"""What PEFT, the Trainer and checkpointing leave on a model as attributes of its own."""


@dataclass(frozen=True)
class _Surroundings:
    """The random states that the host's chat draws from, and what accelerate writes into the environment."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    cards: list[torch.Tensor]
    environment: dict[str, str]

    @classmethod
    def now(cls) -> _Surroundings:
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(),
            torch=torch.get_rng_state(),
            cards=torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            environment=_accelerates_environment(),
        )

    def put_back(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cards:
            torch.cuda.set_rng_state_all(self.cards)
        for name in _accelerates_environment().keys() - self.environment.keys():
            del os.environ[name]
        os.environ.update(self.environment)


@contextmanager
def as_it_was(base: Any) -> Iterator[None]:
    """Whatever is put in place of methods and functions inside, of the model's modules and of its source file."""
    source = vars(sys.modules[type(base).__module__])
    kept = [(vars(m), type(m), m) for m in base.modules()]
    before = [{k: v for k, v in own.items() if k not in _OF_TORCH} for own, _, _ in kept]
    functions = dict(source)
    try:
        yield
    finally:
        _put_back(source, functions)
        for (own, kind, module), was in zip(kept, before, strict=True):
            _put_back(own, was, but=_OF_TORCH)
            if type(module) is not kind:
                module.__class__ = kind


_OF_TORCH = frozenset(vars(torch.nn.Module()))
"""What torch itself keeps on a module: parameters, hooks and the like are put back elsewhere."""


def _put_back(now: dict[str, Any], was: dict[str, Any], but: frozenset[str] = frozenset()) -> None:
    for name in now.keys() - was.keys() - but:
        del now[name]
    now.update(was)


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Inside, a model in training speaks; afterwards it goes on as if nobody had asked it anything."""
    flags, surroundings = _Flags.of(model), _Surroundings.now()
    for module, _ in flags.checkpointing:
        module.gradient_checkpointing = False
    try:
        yield
    finally:
        flags.go_on(model)
        surroundings.put_back()


def _accelerates_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith("ACCELERATE_")}
