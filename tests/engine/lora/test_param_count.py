"""Expected size of a LoRA: by arithmetic where that is exact, else counted on the meta device."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.interface.train import summary
from training_pro.settings.target_layers import KNOWN_MODEL_TYPES, is_known_architecture
from training_pro.tests.engine.architectures import CONFIGS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LLAMA_LIKE = {**CONFIGS["llama"][1], "vocab_size": 512}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
MLA = {"num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 4, "v_head_dim": 8}
MLA |= {"qk_nope_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
LINEAR |= {"linear_value_head_dim": 8, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
UNKNOWN = {
    "deepseek_v2": {**LLAMA_LIKE, **MLA, **EXPERTS, "n_group": 1, "topk_group": 1},
    "qwen3_next": {**LLAMA_LIKE, **LINEAR, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16},
    "phi3": LLAMA_LIKE,
}


def check(place, config, **more):
    """Check with a model of which only config and tokenizer exist."""
    config.architectures = ["SomeForCausalLM"]
    folder = place.folders.models / config.model_type
    config.save_pretrained(folder)
    for file in place.tiny.glob("tokenizer*"):
        shutil.copy(file, folder)
    return PeftEngine().check(place.settings(**more), StandaloneHost(place.folders, model=str(folder)))


@pytest.mark.parametrize("kind", [*UNKNOWN, *sorted(KNOWN_MODEL_TYPES)])
def test_check_counts_the_weights_that_peft_trains(place, kind):
    """A known architecture with the default widths of its config."""
    if kind not in CONFIG_MAPPING:
        pytest.skip("this transformers does not know it")
    config = CONFIG_MAPPING[kind](**UNKNOWN.get(kind, {"num_hidden_layers": 4}))
    assert is_known_architecture(config.to_dict(), "all-linear") is (kind not in UNKNOWN)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = transformers.AutoModelForCausalLM.from_config(config)
        weights = sum(parameter.numel() for parameter in base.parameters())
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    report = check(place, config, rank=8)
    assert report.disk.exact and "LoRA about" not in report.disk.words()
    assert report.disk.made == report.memory.lora == report.memory.gradients == 4 * trained
    whole = check(place, config, method="full", learning_rate=1e-3).disk.made
    assert whole == pytest.approx(4 * weights, rel=0.01 if kind not in UNKNOWN else 0)


def test_without_a_meta_model_the_size_is_an_estimate_and_nothing_is_refused_for_it(place):
    host = place.host()
    card = replace(host.card(), config={**host.card().config, "model_type": "of_tomorrow"})
    host.card = lambda: card
    disk = PeftEngine().check(place.settings(), host).disk
    assert "(LoRA about " in disk.words() and not disk.exact
    assert not [finding for finding in replace(disk, free=0).findings() if finding.level == "problem"]


def test_the_form_names_a_size_where_it_is_known_and_else_refers_to_check(tiny):
    values = {"rank": 4, "alpha": 8, "rslora": False, "targets": "all-linear"}
    config = json.loads((tiny / "config.json").read_text(encoding="utf-8"))
    assert "file size about " in summary.lora_summary(values, config)
    assert "file size about " in summary.lora_summary({**values, "targets": ["embed_tokens"]}, config)
    assert summary.lora_summary(values, {**config, "model_type": "phi3"}).endswith("; Check shows its file size.")
    assert summary.lora_summary(values, {}).endswith("scaling 2.")
