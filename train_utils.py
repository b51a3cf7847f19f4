"""The arithmetic and the names of a run: steps, warm-up, accumulation, smoothed loss, memory, durations."""

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
    """How many steps a run takes; one step is one change of the weights."""

    examples: int
    batch_size: int
    accumulation: int
    epochs: float
    max_steps: int = 0
    processes: int = 1

    @property
    def batches(self) -> int:
        """Batches that each process has in an epoch; the last one may be smaller."""
        return math.ceil(math.ceil(self.examples / self.batch_size) / self.processes)

    @property
    def accumulated(self) -> int:
        """The accumulation in force: never more batches than an epoch has."""
        return max(1, min(self.accumulation, self.batches))

    @property
    def per_step(self) -> int:
        """The examples of a step, of all processes together."""
        return self.batch_size * self.accumulated * self.processes

    @property
    def learned_twice(self) -> int:
        """So many examples of an epoch come again at its end, so that every process has equally many batches."""
        if self.processes == 1:
            return 0
        return self.batches * self.batch_size * self.processes - self.examples

    @property
    def steps_per_epoch(self) -> int:
        return max(1, math.ceil(self.batches / self.accumulated))

    @property
    def steps(self) -> int:
        if self.max_steps:
            return self.max_steps
        return max(1, _rounded_up(self.epochs * self.steps_per_epoch))

    def looks(self, every: int) -> int:
        """How often something comes that is due before the first step, after every so many, and at the end."""
        return math.ceil(self.steps / every) + 1

    def warmup(self, asked: float) -> int:
        """Warm-up in steps: from 1 on it is steps, below 1 a share of the run, then with a limit."""
        if asked >= 1:
            return int(asked)
        return min(_rounded_up(asked * self.steps), MAX_WARMUP, self.steps_per_epoch)


def _rounded_up(steps: float) -> int:
    """Up to whole steps, but not because a product such as 0.07 * 100 comes out a hair above 7."""
    return math.ceil(steps - 1e-9)


def smoothed(previous: float | None, loss: float) -> float:
    """The smoothed loss: it begins as the first step's loss and then moves a tenth of the way."""
    return loss if previous is None else SMOOTHING * previous + (1 - SMOOTHING) * loss


def perplexity(loss: float) -> float:
    """Between how many tokens a model hesitates at each place, by its mean loss."""
    return math.exp(loss) if not loss > 700 else math.inf


def duration(seconds: float) -> str:
    """A length of time in words: '0.25 s', '45 s', '3 min 20 s', '2 h 05 min'."""
    if 0 < seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


YEAR_SECONDS = 365.25 * 86400
FAR_SECONDS = 100 * YEAR_SECONDS
"""From here on a time of day says nothing, and some day no calendar has the date."""


def time_of_day(moment: float, now: float) -> str:
    """When that is, for somebody who reads it now: '06:40', '06:40 tomorrow', '06:40 in 3 days'."""
    if moment - now > FAR_SECONDS:
        return f"in {(moment - now) / YEAR_SECONDS:,.0f} years"
    then, today = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    days = (then.date() - today.date()).days
    return f"{then:%H:%M}" + {0: "", 1: " tomorrow"}.get(days, f" in {days} days")


def size(byte_count: float) -> str:
    """A size in words, in the units that file managers show: '98 MB', '1.4 GB'."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        count = byte_count / scale
        if count >= 0.9995:  # what would read as 1000 of a smaller unit
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
    return f"{int(byte_count)} bytes"


def plural(count: float, one: str, many: str = "") -> str:
    """The word for so many: 'step' for 1, 'steps' for 0 and 2."""
    return one if count == 1 else many or f"{one}s"


def several(count: int, one: str, many: str = "") -> str:
    """'1 step', '2,000 steps'."""
    return f"{count:,} {plural(count, one, many)}"


def times(count: int) -> str:
    """'once', '2 times'."""
    return "once" if count == 1 else f"{count:,} times"


def times_seen(least: int, most: int) -> str:
    """'once', '2 times', '1 to 3 times'."""
    return times(most) if least == most else f"{least} to {most} times"


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts 'chapter 2' before 'chapter 10'."""
    parts = re.split(r"(\d+)", name.casefold())
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts]


def checkpoint_name(step: int, reason: str) -> str:
    """The folder of a checkpoint: 'checkpoint-120', 'checkpoint-120-user', 'checkpoint-120-epoch-2'."""
    return f"checkpoint-{step}" + (f"-{reason}" if reason else "")


def checkpoint_step(folder_name: str) -> int | None:
    """The step that a checkpoint's folder name says, or None for another folder."""
    found = re.fullmatch(r"checkpoint-(\d+)(?:-.+)?", folder_name)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class Experts:
    """Small feeds of a layer, of which each token goes through a few; libraries keep them in one tensor."""

    count: int
    feed: int  # how wide each is
    at_once: int  # for one token
    shared: int = 0  # how wide a feed that every token goes through beside them is
    without: int = 0  # layers with a feed as usual in their place
    adapted: bool = (
        False  # a LoRA on feeds sits on them, and on no feed beside them; one on all on their router too
    )


@dataclass(frozen=True)
class Counted:
    """Weights of a model, counted on a skeleton of it where arithmetic does not know its layers."""

    linear: int
    other: int
    lora: int  # of a LoRA of rank 1 on the layers that were asked for


def of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of the part that reads text, where there are others beside it."""
    return {**config, **_section(config, "text_config")}


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model, out of its config.json."""

    hidden: int
    layers: int
    feed: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    gated: bool
    tied: bool
    thrifty: bool = False  # a gate that keeps two of its three numbers: engine/compute/layer_patches.py
    experts: Experts | None = None
    counted: Counted | None = None

    @staticmethod
    def of(config: Mapping[str, Any], counted: Counted | None = None) -> ModelShape | None:
        """None where the config does not say enough."""
        known = of_text(config)
        hidden, layers = (
            _size(known, "hidden_size", "n_embd", "d_model"),
            _size(known, "num_hidden_layers", "n_layer"),
        )
        vocabulary, heads = _size(known, "vocab_size"), _size(known, "num_attention_heads", "n_head") or 1
        if not hidden or not layers or not vocabulary:
            return None
        feed = _size(known, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
        return ModelShape(
            hidden=hidden,
            layers=layers,
            feed=feed,
            heads=heads,
            kv_heads=_size(known, "num_key_value_heads", "num_kv_heads") or heads,
            head=_size(known, "head_dim") or hidden // heads,
            vocabulary=vocabulary,
            gated=known.get("model_type") not in UNGATED,
            tied=bool(known.get("tie_word_embeddings", True)),
            thrifty=known.get("hidden_act") == "silu" and known.get("model_type") != "phi3",
            experts=_experts(known, feed, layers),
            counted=counted,
        )

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """The linear layers of most layers: how wide they are on both sides."""
        return self._linears(self._feeds[-1][1])

    def _linears(self, feed: int) -> dict[str, tuple[int, int]]:
        query, keys = self.heads * self.head, self.kv_heads * self.head
        found = {
            "q": (self.hidden, query),
            "k": (self.hidden, keys),
            "v": (self.hidden, keys),
            "o": (query, self.hidden),
        }
        feeds = {"up": (self.hidden, feed), "down": (feed, self.hidden)}
        feeds |= {"gate": (self.hidden, feed)} if self.gated else {}
        return found | feeds if feed else found

    @property
    def _feeds(self) -> list[tuple[int, int]]:
        """How many layers have a feed as wide as this, in linear layers."""
        if self.experts is None:
            return [(self.layers, self.feed)]
        without = self.experts.without
        return [(without, self.feed), (self.layers - without, self.experts.shared)]

    def _sides(self) -> Iterator[tuple[int, str, int, int]]:
        """How many layers have a linear layer of this name, how wide it is on both sides."""
        for count, feed in self._feeds:
            for name, (wide, narrow) in self._linears(feed).items():
                yield count, name, wide, narrow

    @property
    def linear_weights(self) -> int:
        if self.counted:
            return self.counted.linear
        return sum(count * wide * narrow for count, _, wide, narrow in self._sides())

    @property
    def other_weights(self) -> int:
        """Embeddings, head, norms and experts: what stays in the model's own type."""
        if self.counted:
            return self.counted.other
        experts, times = self.experts, 3 if self.gated else 2
        small = self.vocabulary * self.hidden * (1 if self.tied else 2) + (2 * self.layers + 1) * self.hidden
        if experts is None:
            return small
        each = experts.count * self.hidden * (times * experts.feed + 1)
        return small + (self.layers - experts.without) * each

    def lora_weights(self, rank: int, parts: Collection[str] | None = None) -> int:
        if self.counted:
            return rank * self.counted.lora
        found = [side for side in self._sides() if self._takes(side[1], parts)]
        usual = sum(count * rank * (wide + narrow) for count, _, wide, narrow in found)
        return usual + rank * self._on_experts(parts)

    def _takes(self, name: str, parts: Collection[str] | None) -> bool:
        wanted = parts is None or name in parts
        return wanted and not (self.experts and self.experts.adapted and name in FEEDS)

    def _on_experts(self, parts: Collection[str] | None) -> int:
        """The LoRA of rank 1 on experts and routers: up and gate lie in one tensor, and get a rank for each."""
        experts = self.experts
        if experts is None or not experts.adapted:
            return 0
        up = 2 * (self.hidden + 2 * experts.feed) if parts is None or FUSED.issubset(parts) else 0
        down = experts.feed + self.hidden if parts is None or "down" in parts else 0
        router = self.hidden + experts.count if parts is None else 0
        return (self.layers - experts.without) * (experts.count * (up + down) + router)

    def rewritten(self, parts: Collection[str] | None, *, checkpointing: bool) -> int:
        """Numbers that a step makes anew: experts with their LoRA in them, and the gradient of one layer's."""
        experts = self.experts
        if experts is None or not experts.adapted:
            return 0
        tensors = 3 if parts is None else 2 * FUSED.issubset(parts) + ("down" in parts)
        kept = 1 if checkpointing else self.layers - experts.without
        return (kept + 1) * experts.count * self.hidden * tensors * experts.feed

    @property
    def passed(self) -> int:
        """How wide the feeds are that a token goes through in most layers."""
        experts = self.experts
        return self.feed if experts is None else experts.at_once * experts.feed + experts.shared


def _experts(known: Mapping[str, Any], feed: int, layers: int) -> Experts | None:
    count = _size(known, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if count < 2:
        return None
    own = _size(known, "moe_intermediate_size") or feed
    return Experts(
        count=count,
        feed=own,
        at_once=_size(known, "num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk") or 1,
        shared=_size(known, "shared_expert_intermediate_size", "shared_intermediate_size")
        or own * _size(known, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        without=sum(_without_experts(known, layers)),
        adapted=known.get("model_type") in WITH_LORA and not known.get("text_config") and _peft_takes_experts(),
    )


def _without_experts(known: Mapping[str, Any], layers: int) -> list[bool]:
    """Of each layer whether it has a feed as usual; every family says it in words of its own."""
    if kinds := known.get("mlp_layer_types"):
        return [kind == "dense" for kind in kinds]
    first = _size(known, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    last = _size(known, "moe_layer_end_index")
    step, plain = (
        _size(known, "decoder_sparse_step", "moe_layer_interval") or 1,
        known.get("mlp_only_layers") or (),
    )
    return [n < first or 0 < last < n or n in plain or bool((n + 1) % step) for n in range(layers)]


@cache
def _peft_takes_experts() -> bool:
    """Whether this PEFT puts LoRAs on experts when it is asked for all layers."""
    try:
        first, second = version("peft").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(first), int(second)) >= FROM_PEFT


FEEDS = frozenset({"up", "down", "gate"})
FUSED = frozenset({"up", "gate"})
"""These lie in one tensor of the experts."""
FROM_PEFT = (0, 20)
WITH_LORA = frozenset(
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
"""The kinds of models whose experts PEFT knows how to put LoRAs on."""
UNGATED = frozenset({"gpt2", "gpt_neo", "gpt_neox", "opt", "gptj", "bloom", "falcon", "mpt", "phi", "starcoder2"})
BITS_OF_WEIGHTS: Mapping[str, float] = {"float32": 32, "bfloat16": 16, "float16": 16, "8bit": 8, "4bit": 4.5}
FRAGMENTS = 0.3  # of all activations: what a processor's memory loses between them, measured
LOGITS_AT_ONCE, ON_A_CARD = 2**23, 2**25  # numbers that the head makes at a time: 34 and 134 MB


def rows_at_once(vocabulary: int, *, on_card: bool) -> int:
    """How many rows go through the head at a time: more are faster, up to a point, and take memory."""
    most = (ON_A_CARD if on_card else LOGITS_AT_ONCE) // vocabulary
    return max(32, most // 32 * 32)


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of a step in bytes, part by part: before anything is loaded, so within a fifth or so."""

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
class Load:
    """What of a run decides on its memory; `parts` are the layers with a LoRA, None for all."""

    weights_as: str
    rank: int
    parts: frozenset[str] | None
    tokens: int  # of a batch, padding included
    learned: int  # tokens of a batch that go through the head
    checkpointing: bool
    dropout: bool = False
    state_bytes: float = 8  # of the optimizer, for each trained weight in float32
    train_head: bool = False
    whole: bool = False  # all of the model is trained
    graphics_card: bool = True


def memory_estimate(shape: ModelShape, load: Load) -> MemoryEstimate:
    """The arithmetic behind what Check expects."""
    computed = 4 if load.weights_as == "float32" else 2
    trained = shape.lora_weights(load.rank, load.parts)
    kind = 4
    if load.whole:
        trained, kind = shape.linear_weights + shape.other_weights, computed
    head = shape.vocabulary * shape.hidden * (1 if shape.tied else 2) if load.train_head else 0
    weights = weights_in_memory(shape, load.weights_as)
    anew = 0 if load.whole else shape.rewritten(load.parts, checkpointing=load.checkpointing)
    activations = load.tokens * _activations(shape, load, computed) + anew * computed
    made = load.tokens * _activations(shape, replace(load, checkpointing=False), computed)
    overhead = 6e8 + 0.05 * weights if load.graphics_card else FRAGMENTS * made
    rows = min(load.learned, rows_at_once(shape.vocabulary, on_card=load.graphics_card))
    return MemoryEstimate(
        weights=round(weights),
        lora=0 if load.whole else 4 * trained + computed * head,
        gradients=kind * trained + computed * head,
        optimizer=round(kept_of_a_weight(load.state_bytes, kind) * trained)
        + round(kept_of_a_weight(load.state_bytes, computed) * head),
        activations=activations,
        head=rows * shape.vocabulary * (8 if computed == 4 else 10) + load.learned * shape.hidden * computed * 2,
        overhead=round(overhead),
    )


def weights_in_memory(shape: ModelShape, held_as: str) -> float:
    """The bytes of a loaded model: only its linear layers are held in less than 16 bits."""
    computed = 4 if held_as == "float32" else 2
    return shape.linear_weights * BITS_OF_WEIGHTS[held_as] / 8 + shape.other_weights * computed


def kept_of_a_weight(state_bytes: float, kind: int) -> float:
    """Bytes that the optimizer keeps for a weight of this type: in the same type, or in 8 bits whatever it is."""
    return max(state_bytes * kind / 4, min(state_bytes, 2))


def _activations(shape: ModelShape, load: Load, computed: int) -> int:
    """Bytes kept for each token until it goes backward."""
    kept = _kept_of_a_layer(shape, load, computed)
    if not load.checkpointing:
        return shape.layers * kept * computed
    return (shape.layers * shape.hidden + kept) * computed


def _kept_of_a_layer(shape: ModelShape, load: Load, computed: int) -> int:
    """Numbers that a layer keeps for each token.

    What goes into both norms (in half precision as float32, so twice) and into parts with a LoRA; queries, the
    keys and values that were made as many, what attention gives; what the feed's product is made of. With
    dropout a copy for each LoRA.
    """
    parts = shape.linears if load.parts is None else {n: w for n, w in shape.linears.items() if n in load.parts}
    norms = 2 * shape.hidden * (2 if computed == 2 else 1)
    inputs = shape.hidden * (bool(parts.keys() & {"q", "k", "v"}) + bool(parts.keys() & {"gate", "up"}))
    attention = 4 * shape.heads * shape.head
    product = (2 if shape.thrifty else 3) if shape.gated else 1
    feed = product * shape.passed + parts.get("down", (0, 0))[0]
    copies = sum(wide for wide, _ in parts.values()) if load.dropout else 0
    return norms + inputs + attention + feed + copies + load.rank * len(parts)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _size(config: Mapping[str, Any], *names: str) -> int:
    return next((int(config[name]) for name in names if isinstance(config.get(name), int)), 0)
