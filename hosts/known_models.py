"""Which models transformers can load."""

from __future__ import annotations


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
