"""The time, memory and network traffic of a training step, from the sizes of model, GPUs and links.

A step is a sum: matrix products at a share of the GPU's peak, everything else at the bandwidth of its memory, and
the part of the network's work that nothing hides. The share is the only fitted number, one for each kind of GPU.
docs/scale.md explains the arithmetic, published_rates.py has the points.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...core.model_shape import ModelShape, model_bytes

USABLE_SHARE = 0.95  # of a GPU's memory
LINK_SHARE = 0.8  # of a link's nominal bandwidth that NCCL's large all-gathers reach
HALF, SINGLE = 2, 4  # bytes of a number in bfloat16 and in float32
ADAM_BYTES, FULL_BYTES = 28, 16
"""Bytes of a trained weight: moved by a step of AdamW; of it, its gradient and both moments, all in float32."""
EAGER, FUSED = (36, 6, 18, 10), (4, 6, 4, 6)
"""Bytes that the forward pass moves for each number of norms, residuals, queries and keys, the MLP's product.

Eager: one kernel for each operation of transformers' Llama, in bfloat16 with norms in float32. Fused: one read of
each input and one write of the output. The backward pass moves twice as many.
"""
LORA_INPUT, LORA_OUTPUT = 10, 12
"""Bytes that a LoRA moves for each input and output of its layer, forward and backward together."""
LOGIT_BYTES = 30  # that the loss moves for each logit: cast, softmax, gradient


def llama(hidden: int, layers: int, feed: int, heads: int, kv_heads: int, vocabulary: int) -> ModelShape:
    """A model with the layers of Llama; its head is not tied to its embeddings."""
    return ModelShape(hidden, layers, feed, heads, kv_heads, hidden // heads, vocabulary, gated=True, tied=False)


MODELS: Mapping[str, ModelShape] = {
    "smollm2-1.7b": llama(2048, 24, 8192, 32, 32, 49_152),
    "llama-2-7b": llama(4096, 32, 11008, 32, 32, 32_000),
    "llama-2-13b": llama(5120, 40, 13824, 40, 40, 32_000),
    "llama-2-70b": llama(8192, 80, 28672, 64, 8, 32_000),
    "codellama-34b": llama(8192, 48, 22016, 64, 8, 32_000),
    "llama-3.1-8b": llama(4096, 32, 14336, 32, 8, 128_256),
    "llama-3.1-70b": llama(8192, 80, 28672, 64, 8, 128_256),
    "llama-3.1-405b": llama(16384, 126, 53248, 128, 8, 128_256),
    "kempner-13b": llama(5120, 40, 17920, 40, 8, 128_256),
    "qwen2.5-7b": llama(3584, 28, 18944, 28, 4, 152_064),
    "qwen2.5-32b": llama(5120, 64, 27648, 40, 8, 152_064),
}


@cache
def find_shape(name: str) -> ModelShape:
    """The shape of a known model, or of the one whose config.json lies in a folder."""
    if name in MODELS:
        return MODELS[name]
    path = Path(name) / "config.json"
    with suppress(OSError, ValueError):
        if shape := ModelShape.of(json.loads(path.read_text(encoding="utf-8"))):
            return shape
    raise SystemExit(f"There is no model {name!r}. Name a folder with a config.json, or {', '.join(MODELS)}.")


@dataclass(frozen=True)
class Gpu:
    """A GPU: its data sheet, and the share of its peak that matrix products reach."""

    name: str
    flops: float  # per second, bfloat16, dense
    bandwidth: float  # bytes per second of its memory
    memory: float  # bytes
    link: float  # bytes per second to the other GPUs of its machine, in one direction
    share: float  # fitted on one point, see POINTS


GPUS: Mapping[str, Gpu] = {
    "a100": Gpu("A100 80 GB", 312e12, 2.0e12, 80e9, 300e9, 0.64),
    "h100": Gpu("H100 SXM", 989e12, 3.35e12, 80e9, 450e9, 0.56),
    "h100-500w": Gpu("H100, 500 W, HBM2e", 989e12, 2.4e12, 96e9, 450e9, 0.42),
    "h200": Gpu("H200", 989e12, 4.8e12, 141e9, 450e9, 0.73),
}


@dataclass(frozen=True)
class Setup:
    """What a step depends on."""

    model: str
    gpu: Gpu
    gpus: int = 1
    method: str = "one"  # one, ddp or fsdp
    tensor: int = 1  # GPUs that share each layer (tensor parallel)
    batch: int = 2  # rows of a micro-batch, for each group of `tensor` GPUs
    accumulation: int = 1
    length: int = 4096
    rank: int = 0  # of a LoRA; 0 is full fine-tuning
    targets: tuple[str, ...] | None = None  # None is all linear layers
    recomputed: float = 0.0  # share of the forward pass of the layers: 1 with gradient checkpointing
    compiled: bool = False
    per_machine: int = 8
    network: float = 50e9  # bytes per second of a GPU's share of the network of its machine
    latency: float = 10e-6  # seconds of one hop
    state_bytes: int = FULL_BYTES  # of a weight in full fine-tuning

    @property
    def shape(self) -> ModelShape:
        return find_shape(self.model)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch, of one group of GPUs."""
        return self.batch * self.length

    @property
    def groups(self) -> int:
        """Groups of GPUs, each with rows of its own."""
        return self.gpus // self.tensor

    @property
    def step_tokens(self) -> int:
        return self.tokens * self.accumulation * self.groups

    @property
    def weights(self) -> int:
        """All weights of the model."""
        return self.shape.linear_weights + self.shape.other_weights

    @property
    def trained(self) -> int:
        return self.shape.lora_weights(self.rank, self.targets) if self.rank else self.weights

    @property
    def sharded(self) -> bool:
        return self.method == "fsdp" and self.groups > 1

    def problem(self) -> str:
        """Why there is no such setup; empty where there is one."""
        if self.gpus % self.tensor:
            return f"{self.gpus} GPUs can't be divided into groups of {self.tensor}. Choose another --tensor."
        if self.method == "one" and self.groups > 1:
            return f"Method one uses --tensor GPUs, {self.tensor}, but --gpus is {self.gpus}. Choose ddp or fsdp."
        if unknown := set(self.targets or ()) - self.shape.linears.keys():
            layers = ", ".join(self.shape.linears)
            return f"The model has no layers {', '.join(sorted(unknown))}. Choose --targets from {layers}."
        if self.shape.experts:
            return f"{self.model} has experts, which are not simulated. Choose a dense model."
        if self.shape.kv_heads % self.tensor:
            return f"{self.shape.kv_heads} key heads can't be divided among {self.tensor} GPUs. Lower --tensor."
        return ""


@dataclass(frozen=True)
class Traffic:
    """Bytes that one GPU sends in a step, by purpose."""

    gather: float = 0.0  # weights, before they are used
    reduce: float = 0.0  # gradients
    tensor: float = 0.0  # activations between the GPUs that share a layer

    @property
    def total(self) -> float:
        return self.gather + self.reduce + self.tensor


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, by arithmetic; what the allocator and the libraries need comes on top."""

    weights: float
    trained: float  # trained weights with gradients and optimizer state
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return self.weights + self.trained + self.activations + self.logits


@dataclass(frozen=True)
class Step:
    """A simulated step."""

    setup: Setup
    products: float  # seconds, as the others
    elementwise: float
    network: float  # that nothing hides
    optimizer: float
    traffic: Traffic
    memory: Memory

    @property
    def seconds(self) -> float:
        return self.products + self.elementwise + self.network + self.optimizer

    @property
    def rate(self) -> float:
        """Tokens per second of one GPU."""
        return self.setup.step_tokens / self.seconds / self.setup.gpus

    @property
    def mfu(self) -> float:
        """Share of the GPU's peak, without what is computed twice; frozen weights need no gradient."""
        return self.rate * model_flops(self.setup) / self.setup.gpu.flops

    @property
    def fits(self) -> bool:
        return self.memory.total <= USABLE_SHARE * self.setup.gpu.memory


def layer_flops(setup: Setup) -> float:
    """Operations of the layers for one token, forward: two for each weight, and causal attention."""
    shape = setup.shape
    return 2 * shape.linear_weights + 2 * setup.length * shape.heads * shape.head * shape.layers


def head_flops(setup: Setup) -> float:
    return 2 * setup.shape.vocabulary * setup.shape.hidden


def gradient_flops(setup: Setup) -> float:
    """Operations for the gradients of the trained matrices, and a LoRA's own passes."""
    if setup.rank:
        return 6 * setup.trained
    return 2 * (setup.shape.linear_weights + setup.shape.vocabulary * setup.shape.hidden)


def model_flops(setup: Setup) -> float:
    """Operations for one token, as MFU counts them; the backward pass of attention is twice its forward pass."""
    return 2 * (layer_flops(setup) + head_flops(setup)) + attention_flops(setup) + gradient_flops(setup)


def attention_flops(setup: Setup) -> float:
    return layer_flops(setup) - 2 * setup.shape.linear_weights


def product_seconds(setup: Setup) -> float:
    """Seconds of the matrix products of a micro-batch."""
    flops = model_flops(setup) + setup.recomputed * layer_flops(setup)
    return setup.tokens * flops / setup.tensor / (setup.gpu.flops * setup.gpu.share)


def elementwise_bytes(setup: Setup) -> float:
    """Bytes of memory traffic for one token beside the matrix products."""
    shape, moved = setup.shape, FUSED if setup.compiled else EAGER
    rotated = (shape.heads + shape.kv_heads) * shape.head
    numbers = (2 * shape.hidden, 2 * shape.hidden, rotated, shape.feed)
    forward = sum(width * count for width, count in zip(moved, numbers, strict=True))
    lora = sum(LORA_INPUT * wide + LORA_OUTPUT * narrow for wide, narrow in targeted(setup))
    return shape.layers * ((3 + setup.recomputed) * forward + lora) + LOGIT_BYTES * shape.vocabulary


def targeted(setup: Setup) -> list[tuple[int, int]]:
    """The widths of the layers of a block that get a LoRA."""
    named = setup.shape.linears.items()
    return [widths for name, widths in named if setup.rank and (setup.targets is None or name in setup.targets)]


def elementwise_seconds(setup: Setup) -> float:
    return setup.tokens * elementwise_bytes(setup) / setup.tensor / setup.gpu.bandwidth


def group_bandwidth(setup: Setup) -> float:
    """Bytes per second of a ring of GPUs with different rows: the slower of links and network."""
    per_machine = max(1, setup.per_machine // setup.tensor)
    if setup.groups <= per_machine:
        return LINK_SHARE * setup.gpu.link
    return LINK_SHARE * min(setup.gpu.link, per_machine * setup.network)


def ring_seconds(setup: Setup, sent: float, hops: int) -> float:
    return sent / group_bandwidth(setup) + hops * setup.latency


def traffic(setup: Setup) -> Traffic:
    """Bytes that one GPU sends in a step; a ring over n GPUs sends (n - 1) / n of a buffer."""
    around, own_trained = 1 - 1 / setup.groups, setup.trained / setup.tensor
    activations = (1 - 1 / setup.tensor) * HALF * setup.tokens * setup.shape.hidden
    tensor = 4 * (2 + setup.recomputed) * setup.shape.layers * activations * setup.accumulation
    if not setup.sharded:
        return Traffic(reduce=2 * around * SINGLE * own_trained, tensor=tensor)
    gathered = 2 * HALF * around * setup.weights / setup.tensor
    return Traffic(gathered * setup.accumulation, around * SINGLE * own_trained * setup.accumulation, tensor)


def network_seconds(setup: Setup, computing: float) -> float:
    """Seconds of the network that a step waits for; `computing` is a micro-batch without them.

    FSDP hides all but the first layer behind the computation, as long as that takes longer. Data parallel hides
    its one reduction behind the last backward pass. Nothing hides the activations of tensor parallel.
    """
    sent = traffic(setup)
    waiting = sent.tensor / (LINK_SHARE * setup.gpu.link)
    if setup.groups == 1:
        return waiting
    hops = setup.groups - 1
    if not setup.sharded:
        return waiting + max(0.0, ring_seconds(setup, sent.reduce, 2 * hops) - computing * 2 / 3)
    layers = setup.shape.layers
    per_pass = ring_seconds(setup, (sent.gather + sent.reduce) / setup.accumulation, 3 * layers * hops)
    first = ring_seconds(setup, sent.gather / setup.accumulation / 2 / layers, hops)
    return waiting + setup.accumulation * (first + max(0.0, per_pass - computing))


def memory(setup: Setup) -> Memory:
    """Bytes on one GPU; FSDP holds two whole layers at a time, and tensor parallel all logits on each GPU."""
    shape, parts = setup.shape, setup.tensor * (setup.groups if setup.sharded else 1)
    layer = HALF * shape.linear_weights / shape.layers / setup.tensor
    frozen = model_bytes(shape, "bfloat16") / parts if setup.rank else 0.0
    kept = setup.tokens / setup.tensor * kept_bytes(setup)
    return Memory(
        weights=frozen + (2 * layer if setup.sharded else 0.0),
        trained=(FULL_BYTES if setup.rank else setup.state_bytes) * setup.trained / parts,
        activations=kept,
        logits=setup.tokens * shape.vocabulary * (HALF + 2 * SINGLE),
    )


def kept_bytes(setup: Setup) -> float:
    """Bytes of activations that one token keeps for the backward pass."""
    shape = setup.shape
    attention = 2 * shape.heads * shape.head + 2 * shape.kv_heads * shape.head
    layer = HALF * (4 * shape.hidden + attention + 4 * shape.feed)
    return shape.layers * (HALF * shape.hidden + (1 - setup.recomputed) * layer) + setup.recomputed * layer


def simulate(setup: Setup) -> Step:
    """The step of a setup."""
    products, elementwise = product_seconds(setup), elementwise_seconds(setup)
    own_trained = setup.trained / setup.tensor / (setup.groups if setup.sharded else 1)
    return Step(
        setup=setup,
        products=products * setup.accumulation,
        elementwise=elementwise * setup.accumulation,
        network=network_seconds(setup, products + elementwise),
        optimizer=ADAM_BYTES * own_trained / setup.gpu.bandwidth,
        traffic=traffic(setup),
        memory=memory(setup),
    )
