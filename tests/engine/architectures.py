"""Every architecture as a tiny random model from its own config class, in float32 and without dropout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from training_pro.data.examples.examples import Example
from training_pro.engine.compute import loss

VOCABULARY = 160
LENGTHS: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {"num_attention_heads": 4}
LLAMA_LIKE: dict[str, Any] = {
    **LENGTHS,
    **HEADS,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA_LIKE: dict[str, Any] = {**LLAMA_LIKE, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 64}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 256,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    ),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            **LENGTHS,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 256,
            "window_size": 64,
            "intermediate_size": 64,
        },
    ),
    "gpt_neox": ("GPTNeoXConfig", {**LENGTHS, **HEADS, "intermediate_size": 64, "max_position_embeddings": 256}),
    "opt": (
        "OPTConfig",
        {
            **LENGTHS,
            **HEADS,
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
            "dropout": 0.0,
            "max_position_embeddings": 256,
        },
    ),
    "llama": ("LlamaConfig", LLAMA_LIKE),
    "mistral": ("MistralConfig", {**LLAMA_LIKE, "sliding_window": None}),
    "qwen2": ("Qwen2Config", LLAMA_LIKE),
    "qwen3": ("Qwen3Config", {**LLAMA_LIKE, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**GEMMA_LIKE, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3TextConfig", GEMMA_LIKE),
    "phi3": ("Phi3Config", LLAMA_LIKE),
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon": ("FalconConfig", {**LENGTHS, **HEADS, "new_decoder_architecture": False, "parallel_attn": True}),
    "olmo": ("OlmoConfig", {**LLAMA_LIKE, "clip_qkv": 8.0}),
    "mixtral": ("MixtralConfig", {**LLAMA_LIKE, "num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**LLAMA_LIKE, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "bamba": (
        "BambaConfig",
        {**LLAMA_LIKE, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "attn_layer_indices": [1]},
    ),
}
"""Some that do the unusual: change in place what a layer gave, have experts, give a norm more than its rows."""
KEEPS_APART = tuple(name for name in CONFIGS if name != "opt")
"""Those that may be packed; OPT takes its positions from the mask."""


def made(name: str, *, tied: bool | None = None, seed: int = 3, **more: Any) -> Any:
    """A tiny random model; larger weights than at a real start, so that differences are there to be seen."""
    kind, values = (CONFIGS | OTHERS)[name]
    ties = {} if tied is None else {"tie_word_embeddings": tied}
    config = getattr(transformers, kind)(**{**values, **ties, **more})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        _stirred(model)
    return model.eval()


def _stirred(model: torch.nn.Module) -> None:
    for parameter in {id(p): p for p in model.parameters()}.values():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.15)


def examples(*lengths: int, seed: int = 5) -> list[Example]:
    chance = np.random.default_rng(seed)
    ids = [chance.integers(3, VOCABULARY, size=n).astype(np.int32) for n in lengths]
    return [Example(own, None, None, number) for number, own in enumerate(ids)]


def with_lora(model: Any, **more: Any) -> Any:
    """A LoRA on all linear layers that already says something, so that every gradient is there."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", **more))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.1)
    return model.eval()


def gradients(model: Any, step: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """A loss and the gradients of everything that is trained."""
    model.zero_grad(set_to_none=True)
    value = step()
    value.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert found
    return {"loss": float(value.detach()), "gradients": found}


def through(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """The loss of a batch, only supervised rows going through the head."""
    inputs = {k: v for k, v in batch.items() if k in ("input_ids", "attention_mask", "position_ids")}
    return loss.SupervisedOnly(loss._head(model))(model, inputs, batch["labels"]).losses.mean()


def relative(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """How far gradients are from others, at most; what is no number is as far as can be."""
    far = [float((found[n] - right[n]).norm() / right[n].norm().clamp(min=1e-12)) for n in right]
    return max(share if np.isfinite(share) else float("inf") for share in far)


def graph(place: Any, name: str = "a") -> list[dict[str, Any]]:
    """What a run wrote of its steps."""
    return list(json.loads((place.lora(name) / "training_graph.json").read_text(encoding="utf-8")))


def log(place: Any, name: str = "a") -> dict[str, Any]:
    return dict(json.loads((place.lora(name) / "training_log.json").read_text(encoding="utf-8")))


class Step(list[int]):
    """The numbers of the examples that one batch was made of, and their lengths."""

    lengths: tuple[int, ...] = ()
    joins: tuple[bool, ...] = ()


def seen(monkeypatch: Any, trainer: Any) -> list[Step]:
    """From now on, the batches that are trained on, in their order."""
    found: list[Step] = []
    trained = trainer.RunTrainer.training_step

    def training_step(self: Any, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        everything = [tuple(e.ids) for e in self._blueprint.data.examples]
        step = Step(everything.index(tuple(e.ids)) for e in inputs["examples"])
        step.lengths = tuple(len(e.ids) for e in inputs["examples"])
        step.joins = tuple(inputs["joins"])
        found.append(step)
        return trained(self, model, inputs, *args, **more)

    monkeypatch.setattr(trainer.RunTrainer, "training_step", training_step)
    return found


def cut_off(place: Any, name: str, step: int) -> None:
    """As if the run had been killed after the checkpoint of this step."""
    for path in place.lora(name).iterdir():
        if path.is_file():
            path.unlink()
        elif path.name.startswith("checkpoint-") and int(path.name.split("-")[1]) > step:
            shutil.rmtree(path)


def kept_at(place: Any, name: str, *, tied: bool | None = None) -> Path:
    """A tiny model of this architecture on disk, with the tokenizer of the tiny model."""
    folder = place.folders.models / f"{name}-{tied}"
    if not folder.exists():
        made(name, tied=tied, vocab_size=512).save_pretrained(folder)
        for file in place.tiny.glob("tokenizer*"):
            shutil.copy(file, folder)
    return folder
