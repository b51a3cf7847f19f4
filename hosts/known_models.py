"""Which models transformers can load."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def unknown_type_reason(name: str, model_type: str) -> str:
    """Why transformers cannot load this model type; empty if it can."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return ""
    return (
        f"{name} has an architecture ({model_type or 'not given in its config'}) that transformers "
        f"{transformers.__version__} can't load as a causal language model. Update transformers, or "
        "choose another model."
    )


def unpacked_gguf(file: Path) -> dict[str, Any]:
    """Arguments that make `from_pretrained` unpack a GGUF file into a plain model, which can be trained."""
    import transformers

    if not hasattr(transformers, "GgufConfig"):  # older versions always unpack
        return {"gguf_file": file.name}
    return {"gguf_file": file.name, "quantization_config": transformers.GgufConfig(dequantize=True)}
