"""Settings as PEFT and optimizers name them, as in adapter_config.json and in the configs of Void Trainer.

Each key is converted, asks for nothing that a run does not do anyway, or stays, so that it is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import other_names
from .definitions import SETTINGS

RENAMED: Mapping[str, str] = {
    "lr": "learning_rate", "eps": "adam_epsilon", "r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout",
    "target_modules": "targets", "use_rslora": "rslora", "use_dora": "dora",
}  # fmt: skip
BETAS = "betas"
# Keys that only a file of this kind has.
SIGNS = frozenset({*RENAMED, BETAS, "peft_type"})
ABOUT_THE_FILE = (
    *("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version", "megatron_core"),
    *("qalora_group_size", "runtime_config", "fan_in_fan_out"),  # PEFT finds out the last one itself
)
# Values of PEFT and of the optimizers that are those of a run anyway; `eps` is Adafactor's.
AS_HERE: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "task_type": ("CAUSAL_LM",), "init_lora_weights": (True,), "correct_bias": (True,),
    "clip_threshold": (1.0,), "decay_rate": (-0.8,), "optim_bits": (8,), "min_8bit_size": (4096,),
    "percentile_clipping": (100,), "block_wise": (True,), "eps": ([1e-30, 1e-3],), "is_paged": (True,),
    "momentum": (0,), "dampening": (0,),
}  # fmt: skip
# The optimizer that has one of these parameters, for files that do not name theirs.
OPTIMIZERS: Sequence[tuple[frozenset[str], str]] = (
    (frozenset({"scale_parameter", "relative_step", "warmup_init", "clip_threshold", "decay_rate"}), "adafactor"),
    (frozenset({"optim_bits", "min_8bit_size", "percentile_clipping", "block_wise", "is_paged"}), "adamw_8bit"),
    (frozenset({"momentum", "dampening", "nesterov"}), "sgd"),
    (frozenset({BETAS, "amsgrad", "correct_bias"}), "adamw_torch"),
)


def convert_library_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of such a file; those of other files are returned unchanged."""
    if SIGNS.isdisjoint(values):
        return dict(values)
    converted: dict[str, Any] = {}
    for key, value in values.items():
        ours = RENAMED.get(key, key)
        is_off = value is False and ours not in SETTINGS
        if key in ABOUT_THE_FILE or is_off or value in (None, {}, [], "", *AS_HERE.get(key, ())):
            continue  # asks for nothing else than what a run does
        if key == BETAS and isinstance(value, list) and len(value) == 2:
            converted["adam_beta1"], converted["adam_beta2"] = value
        elif key == "layers_to_transform":
            converted[key] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        elif key == "optimizer":
            converted[key] = other_names.our_value(key, value) or value
        else:
            converted[key if ours in values else ours] = value  # with both names, theirs stays and is refused
    if "optimizer" not in values and (name := next((o for keys, o in OPTIMIZERS if keys & values.keys()), "")):
        converted["optimizer"] = f"paged_{name}" if values.get("is_paged") else name
    return converted
