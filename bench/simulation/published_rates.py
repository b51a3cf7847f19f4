"""Published rates of training and our own, with their setups, and how near the simulation comes to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .simulator import GPUS, Setup, simulate

TOLERANCE = 0.15  # of a published rate
GIB = 2**30 / 1e9  # GB
GITHUB = "https://github.com"
TITAN = f"{GITHUB}/pytorch/torchtitan/blob"
OURS = "Training PRO"
SOURCES: Mapping[str, str] = {
    OURS: "benchmarks.md#on-a-gpu",
    "NeMo AutoModel": "https://docs.nvidia.com/nemo/automodel/latest/performance/performance-summary.md",
    "torchtitan, H100": f"{TITAN}/main/benchmarks/llama3_h100_202412_torchtitan.md",
    "torchtitan, TP": f"{TITAN}/main/benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md",
    "torchtitan, 2024": f"{TITAN}/4d88a8a44fe439f73f564b83d60b29a906ef3507/docs/performance.md",
    "fms-fsdp": f"{GITHUB}/foundation-model-stack/fms-fsdp",
    "KempnerForge": f"{GITHUB}/KempnerInstitute/KempnerForge/blob/main/benchmarks/mfu_scaling/mfu_scaling.md",
}


@dataclass(frozen=True)
class Point:
    """A published rate, in tokens per second of one GPU, and its exact setup."""

    source: str
    setup: Setup
    rate: float
    fitted: bool = False  # whether the share of the GPU's kind was fitted on it
    miss: str = ""  # why the simulation is not within the tolerance
    memory: float = 0.0  # bytes of one GPU, where published

    @property
    def error(self) -> float:
        return simulate(self.setup).rate / self.rate - 1


HALF_OF_PRODUCTS = 0.37
"""Share of a Llama layer that torchtitan's selective checkpointing repeats: every second matrix product."""
LORA = Setup("llama-3.1-8b", GPUS["h100"], rank=16)
NEMO_FSDP = replace(LORA, gpus=8, method="fsdp", tensor=2, accumulation=4, recomputed=1, compiled=True)
TITAN_H100 = Setup("llama-3.1-8b", GPUS["h100-500w"], 8, "fsdp", length=8192, recomputed=HALF_OF_PRODUCTS)
TITAN_A100 = Setup("llama-2-13b", GPUS["a100"], 64, "fsdp", network=6.25e9)
FMS_A100 = Setup("llama-2-7b", GPUS["a100"], 128, "fsdp", network=6.25e9)
FMS_H100 = Setup("llama-2-7b", GPUS["h100"], 96, "fsdp", network=12.5e9)
KEMPNER = replace(LORA, gpu=GPUS["h200"], rank=0, recomputed=1, compiled=True, per_machine=4, state_bytes=8)
TP, SMALL, UNKNOWN = "its tensor parallelism", "small products", "unexplained"
NETWORK, EAGER, KERNELS = "network assumed", "not compiled", "waits for Python"


def nemo(rate: float, setup: Setup, fitted: bool = False, **changes: Any) -> Point:
    return Point("NeMo AutoModel", replace(setup, **changes), rate, fitted)


def titan_h100(rate: float, gib: float, fitted: bool = False, **changes: Any) -> Point:
    return Point("torchtitan, H100", replace(TITAN_H100, **changes), rate, fitted, memory=gib * GIB * 1e9)


def titan_tensor(rate: float, miss: str = "", source: str = "torchtitan, TP", **changes: Any) -> Point:
    return Point(source, replace(TITAN_H100, tensor=8, **changes), rate, miss=miss)


def titan_a100(rate: float, model: str, fitted: bool = False, miss: str = "", **changes: Any) -> Point:
    return Point("torchtitan, 2024", replace(TITAN_A100, model=model, **changes), rate, fitted, miss)


def fms(rate: float, setup: Setup, miss: str = "", **changes: Any) -> Point:
    return Point("fms-fsdp", replace(setup, **changes), rate, miss=miss)


def kempner(
    total: float,
    gb: float,
    gpus: int,
    rows: tuple[int, int],
    miss: str = "",
    fitted: bool = False,
    **changes: Any,
) -> Point:
    """A point of KempnerForge, whose rates are those of all GPUs; `rows` are batch and accumulation."""
    setup = replace(KEMPNER, gpus=gpus, batch=rows[0], accumulation=rows[1], **changes)
    setup = replace(setup, method="fsdp" if setup.groups > 1 else "one")
    return Point("KempnerForge", setup, total / gpus, fitted, miss, gb * 1e9)


POINTS = (
    Point(OURS, replace(LORA, model="smollm2-1.7b", batch=1, accumulation=4), 18_400, miss=KERNELS, memory=14.9e9),
    nemo(1091.85, NEMO_FSDP, fitted=True, model="llama-3.1-70b"),
    nemo(12472.87, LORA, accumulation=16),
    nemo(14110.05, LORA, accumulation=16, model="qwen2.5-7b"),
    nemo(2250.31, NEMO_FSDP, model="qwen2.5-32b"),
    nemo(984.85, NEMO_FSDP, model="llama-3.1-70b", gpus=16, accumulation=2),
    nemo(2072.89, NEMO_FSDP, model="qwen2.5-32b", gpus=16, accumulation=2),
    fms(7500, FMS_H100, UNKNOWN),
    fms(1550, FMS_H100, model="codellama-34b", recomputed=1),
    fms(800, FMS_H100, model="llama-2-70b", recomputed=1),
    titan_h100(6667, 77.0, fitted=True, compiled=True),
    titan_h100(5762, 82.4),
    titan_h100(6514, 62.0, gpus=128, compiled=True),
    titan_h100(5605, 67.0, gpus=128),
    titan_tensor(597.3, model="llama-3.1-70b", gpus=256, batch=16, recomputed=1, compiled=True),
    titan_tensor(4378, SMALL, gpus=64, batch=12, compiled=True),
    titan_tensor(109, source="torchtitan, 2024", model="llama-3.1-405b", gpus=128, recomputed=1),
    titan_a100(2162, "llama-2-13b", fitted=True),
    titan_a100(1914, "llama-2-13b", recomputed=0.5),
    titan_a100(1904, "llama-2-13b", recomputed=HALF_OF_PRODUCTS),
    titan_a100(353, "llama-2-70b", recomputed=1),
    titan_a100(355, "llama-2-70b", miss=NETWORK, batch=1, recomputed=HALF_OF_PRODUCTS),
    titan_a100(2904, "llama-3.1-8b", batch=1, length=8192, recomputed=0.5),
    titan_a100(2973, "llama-3.1-8b", batch=1, length=8192, recomputed=HALF_OF_PRODUCTS),
    titan_a100(331, "llama-3.1-70b", batch=1, length=8192, recomputed=1),
    fms(3700, FMS_A100),
    fms(700, FMS_A100, model="codellama-34b", recomputed=1),
    fms(370, FMS_A100, model="llama-2-70b", recomputed=1),
    kempner(10471, 80.7, 1, (2, 4), fitted=True),
    kempner(18728, 62.4, 2, (2, 4)),
    kempner(38983, 61.1, 4, (4, 2)),
    kempner(35405, 88.5, 8, (4, 4), EAGER, model="kempner-13b", compiled=False),
    kempner(13163, 57.8, 2, (4, 2), TP, tensor=2),
    kempner(25135, 39.4, 4, (4, 2), TP, tensor=4),
    kempner(25980, 45.9, 4, (4, 2), TP, tensor=2),
    kempner(44299, 32.7, 8, (4, 2), TP, tensor=4),
    kempner(27345, 45.1, 8, (4, 4), TP, tensor=4, model="kempner-13b"),
    kempner(82988, 29.4, 16, (4, 2), TP, tensor=4),
    kempner(53814, 39.2, 16, (4, 4), TP, tensor=4, model="kempner-13b"),
    kempner(155917, 27.6, 32, (4, 2), TP, tensor=4),
    kempner(104309, 36.3, 32, (4, 4), TP, tensor=4, model="kempner-13b"),
    kempner(17657, 93.2, 32, (2, 4), tensor=4, model="llama-3.1-70b"),
)
"""Every bfloat16 rate of a dense model on these pages whose setup they name.

Left out: context, pipeline and asynchronous tensor parallelism, selective checkpointing of unknown share.
"""


def fit_share(point: Point) -> float:
    """The share of the GPU's peak at which the simulation gives a point's rate."""
    low, high = 0.05, 1.5
    for _ in range(40):
        middle = (low + high) / 2
        is_slower = simulate(with_share(point.setup, middle)).rate < point.rate
        low, high = (middle, high) if is_slower else (low, middle)
    return low


def with_share(setup: Setup, share: float) -> Setup:
    return replace(setup, gpu=replace(setup.gpu, share=share))


def hits(points: Iterable[Point], fitted: Point) -> int:
    """How many other points are within the tolerance when a GPU's share is fitted on this one."""
    share = fit_share(fitted)
    others = (replace(point, setup=with_share(point.setup, share)) for point in points if point is not fitted)
    return sum(abs(point.error) <= TOLERANCE for point in others)
