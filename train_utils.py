"""Arithmetic and names of a run: steps, warm-up, accumulation, smoothed loss, memory, durations."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

SMOOTHING = 0.9
MAX_WARMUP = 100


@dataclass(frozen=True)
class StepPlan:
    """The number of steps of a run; one step is one change of the weights."""

    examples: int
    batch_size: int
    accumulation: int
    epochs: float
    max_steps: int = 0
    processes: int = 1

    @property
    def batches(self) -> int:
        """Batches of each process in an epoch; the last one may be smaller."""
        return math.ceil(math.ceil(self.examples / self.batch_size) / self.processes)

    @property
    def effective_accumulation(self) -> int:
        """The effective accumulation: never more batches than an epoch has."""
        return max(1, min(self.accumulation, self.batches))

    @property
    def examples_per_step(self) -> int:
        """The examples of a step, over all processes."""
        return self.batch_size * self.effective_accumulation * self.processes

    @property
    def repeated_examples(self) -> int:
        """Examples repeated at the end of an epoch so that every process has the same number of batches."""
        if self.processes == 1:
            return 0
        return self.batches * self.batch_size * self.processes - self.examples

    @property
    def steps_per_epoch(self) -> int:
        return max(1, math.ceil(self.batches / self.effective_accumulation))

    @property
    def steps(self) -> int:
        if self.max_steps:
            return self.max_steps
        return max(1, _round_up(self.epochs * self.steps_per_epoch))

    def occurrences(self, every: int) -> int:
        """How often an action runs that is due before the first step, every `every` steps, and at the end."""
        return math.ceil(self.steps / every) + 1

    def warmup(self, asked: float) -> int:
        """Warm-up in steps: `asked` is a number of steps from 1 on, below 1 a share of the run, with a limit."""
        if asked >= 1:
            return int(asked)
        return min(_round_up(asked * self.steps), MAX_WARMUP, self.steps_per_epoch)


def _round_up(steps: float) -> int:
    """Round up to whole steps, but not because a product such as 0.07 * 100 is slightly above 7."""
    return math.ceil(steps - 1e-9)


def smooth_loss(previous: float | None, loss: float) -> float:
    """The smoothed loss: it begins at the first step's loss and then moves a tenth of the way."""
    return loss if previous is None else SMOOTHING * previous + (1 - SMOOTHING) * loss


def perplexity(loss: float) -> float:
    """The number of tokens a model hesitates between at each place, by its mean loss."""
    return math.exp(loss) if not loss > 700 else math.inf


def duration(seconds: float) -> str:
    """A length of time in words: '0.25 s', '45 s', '3 min 20 s', '2 h 05 min'."""
    if 0 < seconds < 9.95:
        return f"{seconds:.2g} s"
    whole_seconds = max(0, round(seconds))
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60:02d} s"
    return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60:02d} min"


YEAR_SECONDS = 365.25 * 86400
MAX_CLOCK_SECONDS = 100 * YEAR_SECONDS
"""Beyond this a time of day is meaningless, and eventually datetime cannot represent the date."""


def time_of_day(moment: float, now: float) -> str:
    """A moment in words, as seen from `now`: '06:40', '06:40 tomorrow', '06:40 in 3 days'."""
    if moment - now > MAX_CLOCK_SECONDS:
        return f"in {(moment - now) / YEAR_SECONDS:,.0f} years"
    day, today = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    days = (day.date() - today.date()).days
    return f"{day:%H:%M}" + {0: "", 1: " tomorrow"}.get(days, f" in {days} days")


def size(byte_count: float) -> str:
    """A size in words, in the decimal units of file managers: '98 MB', '1.4 GB'."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        count = byte_count / scale
        if count >= 0.9995:  # would be rounded to 1000 of the smaller unit
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
    return f"{int(byte_count)} bytes"


def plural(count: float, one: str, many: str = "") -> str:
    """The word for a count: 'step' for 1, 'steps' for 0 and 2."""
    return one if count == 1 else many or f"{one}s"


def format_count(count: int, one: str, many: str = "") -> str:
    """'1 step', '2,000 steps'."""
    return f"{count:,} {plural(count, one, many)}"


def format_times(count: int) -> str:
    """'once', '2 times'."""
    return "once" if count == 1 else f"{count:,} times"


def format_times_range(least: int, most: int) -> str:
    """'once', '2 times', '1 to 3 times'."""
    return format_times(most) if least == most else f"{least} to {most} times"


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A sort key that puts 'chapter 2' before 'chapter 10'."""
    parts = re.split(r"(\d+)", name.casefold())
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts]


def checkpoint_name(step: int, reason: str) -> str:
    """The folder name of a checkpoint: 'checkpoint-120', 'checkpoint-120-user', 'checkpoint-120-epoch-2'."""
    return f"checkpoint-{step}" + (f"-{reason}" if reason else "")


def checkpoint_step(folder_name: str) -> int | None:
    """The step in a checkpoint's folder name, or None for another folder."""
    match = re.fullmatch(r"checkpoint-(\d+)(?:-.+)?", folder_name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture-of-experts layer; libraries keep them in one tensor."""

    count: int
    feed: int  # the width of each
    per_token: int  # experts per token
    shared: int = 0  # the width of the shared MLP that every token passes
    without: int = 0  # layers with a dense MLP instead
    takes_lora: bool = False
    """A LoRA on MLP layers is put on the experts and on no shared MLP; one on all layers, on the router too."""


@dataclass(frozen=True)
class ParamCounts:
    """Parameter counts of a model, from a meta model where the arithmetic does not know its layers."""

    linear: int
    other: int
    lora: int  # weights of a LoRA of rank 1 on the target layers


def get_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text model, for a config.json with several models."""
    return {**config, **_section(config, "text_config")}


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model, from its config.json."""

    hidden: int
    layers: int
    feed: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    gated: bool
    tied: bool
    lean_gate: bool = False  # the gate keeps two of its three tensors: engine/compute/layer_patches.py
    experts: Experts | None = None
    counted: ParamCounts | None = None

    @staticmethod
    def of(config: Mapping[str, Any], counted: ParamCounts | None = None) -> ModelShape | None:
        """The shape, or None where the config does not say enough."""
        text_config = get_text_config(config)
        hidden, layers = (
            _first_int(text_config, "hidden_size", "n_embd", "d_model"),
            _first_int(text_config, "num_hidden_layers", "n_layer"),
        )
        vocabulary, heads = (
            _first_int(text_config, "vocab_size"),
            _first_int(text_config, "num_attention_heads", "n_head") or 1,
        )
        if not hidden or not layers or not vocabulary:
            return None
        feed = _first_int(text_config, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
        return ModelShape(
            hidden=hidden,
            layers=layers,
            feed=feed,
            heads=heads,
            kv_heads=_first_int(text_config, "num_key_value_heads", "num_kv_heads") or heads,
            head=_first_int(text_config, "head_dim") or hidden // heads,
            vocabulary=vocabulary,
            gated=text_config.get("model_type") not in UNGATED_TYPES,
            tied=bool(text_config.get("tie_word_embeddings", True)),
            lean_gate=text_config.get("hidden_act") == "silu" and text_config.get("model_type") != "phi3",
            experts=_experts(text_config, feed, layers),
            counted=counted,
        )

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """The linear layers of most decoder layers, with their input and output widths."""
        return self._linear_sizes(self._feed_widths[-1][1])

    def _linear_sizes(self, feed: int) -> dict[str, tuple[int, int]]:
        query, keys = self.heads * self.head, self.kv_heads * self.head
        layers = {
            "q": (self.hidden, query),
            "k": (self.hidden, keys),
            "v": (self.hidden, keys),
            "o": (query, self.hidden),
        }
        feeds = {"up": (self.hidden, feed), "down": (feed, self.hidden)}
        feeds |= {"gate": (self.hidden, feed)} if self.gated else {}
        return layers | feeds if feed else layers

    @property
    def _feed_widths(self) -> list[tuple[int, int]]:
        """The number of decoder layers with an MLP of this width, in linear layers."""
        if self.experts is None:
            return [(self.layers, self.feed)]
        without = self.experts.without
        return [(without, self.feed), (self.layers - without, self.experts.shared)]

    def _linear_layers(self) -> Iterator[tuple[int, str, int, int]]:
        """For each linear layer: the number of decoder layers that have it, its name, and both widths."""
        for count, feed in self._feed_widths:
            for name, (wide, narrow) in self._linear_sizes(feed).items():
                yield count, name, wide, narrow

    @property
    def linear_weights(self) -> int:
        if self.counted:
            return self.counted.linear
        return sum(count * wide * narrow for count, _, wide, narrow in self._linear_layers())

    @property
    def other_weights(self) -> int:
        """Embeddings, head, norms and experts: the weights that stay in the model's own dtype."""
        if self.counted:
            return self.counted.other
        experts, matrices = self.experts, 3 if self.gated else 2
        without_experts = (
            self.vocabulary * self.hidden * (1 if self.tied else 2) + (2 * self.layers + 1) * self.hidden
        )
        if experts is None:
            return without_experts
        layer_experts = experts.count * self.hidden * (matrices * experts.feed + 1)
        return without_experts + (self.layers - experts.without) * layer_experts

    def lora_weights(self, rank: int, parts: Collection[str] | None = None) -> int:
        if self.counted:
            return rank * self.counted.lora
        targets = [side for side in self._linear_layers() if self._is_target(side[1], parts)]
        dense = sum(count * rank * (wide + narrow) for count, _, wide, narrow in targets)
        return dense + rank * self._expert_lora_weights(parts)

    def _is_target(self, name: str, parts: Collection[str] | None) -> bool:
        is_asked = parts is None or name in parts
        return is_asked and not (self.experts and self.experts.takes_lora and name in MLP_LAYERS)

    def _expert_lora_weights(self, parts: Collection[str] | None) -> int:
        """LoRA weights of rank 1 on experts and routers; up and gate share a tensor, each with its own rank."""
        experts = self.experts
        if experts is None or not experts.takes_lora:
            return 0
        up_weights = 2 * (self.hidden + 2 * experts.feed) if parts is None or FUSED_LAYERS.issubset(parts) else 0
        down_weights = experts.feed + self.hidden if parts is None or "down" in parts else 0
        router_weights = self.hidden + experts.count if parts is None else 0
        return (self.layers - experts.without) * (experts.count * (up_weights + down_weights) + router_weights)

    def recreated_numbers(self, parts: Collection[str] | None, *, checkpointing: bool) -> int:
        """Numbers that a step creates anew: experts merged with their LoRA, and the gradient of one layer's."""
        experts = self.experts
        if experts is None or not experts.takes_lora:
            return 0
        tensors = 3 if parts is None else 2 * FUSED_LAYERS.issubset(parts) + ("down" in parts)
        kept_layers = 1 if checkpointing else self.layers - experts.without
        return (kept_layers + 1) * experts.count * self.hidden * tensors * experts.feed

    @property
    def active_feed(self) -> int:
        """The total width of the MLPs that a token passes in most layers."""
        experts = self.experts
        return self.feed if experts is None else experts.per_token * experts.feed + experts.shared


def _experts(text_config: Mapping[str, Any], feed: int, layers: int) -> Experts | None:
    count = _first_int(text_config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if count < 2:
        return None
    expert_feed = _first_int(text_config, "moe_intermediate_size") or feed
    return Experts(
        count=count,
        feed=expert_feed,
        per_token=_first_int(text_config, "num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk") or 1,
        shared=_first_int(text_config, "shared_expert_intermediate_size", "shared_intermediate_size")
        or expert_feed
        * _first_int(text_config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        without=sum(_dense_layers(text_config, layers)),
        takes_lora=text_config.get("model_type") in LORA_EXPERT_TYPES
        and not text_config.get("text_config")
        and _peft_supports_experts(),
    )


def _dense_layers(text_config: Mapping[str, Any], layers: int) -> list[bool]:
    """For each layer, whether it has a dense MLP; every model family has its own config keys for it."""
    if layer_types := text_config.get("mlp_layer_types"):
        return [kind == "dense" for kind in layer_types]
    first_moe = _first_int(text_config, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    last_moe = _first_int(text_config, "moe_layer_end_index")
    step, dense_only = (
        _first_int(text_config, "decoder_sparse_step", "moe_layer_interval") or 1,
        text_config.get("mlp_only_layers") or (),
    )
    return [n < first_moe or 0 < last_moe < n or n in dense_only or bool((n + 1) % step) for n in range(layers)]


@cache
def _peft_supports_experts() -> bool:
    """Whether the installed PEFT puts LoRAs on experts when all layers are targeted."""
    try:
        first, second = version("peft").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(first), int(second)) >= MIN_PEFT_VERSION


MLP_LAYERS = frozenset({"up", "down", "gate"})
FUSED_LAYERS = frozenset({"up", "gate"})
"""Layers that share one tensor in the experts."""
MIN_PEFT_VERSION = (0, 20)
LORA_EXPERT_TYPES = frozenset(
    {
        "afmoe",
        "beam",
        "cohere2_moe",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "dots1",
        "ernie4_5_moe",
        "exaone_moe",
        "flex_olmo",
        "glm4_moe",
        "glm4_moe_lite",
        "glm4v_moe",
        "glm_moe_dsa",
        "hunyuan_v1_moe",
        "longcat_flash",
        "mellum",
        "minimax",
        "minimax_m2",
        "mixtral",
        "olmoe",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_omni_moe",
        "qwen3_omni_moe_text",
        "qwen3_omni_moe_thinker",
        "solar_open",
    }
)
"""The `model_type`s whose experts PEFT can put LoRAs on."""
UNGATED_TYPES = frozenset(
    {"gpt2", "gpt_neo", "gpt_neox", "opt", "gptj", "bloom", "falcon", "mpt", "phi", "starcoder2"}
)
BITS_OF_WEIGHTS: Mapping[str, float] = {"float32": 32, "bfloat16": 16, "float16": 16, "8bit": 8, "4bit": 4.5}
CPU_FRAGMENTATION = 0.3  # share of all activations that fragmentation costs on the CPU, measured
CPU_LOGITS, GPU_LOGITS = 2**23, 2**25  # logits computed at a time: 34 and 134 MB


def head_rows(vocabulary: int, *, on_card: bool) -> int:
    """The rows that go through the head at a time: more are faster, up to a point, and take more memory."""
    max_rows = (GPU_LOGITS if on_card else CPU_LOGITS) // vocabulary
    return max(32, max_rows // 32 * 32)


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of a step in bytes, part by part; estimated before anything is loaded, within about a fifth."""

    weights: int
    lora: int
    gradients: int
    optimizer: int
    activations: int
    head: int
    overhead: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    def words(self) -> str:
        """'3.1 GB: weights 2.2 GB, activations ...', the largest part first."""
        parts = sorted(vars(self).items(), key=lambda part: -part[1])
        return f"{size(self.total)}: {', '.join(f'{name} {size(count)}' for name, count in parts if count)}"


@dataclass(frozen=True)
class MemoryInputs:
    """The settings of a run that determine its memory; `parts` are the layers with a LoRA, None for all."""

    weights_as: str
    rank: int
    parts: frozenset[str] | None
    tokens: int  # per batch, padding included
    learned: int  # tokens per batch that go through the head
    checkpointing: bool
    dropout: bool = False
    state_bytes: float = 8  # optimizer state for each trained weight in float32
    train_head: bool = False
    whole: bool = False  # full fine-tuning
    graphics_card: bool = True


def memory_estimate(shape: ModelShape, load: MemoryInputs) -> MemoryEstimate:
    """The memory of a step, by arithmetic on the model's sizes."""
    compute_bytes = 4 if load.weights_as == "float32" else 2
    trained = shape.lora_weights(load.rank, load.parts)
    weight_bytes = 4
    if load.whole:
        trained, weight_bytes = shape.linear_weights + shape.other_weights, compute_bytes
    head = shape.vocabulary * shape.hidden * (1 if shape.tied else 2) if load.train_head else 0
    weights = model_bytes(shape, load.weights_as)
    new_experts = 0 if load.whole else shape.recreated_numbers(load.parts, checkpointing=load.checkpointing)
    activations = load.tokens * _activations(shape, load, compute_bytes) + new_experts * compute_bytes
    uncheckpointed = load.tokens * _activations(shape, replace(load, checkpointing=False), compute_bytes)
    overhead = 6e8 + 0.05 * weights if load.graphics_card else CPU_FRAGMENTATION * uncheckpointed
    rows = min(load.learned, head_rows(shape.vocabulary, on_card=load.graphics_card))
    return MemoryEstimate(
        weights=round(weights),
        lora=0 if load.whole else 4 * trained + compute_bytes * head,
        gradients=weight_bytes * trained + compute_bytes * head,
        optimizer=round(optimizer_bytes(load.state_bytes, weight_bytes) * trained)
        + round(optimizer_bytes(load.state_bytes, compute_bytes) * head),
        activations=activations,
        head=rows * shape.vocabulary * (8 if compute_bytes == 4 else 10)
        + load.learned * shape.hidden * compute_bytes * 2,
        overhead=round(overhead),
    )


def model_bytes(shape: ModelShape, held_as: str) -> float:
    """The bytes of a loaded model: only its linear layers are held in less than 16 bits."""
    compute_bytes = 4 if held_as == "float32" else 2
    return shape.linear_weights * BITS_OF_WEIGHTS[held_as] / 8 + shape.other_weights * compute_bytes


def optimizer_bytes(state_bytes: float, weight_bytes: int) -> float:
    """Optimizer state in bytes for a weight of this size: in the weight's dtype, or in 8 bits for any dtype."""
    return max(state_bytes * weight_bytes / 4, min(state_bytes, 2))


def _activations(shape: ModelShape, load: MemoryInputs, compute_bytes: int) -> int:
    """Bytes of activations per token that are kept for the backward pass."""
    numbers = _layer_activations(shape, load, compute_bytes)
    if not load.checkpointing:
        return shape.layers * numbers * compute_bytes
    return (shape.layers * shape.hidden + numbers) * compute_bytes


def _layer_activations(shape: ModelShape, load: MemoryInputs, compute_bytes: int) -> int:
    """Numbers that a layer keeps for each token.

    The inputs of both norms (in half precision as float32, so twice) and of the layers with a LoRA; queries, the
    keys and values expanded to as many heads, the output of attention; the factors of the MLP's product. With
    dropout, another copy for each LoRA.
    """
    parts = shape.linears if load.parts is None else {n: w for n, w in shape.linears.items() if n in load.parts}
    norms = 2 * shape.hidden * (2 if compute_bytes == 2 else 1)
    inputs = shape.hidden * (bool(parts.keys() & {"q", "k", "v"}) + bool(parts.keys() & {"gate", "up"}))
    attention = 4 * shape.heads * shape.head
    product = (2 if shape.lean_gate else 3) if shape.gated else 1
    feed = product * shape.active_feed + parts.get("down", (0, 0))[0]
    copies = sum(wide for wide, _ in parts.values()) if load.dropout else 0
    return norms + inputs + attention + feed + copies + load.rank * len(parts)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _first_int(config: Mapping[str, Any], *names: str) -> int:
    return next((int(config[name]) for name in names if isinstance(config.get(name), int)), 0)
