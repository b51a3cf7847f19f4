"""What transformers leaves out of the config of a GGUF file: positions, and the scale of some attentions.

Without it, the model would compute other logits than llama.cpp does for the same file, most of all in long texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import gguf_header
from ..core.errors import ModelError

# Llama 3.1 and later scale each frequency by itself; the file has the results, made by llama.cpp's converter with
# these values and the factor of the model.
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_CONTEXT = 8192  # the original one
# llama.cpp knows the 27B models by their number of layers, and scales their attention by the width of a head
# (`llm_load_hparams` in llama-model.cpp), as their original configs do.
LAYERS_OF_27B = {"gemma2": 46, "gemma3_text": 62}
TOLERANCE = 1e-3
# transformers 5.23 leaves out Gemma 4's shared layers, its cap of the logits, and which layers have a window.
HALF_READ = ("gemma4",)


def refuse_half_read(header: Mapping[str, Any]) -> None:
    if (architecture := header.get("general.architecture")) in HALF_READ:
        raise ModelError(f"not everything in GGUF files of the architecture {architecture} is read.")


def complete_config(config: Any, path: Path, header: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Add to the config what only the file says; ModelError for what cannot be added exactly."""
    text = config.get_text_config()
    if LAYERS_OF_27B.get(text.model_type) == text.num_hidden_layers:
        text.query_pre_attn_scalar = text.hidden_size // text.num_attention_heads
    architecture = header["general.architecture"]
    kind = str(header.get(f"{architecture}.rope.scaling.type", "none"))
    positions = getattr(text, "rope_parameters", None)
    if architecture == "gpt-oss" or not positions:  # transformers reads its scaling
        return
    base = header.get(f"{architecture}.rope.freq_base")
    if base and "rope_theta" in positions:  # transformers does not read it for StarCoder2 and StableLM
        positions["rope_theta"] = float(base)
    if "rope_factors_long.weight" in tensors or kind not in ("none", "linear"):
        kind = "longrope" if kind == "none" else kind
        raise ModelError(f"it scales positions in a way that is not read from GGUF files ({kind})")
    if kind == "linear":
        factor = float(header.get(f"{architecture}.rope.scaling.factor") or 1.0)
        # In Gemma 3, the layers with a sliding window keep their positions.
        scaled = positions.get("full_attention", positions)
        scaled.update(rope_type="linear", factor=factor)
    if "rope_freqs.weight" in tensors:
        _scale_as_llama3(text, gguf_header.read_floats(path, "rope_freqs.weight"))


def _scale_as_llama3(config: Any, divisors: list[float]) -> None:
    """Find the factor by which the frequencies in the file were divided, and make sure that it explains all."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theta, width = config.rope_parameters["rope_theta"], 2 * len(divisors)
    plain = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    scaling = {**LLAMA3, "factor": max(divisors), "original_max_position_embeddings": LLAMA3_CONTEXT}
    config.rope_parameters = {"rope_theta": theta, **scaling}
    computed, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    expected = plain / torch.tensor(divisors)
    if computed.shape != expected.shape or bool(((computed / expected - 1).abs() > TOLERANCE).any()):
        raise ModelError("it scales positions in a way that is not read from GGUF files (rope_freqs)")
