"""How the machine is used during a run: kept memory, attention, kernels, compiling; all put back afterwards."""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from ...core.errors import SettingsError, first_line
from ...core.jobs import Job, Note
from ...settings.definitions import Machine
from ..checks import attention_problems, liger_problems, refuse_for
from ..lora import as_it_was, computing_type, in_its_type
from .layer_patches import fewer_passes
from .packed_attention import text_by_text

_TRIM, _MAP = -1, -3  # glibc's names for when memory goes back to the system, and from which size on it is mapped
_LARGEST_MAP = 32 * 2**20  # glibc takes no more
OLDER, NEWER = "allow_tf32", "fp32_precision"
RECOMPILED_AT_MOST = 64  # lengths and kinds of layers, each once


@contextmanager
def set_up(asked: Machine, base: Any, job: Job) -> Iterator[None]:
    """Inside, the machine and the model work as the settings say; SettingsError where they cannot."""
    device = base.device.type
    with ExitStack() as stack:
        stack.enter_context(kept_memory(device))
        stack.enter_context(attention(asked.attention, base))
        if asked.packing != "off" and not asked.compile:  # a compiled layer cannot go text by text
            stack.enter_context(text_by_text(base))
        if device == "cuda":
            stack.enter_context(tf32(asked.tf32))
        if asked.liger:
            stack.enter_context(liger(base))
        elif not asked.compile:  # both have kernels of their own
            stack.enter_context(fewer_passes(base))
        if asked.workers and not workers(asked.workers):
            job.log.append(Note(text="Workers: this system would start the program anew for each; none are used."))
        yield


@contextmanager
def kept_memory(device: str) -> Iterator[None]:
    """Inside, on a Linux CPU, freed memory stays ours: a step needs the same again, and new pages are slow.

    Afterwards it goes back, and the limits are those that glibc itself comes to in a process with large tensors.
    """
    libc = _glibc() if device == "cpu" else None
    if libc is None:
        yield
        return
    libc.mallopt(_MAP, _LARGEST_MAP)
    libc.mallopt(_TRIM, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(_TRIM, 2 * _LARGEST_MAP)
        libc.malloc_trim(0)


def give_back_memory() -> None:
    """What is free in this process goes back to the system, so that what follows is seen as it is."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


@contextmanager
def attention(asked: str, base: Any) -> Iterator[None]:
    """Inside, the model's attention is worked out in this way; 'auto' leaves it as it was loaded."""
    if asked == "auto":
        yield
        return
    refuse_for(attention_problems(asked, base.device.type, computing_type(base)))
    configs = {id(m.config): m.config for m in base.modules() if hasattr(m, "set_attn_implementation")}
    before = [(config, config._attn_implementation_internal) for config in configs.values()]
    try:
        _switch_attention(asked, base)
        yield
    finally:
        for config, way in before:
            config._attn_implementation_internal = way


def _switch_attention(asked: str, base: Any) -> None:
    kind = type(base).__name__
    try:
        base.set_attn_implementation(asked)
    except (ValueError, ImportError) as error:
        raise SettingsError([f"Attention: {kind} has no {asked} ({first_line(error)}). Choose auto."]) from error
    if base.config._attn_implementation != asked:
        raise SettingsError([f"Attention: {kind} cannot change to {asked}. Choose auto."])


@contextmanager
def tf32(on: bool) -> Iterator[None]:
    """Inside, float32 products on a card are rounded to TF32 (much faster), or never."""
    before = list(_rounding())
    try:
        for place in (torch.backends.cuda.matmul, torch.backends.cudnn):
            place.allow_tf32 = on
        yield
    finally:
        for place, name, was in before:
            setattr(place, name, was)


def _rounding() -> Iterator[tuple[Any, str, Any]]:
    """What says so now. Where somebody has used torch's newer names for it, the older ones cannot be read."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    newer = (matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None))
    for place, name in [(matmul, OLDER), (cudnn, OLDER), *((place, NEWER) for place in newer)]:
        with suppress(RuntimeError, AttributeError):
            yield place, name, getattr(place, name)


@contextmanager
def liger(base: Any) -> Iterator[None]:
    """Inside, the model works with Liger's kernels; the loss stays ours."""
    refuse_for(liger_problems(True, base.device.type))
    from transformers.integrations.liger import apply_liger_kernel

    with as_it_was(base):
        apply_liger_kernel(base, {"cross_entropy": False, "fused_linear_cross_entropy": False})
        yield


@contextmanager
def compiled(model: Any, asked: bool, job: Job) -> Iterator[None]:
    """Inside, the model's layers are compiled; where that fails they are not, and that is said."""
    layers = _repeated(model) if asked else []
    if not layers:
        if asked:
            job.log.append(Note(text="Compile: this model has no row of like layers; it is not compiled."))
        yield
        return
    import torch._dynamo  # it is not there before it is asked for

    more = {"disable": False, "recompile_limit": RECOMPILED_AT_MOST}  # the webui switches it off
    with torch._dynamo.config.patch(**more):
        try:
            _compile(layers, model, job)
            yield
        finally:
            for layer in layers:
                layer._compiled_call_impl = None
            torch._dynamo.reset()


def _compile(layers: list[torch.nn.Module], model: Any, job: Job) -> None:
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        _one_step(model)
    except (RuntimeError, OSError, ImportError) as error:
        for layer in layers:
            layer._compiled_call_impl = None
        job.log.append(Note(text=f"Compile: it fails here ({first_line(error)}); the run goes on without it."))
    else:
        job.log.append(Note(text=f"Compile: {len(layers)} layers are compiled; new lengths may be slow at first."))


def _one_step(model: Any) -> None:
    """Forward and backward over a few tokens, as in training; nothing is left of it."""
    ids = torch.arange(16, device=model.device)[None]
    model.train()
    with in_its_type(model):  # in another type the layers would be compiled once more at the first step
        loss = model(input_ids=ids, use_cache=False).logits.float().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad = None


def _repeated(model: Any) -> list[torch.nn.Module]:
    """The longest row of like layers."""
    rows = [list(m) for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    alike = [row for row in rows if row and len({type(layer) for layer in row}) == 1]
    return max(alike, key=len, default=[])


def workers(asked: int, start_method: Callable[[], str] = multiprocessing.get_start_method) -> int:
    """So many as asked for, where a worker is a copy of this process and not the whole program begun anew."""
    return asked if start_method() == "fork" else 0
