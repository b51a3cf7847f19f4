"""Memory, attention, kernel and compile settings of a run, all restored afterwards."""

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
from ...settings.definitions import MachineSettings
from ...train_utils import format_count, plural
from ..checks import attention_problems, liger_problems, raise_problems
from ..lora import autocast_model, compute_dtype, restore_methods
from .layer_patches import patch_base_layers
from .packed_attention import preserve_attention, use_packed_attention

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
_MAX_MMAP_THRESHOLD = 32 * 2**20  # the most that glibc accepts
OLD_TF32_FLAG, NEW_TF32_FLAG = "allow_tf32", "fp32_precision"
RECOMPILE_LIMIT = 64  # one compilation per length and kind of layer


@contextmanager
def apply_machine_settings(asked: MachineSettings, base: Any, job: Job) -> Iterator[None]:
    """Apply the machine settings to the model within this context; SettingsError if they cannot be applied."""
    device = base.device.type
    with ExitStack() as stack:
        stack.enter_context(keep_freed_memory(device))
        stack.enter_context(use_attention(asked.attention, base))
        if asked.packing != "off" and not asked.compile:  # a compiled layer cannot split the row into texts
            stack.enter_context(use_packed_attention(base))
        if device == "cuda":
            stack.enter_context(use_tf32(asked.tf32))
        if asked.liger:
            stack.enter_context(use_liger(base))
        elif not asked.compile:  # Liger and compile bring their own kernels
            stack.enter_context(patch_base_layers(base))
        if asked.workers and not count_workers(asked.workers):
            job.log.append(
                Note(
                    text="Workers: on this system, each worker would start the program again, so Training PRO "
                    "uses none."
                )
            )
        yield


@contextmanager
def keep_freed_memory(device: str) -> Iterator[None]:
    """Keep freed memory in this process on a Linux CPU: each step needs it again, and new pages are slow.

    On exit the memory is returned, with the thresholds that glibc itself reaches in a process with large tensors.
    """
    libc = _glibc() if device == "cpu" else None
    if libc is None:
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _MAX_MMAP_THRESHOLD)
        libc.malloc_trim(0)


def trim_memory() -> None:
    """Return free memory to the system, so that the next measurement starts from what is really used."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


@contextmanager
def use_attention(asked: str, base: Any) -> Iterator[None]:
    """Switch the attention implementation within this context; 'auto' leaves the one the model was loaded with."""
    if asked == "auto":
        yield
        return
    raise_problems(attention_problems(asked, base.device.type, compute_dtype(base)))
    model_class = type(base).__name__
    with preserve_attention(base):
        try:
            base.set_attn_implementation(asked)
        except (ValueError, ImportError) as error:
            raise SettingsError(
                [f"Attention: {model_class} does not support {asked} ({first_line(error)}). Choose auto."]
            ) from error
        if base.config._attn_implementation != asked:
            raise SettingsError([f"Attention: {model_class} does not support {asked}. Choose auto."])
        yield


@contextmanager
def use_tf32(on: bool) -> Iterator[None]:
    """Allow or forbid TF32 (much faster) for float32 matrix products on a GPU within this context."""
    saved = list(_tf32_flags())
    try:
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.allow_tf32 = on
        yield
    finally:
        for backend, name, value in saved:
            setattr(backend, name, value)


def _tf32_flags() -> Iterator[tuple[Any, str, Any]]:
    """Yield each TF32 flag as (object, name, value).

    Once a program has set torch's newer flags, the older ones can no longer be read.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    new_places = (matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None))
    flags = [(matmul, OLD_TF32_FLAG), (cudnn, OLD_TF32_FLAG), *((place, NEW_TF32_FLAG) for place in new_places)]
    for backend, name in flags:
        with suppress(RuntimeError, AttributeError):
            yield backend, name, getattr(backend, name)


@contextmanager
def use_liger(base: Any) -> Iterator[None]:
    """Patch the model with Liger's kernels within this context; the loss stays our own."""
    raise_problems(liger_problems(base.device.type))
    from transformers.integrations.liger import apply_liger_kernel

    with restore_methods(base):
        apply_liger_kernel(base, {"cross_entropy": False, "fused_linear_cross_entropy": False})
        yield


@contextmanager
def compile_layers(model: Any, asked: bool, job: Job) -> Iterator[None]:
    """Compile the model's layers within this context; if that fails, log it and train without."""
    layers = _longest_layer_list(model) if asked else []
    if not layers:
        if asked:
            job.log.append(
                Note(text="Compile: this model has no sequence of identical layers, so it is not compiled.")
            )
        yield
        return
    import torch._dynamo  # not an attribute of torch until it is imported

    # The webui disables dynamo.
    with torch._dynamo.config.patch(disable=False, recompile_limit=RECOMPILE_LIMIT):
        try:
            for layer in layers:
                layer.compile(dynamic=True)
            compiled = f"{format_count(len(layers), 'layer')} {plural(len(layers), 'is', 'are')} compiled."
            text = f"{compiled} Batches with a new sequence length may be slow at first."
            try:
                _run_one_step(model)
            except (RuntimeError, OSError, ImportError) as error:
                _uncompile(layers)
                text = (
                    f"compiling the layers failed ({first_line(error)}). The run continues without compiled "
                    "layers."
                )
            job.log.append(Note(text=f"Compile: {text}"))
            yield
        finally:
            _uncompile(layers)
            torch._dynamo.reset()


def _uncompile(layers: list[torch.nn.Module]) -> None:
    for layer in layers:
        layer._compiled_call_impl = None


def _run_one_step(model: Any) -> None:
    """Forward and backward over a few tokens, as in training; the gradients are dropped."""
    ids = torch.arange(16, device=model.device)[None]
    model.train()
    with autocast_model(model):  # in another dtype the layers would be recompiled at the first step
        loss = model(input_ids=ids, use_cache=False).logits.float().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad = None


def _longest_layer_list(model: Any) -> list[torch.nn.Module]:
    """Return the longest ModuleList whose layers are all of one class."""
    lists = [list(m) for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    uniform = [layers for layers in lists if layers and len({type(layer) for layer in layers}) == 1]
    return max(uniform, key=len, default=[])


def count_workers(asked: int, start_method: Callable[[], str] = multiprocessing.get_start_method) -> int:
    """Return the requested number of loader workers if they are forked; a spawned one would load the webui."""
    return asked if start_method() == "fork" else 0
