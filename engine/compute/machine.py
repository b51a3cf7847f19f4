"""The machine of a run: memory, attention, kernels and compiler, all restored afterwards, and how it is used."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from ...core.errors import ModelError, SettingsError, first_line
from ...core.jobs import Advice, EventLog, Job, MachineUse, Note, Step, peak_memory_of
from ...settings.definitions import MachineSettings
from ...train_utils import format_count, plural
from ..checks import attention_problems, liger_problems, raise_problems
from ..lora import autocast_model, compute_dtype, evaluation_context, restore_methods
from .hf_private import attention_of, preserve_attention
from .layer_patches import patch_base_layers, use_packed_attention
from .objective import probe_texts

# glibc's parameters of mallopt, and the largest value that it accepts for the second of them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD = -1, -3, 32 * 2**20
# Compilations of one function before torch gives up; there is one for each sequence length and kind of layer.
RECOMPILE_LIMIT = 64
# As for the attention of packed texts in half precision: kernels round in other places.
MAX_LIGER_DIFFERENCE = 5e-2
INTERVAL_SECONDS = 5.0  # a reading takes 0.14 ms on a CPU (docs/engine.md)
SLOW_SENSOR_SECONDS = 0.05  # a sensor that takes this long is not read again
# Memory spills if so many steps in a row take so many times as long per token as the median of the first steps.
SLOWDOWN_FACTOR, SLOW_STEPS, BASELINE_STEPS = 4.0, 3, 10
SPILL_ADVICE = (
    "Steps are many times slower than before, because VRAM is full and the driver has moved some of its contents "
    "to RAM. To fix this, close other programs that use the GPU, use a smaller True Batch Size with more Gradient "
    "Accumulation, or turn on gradient checkpointing."
)


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
        stack.enter_context(use_tf32(asked.tf32) if device == "cuda" else use_onednn())
        # Liger and compile bring their own kernels.
        wants_liger = asked.liger or not asked.compile
        has_kernels = wants_liger and stack.enter_context(use_liger(base, job, asked=asked.liger))
        if not has_kernels and not asked.compile:
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
def use_liger(base: Any, job: Job, *, asked: bool) -> Iterator[bool]:
    """Use Liger's kernels in this context if they are there and agree with the model; yields whether."""
    problems = list(liger_problems(base.device.type))
    if asked:
        raise_problems(problems)
    if problems:
        yield False
        return
    from transformers.integrations.liger import apply_liger_kernel

    texts, name = probe_texts(base), f"Liger kernels ({version('liger-kernel')})"
    with restore_methods(base):
        try:
            with evaluation_context(base):
                expected = base(input_ids=texts, use_cache=False).logits.float()
                # Without Liger's losses: ours also has the loss of each token.
                apply_liger_kernel(base, {"cross_entropy": False, "fused_linear_cross_entropy": False})
                logits = base(input_ids=texts, use_cache=False).logits.float()
            difference = float((logits - expected).norm() / expected.norm())
            reason = "" if difference <= MAX_LIGER_DIFFERENCE else f"they change the logits by {difference:.0%}"
        except Exception as error:  # noqa: BLE001 - compilers raise anything
            reason = first_line(error)
        if not reason:
            text = f"{name} are used: the logits of the model differ by {difference:.1g} with them."
            job.log.append(Note(text=text))
            yield True
            return
    if asked:
        raise SettingsError([f"{name} don't work with this model: {reason}. Turn Liger kernels off."])
    job.log.append(Note(text=f"{name} are not used, because they don't work with this model: {reason}."))
    yield False


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
def use_onednn() -> Iterator[None]:
    """Let oneDNN compute float32 matrix products within this context on AMD CPUs with AVX-512, where MKL is slow.

    torch then permits bfloat16 inside of them, but oneDNN uses it only on CPUs with AMX.
    """
    cpu: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    with ExitStack() as stack:
        if str(cpu.get("cpu_name")).startswith("AMD") and cpu.get("avx512_f") and not cpu.get("amx_tile"):
            with suppress(RuntimeError):  # a program has set torch's newer flags
                stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
                torch.set_float32_matmul_precision("medium")
        yield


@contextmanager
def compile_layers(model: Any, asked: bool, job: Job) -> Iterator[None]:
    """Compile the model's layers within this context; ModelError if they can't be compiled."""
    if not asked:
        yield
        return
    layers = layers_of(model)
    if not layers:
        raise ModelError("this model has no sequence of identical layers")
    from torch import _dynamo  # slow to import

    # The webui disables dynamo. Layers of one class: each is compiled by itself, and all of them share the code.
    with _dynamo.config.patch(disable=False, recompile_limit=RECOMPILE_LIMIT):
        try:
            for layer in layers:
                layer.compile(dynamic=True)
            try:
                # A step over a few tokens, in the dtype of training, for which they would be compiled anew.
                model.train()
                with autocast_model(model):
                    ids = torch.arange(16, device=model.device)[None]
                    loss = model(input_ids=ids, use_cache=False).logits.float().mean()
                loss.backward()
                model.zero_grad()
            except (RuntimeError, OSError, ImportError) as error:
                raise ModelError(f"compiling the layers failed ({first_line(error)})") from error
            compiled = f"{format_count(len(layers), 'layer')} {plural(len(layers), 'is', 'are')} compiled."
            text = f"Compile: {compiled} Batches with a new sequence length may be slow at first."
            job.log.append(Note(text=text))
            yield
        finally:
            for layer in layers:
                layer._compiled_call_impl = None  # torch has no public name for it (checked with torch 2.13)
            _dynamo.reset()


def layers_of(model: Any) -> list[torch.nn.Module]:
    """The layers of a model: its longest list of modules of one class."""
    lists = [list(module) for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    uniform = [layers for layers in lists if len({type(layer) for layer in layers}) == 1]
    return max(uniform, key=len, default=[])


@contextmanager
def keep_saved_tensors_in_ram(base: Any) -> Iterator[None]:
    """Move what the model saves for its gradients to RAM; with checkpointing, that is the input of each layer."""
    forward, own = base.forward, vars(base).get("forward")

    def offloading(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.save_on_cpu(pin_memory=base.device.type == "cuda"):
            return forward(*args, **kwargs)

    base.forward = offloading
    try:
        yield
    finally:
        del base.forward
        if own is not None:
            base.forward = own


def count_workers(asked: int, start_method: Callable[[], str] = multiprocessing.get_start_method) -> int:
    """Return the requested number of loader workers if they are forked; a spawned one would load the webui."""
    return asked if start_method() == "fork" else 0


class MachineMonitor:
    """Samples the machine between steps, every few seconds, and logs what has changed."""

    def __init__(self, device: torch.device, log: EventLog) -> None:
        self._on_gpu, self._log = device.type == "cuda", log
        # Windows moves GPU memory into system memory when a GPU is full, instead of failing.
        self._may_spill = sys.platform == "win32" and self._on_gpu
        self._first_times: list[float] = []
        self._slow_steps = 0
        self._disabled_sensors: set[str] = set()
        self._sampled_at, self._last = -math.inf, MachineUse(cards=0, peak=0)
        self._peak = peak_memory_of(log.since(0))  # of earlier run segments
        _reset_peak(self._on_gpu)
        self._system_peak = 0 if self._on_gpu else _system_peak()

    def observe_step(self, progress: Step) -> None:
        """Observe a finished step, with advice if memory spills."""
        seconds_per_token = progress.seconds / max(1, progress.tokens)
        if self._may_spill and len(self._first_times) < BASELINE_STEPS:
            self._first_times.append(seconds_per_token)
        elif self._may_spill:
            is_slow = seconds_per_token > SLOWDOWN_FACTOR * median(self._first_times)
            self._slow_steps = self._slow_steps + 1 if is_slow else 0
            if self._slow_steps == SLOW_STEPS:
                self._may_spill = False  # said once
                self._log.append(Advice(text=SPILL_ADVICE))
        self.observe()

    def observe(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._sampled_at < INTERVAL_SECONDS and not at_once:
            return
        self._sampled_at = now
        if self._on_gpu:  # by torch's own counters, without synchronizing
            gpus = [gpu for gpu in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(gpu)]
            self._peak = max(self._peak, _sum_over_gpus(torch.cuda.max_memory_reserved))
            use = MachineUse(
                cards=max(1, len(gpus)),
                peak=self._peak,
                total=sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus),
                busy=self._read_sensor("utilization", gpus, lambda values: sum(values) / len(values)),
                celsius=self._read_sensor("temperature", gpus, max),
                watts=self._read_sensor("power_draw", gpus, lambda values: sum(values) / 1000),
            )
        else:
            # Where the peak that the system counts was reached before the run, the highest sample has to do.
            peak = _system_peak()
            self._peak = max(self._peak, peak if peak > self._system_peak else psutil.Process().memory_info().rss)
            use = MachineUse(cards=0, peak=self._peak, total=psutil.virtual_memory().total)
        if use != replace(self._last, at=use.at):
            self._log.append(use)
            self._last = use

    def _read_sensor(self, name: str, gpus: list[int], combine: Callable[[Sequence[float]], float]) -> int | None:
        """Read a sensor of all GPUs as one value; None if it failed or was slow the last time."""
        if name in self._disabled_sensors or not gpus:
            return None
        began, value = time.monotonic(), None
        # Torch reads them through a package that is rarely installed (nvidia-ml-py, amdsmi) and may raise
        # anything.
        with suppress(Exception):
            value = round(combine([float(getattr(torch.cuda, name)(gpu)) for gpu in gpus]))
        if value is None or time.monotonic() - began > SLOW_SENSOR_SECONDS:
            self._disabled_sensors.add(name)
        return value


def measure_peak(step: Callable[[], None], device: torch.device) -> int:
    """Return by how many bytes the memory rises during a step; 0 where that cannot be measured."""
    on_gpu = device.type == "cuda"
    trim_memory()
    can_measure = _reset_peak(on_gpu)
    before = _sum_over_gpus(torch.cuda.memory_allocated) if on_gpu else psutil.Process().memory_info().rss
    step()
    peak = _sum_over_gpus(torch.cuda.max_memory_allocated) if on_gpu else _system_peak()
    return peak - before if can_measure else 0


def _sum_over_gpus(count_bytes: Callable[[int], int]) -> int:
    return int(sum(map(count_bytes, range(torch.cuda.device_count()))))


def _reset_peak(on_gpu: bool) -> bool:
    """Reset the peak of the GPUs or of this process; that of a process only on Linux, if /proc is writable."""
    if on_gpu:
        for gpu in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(gpu)
        return True
    if not sys.platform.startswith("linux"):
        return False
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # 5: the peak (proc_pid_clear_refs(5))
    except OSError:
        return False
    return True


def _system_peak() -> int:
    """Return the peak of the process, 0 where the system counts none."""
    if not sys.platform.startswith("linux"):
        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))  # Windows
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    fields = status.partition("VmHWM:")[2].split(maxsplit=1)  # in kB
    return int(fields[0]) * 1024 if fields else 0
