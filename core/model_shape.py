"""Sizes of a model from its config.json: its weights, the weights of a LoRA on it, and its bytes in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

# Layers of the experts (MoE) whose weights are stored together in one tensor.
FUSED_LAYERS = frozenset({"up", "gate"})
# Words for the embeddings and the output layer of any model; they get a LoRA only where they are named.
HEAD = "lm_head"
OUTER_LAYERS = ("embed_tokens", HEAD)
# Layers by the choices of the setting Target modules; LAYER_NAMES are all linear layers.
TARGET_CHOICES: Mapping[str, tuple[str, ...]] = {
    choice: tuple(choice.split("-")) for choice in ("q-v", "q-k-v", "q-k-v-o", "k-v-down")
}
LAYER_NAMES = frozenset({"q", "k", "v", "o", "gate", "up", "down"})
# The `model_type`s whose MLP has no gate.
UNGATED_TYPES = frozenset(
    {"gpt2", "gpt_neo", "gpt_neox", "opt", "gptj", "bloom", "falcon", "mpt", "phi", "starcoder2"}
)
BITS_OF_WEIGHTS: Mapping[str, float] = {"float32": 32, "bfloat16": 16, "float16": 16, "8bit": 8, "4bit": 4.5}


def target_layers(targets: str | tuple[str, ...]) -> frozenset[str] | None:
    """Return the layers of a targets setting, None for all; a list with unknown names counts as all."""
    if isinstance(targets, str):
        return frozenset(TARGET_CHOICES[targets]) if targets in TARGET_CHOICES else None
    names = frozenset(name.rpartition(".")[2].removesuffix("_proj") for name in targets)
    return names if names <= LAYER_NAMES.union(OUTER_LAYERS) else None


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture-of-experts layer; libraries keep them in one tensor."""

    count: int
    feed: int  # the width of each
    per_token: int  # experts per token
    shared: int = 0  # the width of the shared MLP that every token passes
    without: int = 0  # layers with a dense MLP instead


@dataclass(frozen=True)
class ParamCounts:
    """Parameter counts of a model, from one without weights: exact, where arithmetic on the config is not."""

    linear: int
    other: int
    lora: int  # weights of a LoRA of rank 1 on the target layers
    full: int = 0  # weights of the model itself that are trained beside it, without those of Train Head
    on_experts: bool = False  # whether the LoRA is on experts, whose weights a library keeps in one tensor


def get_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text model, for a config.json with several models."""
    section = config.get("text_config")
    return {**config, **section} if isinstance(section, Mapping) else config


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
        hidden = _first_int(text_config, "hidden_size", "n_embd", "d_model")
        layers = _first_int(text_config, "num_hidden_layers", "n_layer")
        vocabulary = _first_int(text_config, "vocab_size")
        heads = _first_int(text_config, "num_attention_heads", "n_head") or 1
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
        return self._linear_groups()[-1][1]

    @property
    def linear_weights(self) -> int:
        if self.counted:
            return self.counted.linear
        groups = self._linear_groups()
        return sum(count * wide * narrow for count, linears in groups for wide, narrow in linears.values())

    def _linear_groups(self) -> list[tuple[int, dict[str, tuple[int, int]]]]:
        """Decoder layers with the same linear layers: how many, and the widths by name; the last group is most."""
        query, keys = self.heads * self.head, self.kv_heads * self.head
        attention = {
            "q": (self.hidden, query),
            "k": (self.hidden, keys),
            "v": (self.hidden, keys),
            "o": (query, self.hidden),
        }
        widths = [(self.layers, self.feed)]
        if self.experts is not None:  # they are not linear layers, but a shared MLP is
            without = self.experts.without
            widths = [(without, self.feed), (self.layers - without, self.experts.shared)]
        groups = []
        for count, feed in widths:
            linears = {**attention, "up": (self.hidden, feed), "down": (feed, self.hidden)} if feed else attention
            groups.append((count, {**linears, "gate": (self.hidden, feed)} if feed and self.gated else linears))
        return groups

    @property
    def other_weights(self) -> int:
        """Embeddings, head, norms and experts: the weights that stay in the model's own dtype."""
        if self.counted:
            return self.counted.other
        experts, matrices = self.experts, 3 if self.gated else 2
        dense = self.vocabulary * self.hidden * (1 if self.tied else 2) + (2 * self.layers + 1) * self.hidden
        if experts is None:
            return dense
        layer_experts = experts.count * self.hidden * (matrices * experts.feed + 1)
        return dense + (self.layers - experts.without) * layer_experts

    def lora_sides(self, parts: Collection[str] | None = None) -> dict[str, int]:
        """The smaller side of each kind of target layer: a larger rank adds nothing to that layer."""
        return {name: min(widths) for name, widths in self.linears.items() if parts is None or name in parts}

    def lora_weights(self, rank: int, parts: Collection[str] | None = None) -> int:
        """The weights of a LoRA of this rank; without a count, as in a model without experts."""
        if self.counted:
            return rank * self.counted.lora
        weights = len(set(OUTER_LAYERS).intersection(parts or ())) * (self.vocabulary + self.hidden)
        for count, linears in self._linear_groups():
            for name, (wide, narrow) in linears.items():
                if parts is None or name in parts:
                    weights += count * (wide + narrow)
        return rank * weights

    @property
    def full_weights(self) -> int:
        """Weights of the model itself that are trained beside the LoRA, without those of Train Head."""
        return self.counted.full if self.counted else 0

    def recreated_numbers(self, parts: Collection[str] | None, *, checkpointing: bool) -> int:
        """Numbers that a step creates anew: experts merged with their LoRA, and the gradient of one layer's."""
        experts = self.experts
        if experts is None or self.counted is None or not self.counted.on_experts:
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
    """The experts by the keys of the config, of which every model family has its own."""
    count = _first_int(text_config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if count < 2:
        return None
    expert_feed = _first_int(text_config, "moe_intermediate_size") or feed
    shared = _first_int(text_config, "shared_expert_intermediate_size", "shared_intermediate_size")
    if not shared:
        counts = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        shared = expert_feed * _first_int(text_config, *counts)
    if layer_types := text_config.get("mlp_layer_types"):
        dense = [kind == "dense" for kind in layer_types]
    else:
        first = _first_int(text_config, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
        last = _first_int(text_config, "moe_layer_end_index")
        step = _first_int(text_config, "decoder_sparse_step", "moe_layer_interval") or 1
        dense_only = text_config.get("mlp_only_layers") or ()
        dense = [n < first or 0 < last < n or n in dense_only or bool((n + 1) % step) for n in range(layers)]
    return Experts(
        count=count,
        feed=expert_feed,
        per_token=_first_int(text_config, "num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk") or 1,
        shared=shared,
        without=sum(dense),
    )


def model_bytes(shape: ModelShape, held_as: str) -> float:
    """The bytes of a loaded model: only its linear layers are held in less than 16 bits."""
    compute_bytes = 4 if held_as == "float32" else 2
    return shape.linear_weights * BITS_OF_WEIGHTS[held_as] / 8 + shape.other_weights * compute_bytes


def _first_int(config: Mapping[str, Any], *names: str) -> int:
    return next((int(config[name]) for name in names if isinstance(config.get(name), int)), 0)
