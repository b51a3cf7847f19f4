"""Tiny random models of every architecture, in float32 and without dropout, and helpers to compare runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from training_pro.data.examples import Example
from training_pro.engine.compute import collate, loss

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
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": VOCABULARY}
GPT_NEO: dict[str, Any] = {**LENGTHS, "num_layers": 2, "num_heads": 4, "window_size": 64, "intermediate_size": 64}
OPT: dict[str, Any] = {**LENGTHS, **HEADS, "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
ROOM = {"max_position_embeddings": 256}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "attn_layer_indices": [1]}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {**GPT2, **NO_DROPOUT, "bos_token_id": 1, "eos_token_id": 2}),
    "gpt_neo": ("GPTNeoConfig", {**GPT_NEO, **ROOM, "attention_types": [[["global", "local"], 1]]}),
    "gpt_neox": ("GPTNeoXConfig", {**LENGTHS, **HEADS, **ROOM, "intermediate_size": 64}),
    "opt": ("OPTConfig", {**OPT, **ROOM}),
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
    "qwen3_moe": ("Qwen3MoeConfig", {**LLAMA_LIKE, **EXPERTS, "head_dim": 8}),
    "bamba": ("BambaConfig", {**LLAMA_LIKE, **MAMBA}),
}
"""Unusual ones: in-place changes of a layer's output, experts, a norm with more inputs than its rows."""
PACKABLE = tuple(name for name in CONFIGS if name != "opt")
"""Architectures that allow packing; OPT derives positions from the mask."""


def make_model(name: str, *, tied: bool | None = None, seed: int = 3, **more: Any) -> Any:
    """A tiny random model, with larger weights than at initialization so that differences show."""
    kind, values = (CONFIGS | OTHERS)[name]
    ties = {} if tied is None else {"tie_word_embeddings": tied}
    config = getattr(transformers, kind)(**{**values, **ties, **more})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in {id(p): p for p in model.parameters()}.values():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.15)
    return model.eval()


def random_examples(*lengths: int, seed: int = 5) -> list[Example]:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(3, VOCABULARY, size=n).astype(np.int32) for n in lengths]
    return [Example(example_ids, None, None, index) for index, example_ids in enumerate(ids)]


def add_random_lora(model: Any, **more: Any) -> Any:
    """Add a LoRA with random weights on all linear layers, so that every gradient is nonzero."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", **more))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.1)
    return model.eval()


def padded_batch(examples: list[Example]) -> dict[str, Any]:
    """The arguments of a model and the labels: one row per example, padded to the longest."""
    batch = collate(examples, in_one_row=False)
    return {**batch.inputs, "labels": batch.labels}


def packed_batch(examples: list[Example]) -> dict[str, Any]:
    """The same as one row without padding; positions restart with each example."""
    batch = collate(examples, in_one_row=True)
    return {**batch.inputs, "labels": batch.labels}


def loss_and_gradients(model: Any, step: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """Loss and gradients of all trained parameters."""
    model.zero_grad(set_to_none=True)
    value = step()
    value.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert grads
    return {"loss": float(value.detach()), "gradients": grads}


def supervised_loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Loss of a batch, with only the supervised rows going through the head."""
    inputs = {k: v for k, v in batch.items() if k in ("input_ids", "attention_mask", "position_ids")}
    loss_fn, _ = loss.choose_loss(model, inputs["input_ids"], 0.0)
    return loss_fn(model, inputs, batch["labels"])[0].mean()


def max_relative_error(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest relative difference of gradients; NaN counts as infinite."""
    errors = [float((actual[n] - expected[n]).norm() / expected[n].norm().clamp(min=1e-12)) for n in expected]
    return max(error if np.isfinite(error) else float("inf") for error in errors)


def read_graph(place: Any, name: str = "a") -> list[dict[str, Any]]:
    """Read the training graph of a run."""
    return list(json.loads((place.lora(name) / "training_graph.json").read_text(encoding="utf-8")))


def read_log(place: Any, name: str = "a") -> dict[str, Any]:
    return dict(json.loads((place.lora(name) / "training_log.json").read_text(encoding="utf-8")))


class BatchRecord(list[int]):
    """Indices of the examples of a batch, with their lengths."""

    lengths: tuple[int, ...] = ()
    joins: tuple[bool, ...] = ()


def record_batches(monkeypatch: Any, trainer: Any) -> list[BatchRecord]:
    """Record the batches that are trained on from now on."""
    records: list[BatchRecord] = []
    original = trainer.RunTrainer.training_step

    def training_step(self: Any, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        all_ids = [tuple(e.ids) for e in self._run_plan.data.examples]
        step = BatchRecord(all_ids.index(all_ids[number]) for number in inputs["numbers"])
        step.lengths = tuple(len(all_ids[number]) for number in step)
        step.joins = tuple(inputs["batch"].joins)
        records.append(step)
        return original(self, model, inputs, *args, **more)

    monkeypatch.setattr(trainer.RunTrainer, "training_step", training_step)
    return records


def simulate_kill(place: Any, name: str, step: int) -> None:
    """Leave the folder as if the run had been killed after the checkpoint of this step."""
    for path in place.lora(name).iterdir():
        if path.is_file():
            path.unlink()
        elif path.name.startswith("checkpoint-") and int(path.name.split("-")[1]) > step:
            shutil.rmtree(path)


def save_model(place: Any, name: str, *, tied: bool | None = None) -> Path:
    """Save a tiny model of this architecture, with the tokenizer of the tiny model."""
    folder = place.folders.models / f"{name}-{tied}"
    if not folder.exists():
        make_model(name, tied=tied, vocab_size=512).save_pretrained(folder)
        for file in place.tiny.glob("tokenizer*"):
            shutil.copy(file, folder)
    return folder
