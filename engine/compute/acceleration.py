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
from .hf_private import attention_of, preserve_attention
from .layer_patches import patch_base_layers
from .packed_attention import use_packed_attention

# glibc's parameters of mallopt, and the largest value that it accepts for the second of them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD = -1, -3, 32 * 2**20
# Compilations of one function before torch gives up; there is one for each sequence length and kind of layer.
RECOMPILE_LIMIT = 64


@contextmanager
def apply_machine_settings(asked: MachineSettings, base: Any, job: Job) -> Iterator[None]:
    """Apply the machine settings to the model within this context; SettingsError if they cannot be applied."""
    device = base.device.type
    with ExitStack() as stack:
        if device == "cpu" and (libc := _glibc()):
            # Keep freed memory in this process: each step needs it again, and new pages are slow. The thresholds
            # can't be read, so those are set afterwards that glibc itself reaches in a process with large tensors.
            libc.mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
            stack.callback(trim_memory)
            stack.callback(libc.mallopt, _M_TRIM_THRESHOLD, 2 * _MAX_MMAP_THRESHOLD)
        if asked.attention != "auto":  # the one that the model was loaded with
            raise_problems(attention_problems(asked.attention, device, compute_dtype(base)))
            stack.enter_context(preserve_attention(base))
            unsupported = f"Attention: {type(base).__name__} does not support {asked.attention}"
            try:
                base.set_attn_implementation(asked.attention)
            except (ValueError, ImportError) as error:
                raise SettingsError([f"{unsupported} ({first_line(error)}). Choose auto."]) from error
            if attention_of(base) != asked.attention:  # some models only warn, and use another one
                raise SettingsError([f"{unsupported}. Choose auto."])
        if asked.packing != "off" and not asked.compile:  # a compiled layer cannot split the row into texts
            stack.enter_context(use_packed_attention(base))
        if device == "cuda":
            stack.enter_context(use_tf32(asked.tf32))
        if asked.liger:
            raise_problems(liger_problems(device))
            from transformers.integrations.liger import apply_liger_kernel

            stack.enter_context(restore_methods(base))
            # Without Liger's losses: ours also has the loss of each token.
            apply_liger_kernel(base, {"cross_entropy": False, "fused_linear_cross_entropy": False})
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


def trim_memory() -> None:
    """Return free memory to the system, so that the next measurement starts from what is really used."""
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


@contextmanager
def use_tf32(on: bool) -> Iterator[None]:
    """Allow or forbid TF32 (much faster) for float32 matrix products on a GPU within this context."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    newer_places = (matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None))
    saved = []
    for place, name in [
        (matmul, "allow_tf32"),
        (cudnn, "allow_tf32"),
        *((place, "fp32_precision") for place in newer_places),
    ]:
        # Once a program has set torch's newer flags (fp32_precision), the older ones can no longer be read.
        with suppress(RuntimeError, AttributeError):
            saved.append((place, name, getattr(place, name)))
    try:
        for backend in (matmul, cudnn):
            backend.allow_tf32 = on
        yield
    finally:
        for place, name, value in saved:
            setattr(place, name, value)


@contextmanager
def compile_layers(model: Any, asked: bool, job: Job) -> Iterator[None]:
    """Compile the model's layers within this context; if that fails, log it and train without."""
    if not asked:
        yield
        return
    # Layers of one class: each is compiled by itself, and all of them share the code.
    lists = [list(module) for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    uniform = [layers for layers in lists if len({type(layer) for layer in layers}) == 1]
    layers = max(uniform, key=len, default=[])
    if not layers:
        text = "this model has no sequence of identical layers, so it is not compiled."
        job.log.append(Note(text=f"Compile: {text}"))
        yield
        return
    from torch import _dynamo  # slow to import

    # The webui disables dynamo.
    with _dynamo.config.patch(disable=False, recompile_limit=RECOMPILE_LIMIT):
        try:
            for layer in layers:
                layer.compile(dynamic=True)
            compiled = f"{format_count(len(layers), 'layer')} {plural(len(layers), 'is', 'are')} compiled."
            text = f"{compiled} Batches with a new sequence length may be slow at first."
            try:
                # A step over a few tokens, in the dtype of training, for which they would be compiled anew.
                model.train()
                with autocast_model(model):
                    ids = torch.arange(16, device=model.device)[None]
                    loss = model(input_ids=ids, use_cache=False).logits.float().mean()
                loss.backward()
                model.zero_grad()
            except (RuntimeError, OSError, ImportError) as error:
                _uncompile(layers)
                reason = first_line(error)
                text = f"compiling the layers failed ({reason}). The run continues without compiled layers."
            job.log.append(Note(text=f"Compile: {text}"))
            yield
        finally:
            _uncompile(layers)
            _dynamo.reset()


def _uncompile(layers: list[torch.nn.Module]) -> None:
    for layer in layers:
        layer._compiled_call_impl = None  # torch has no public name for it (checked with torch 2.13)


def count_workers(asked: int, start_method: Callable[[], str] = multiprocessing.get_start_method) -> int:
    """Return the requested number of loader workers if they are forked; a spawned one would load the webui."""
    return asked if start_method() == "fork" else 0
