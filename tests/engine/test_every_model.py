"""Train each architecture once: the LoRA learns, the base is unchanged bit for bit, the saved LoRA is the same."""

from __future__ import annotations

import pytest
import torch
import transformers
from peft import get_peft_model
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Note
from training_pro.core.model_shape import ModelShape
from training_pro.engine.lora import adapter, inject_lora, lora_config
from training_pro.engine.lora.targets import PEFT_LAYER_TYPES, is_linear, resolve_targets
from training_pro.hosts.standalone import StandaloneHost
from training_pro.settings.parsing import training_settings
from training_pro.settings.target_layers import target_layers
from training_pro.tests.engine.architectures import CONFIGS, make_model, save_model

IDS = torch.arange(5, 45)[None]


def bits(model):
    """Bytes of every tensor, and which names share one."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {
        name: (t.data_ptr(), t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, t in tensors.items()
    }


@pytest.fixture
def last_logits(monkeypatch):
    """Logits of the model in training at the moment its LoRA is saved."""
    logits = []
    save = adapter.save_adapter

    def save_and_record(model, folder):
        modes = [(m, m.training) for m in model.modules()]
        with torch.no_grad():
            logits.append(model.eval()(IDS).logits)
        for module, mode in modes:
            module.training = mode
        save(model, folder)

    monkeypatch.setattr(adapter, "save_adapter", save_and_record)
    return logits


def train(place, folder, loading="auto", **more):
    """Train two steps; return the host and the base model's tensors from before."""
    host = StandaloneHost(place.folders, model=str(folder), loading=loading)
    model = host.loaded_model().model
    with torch.no_grad():
        model(IDS)  # on some machines 4-bit weights are repacked at first use
    before = bits(model)
    place.train(host, max_steps=2, save_each_epoch=False, **more)
    return host, before


def assert_saved_lora_is_the_same(place, host, last_logits):
    reloaded = adapter.load_lora(host.loaded_model().model, place.lora(), "again")
    with torch.no_grad():
        logits = reloaded(IDS).logits
    adapter.remove_peft_layers(host.loaded_model().model)
    assert torch.allclose(logits, last_logits[-1], atol=1e-5, rtol=0)


def assert_trained(place, folder, last_logits, loading="auto", **more):
    host, before = train(place, folder, loading, **more)
    assert bits(host.loaded_model().model) == before
    assert_saved_lora_is_the_same(place, host, last_logits)
    state = load_file(place.lora() / "adapter_model.safetensors")
    moved = [name for name, value in state.items() if "lora_B" in name and value.abs().max() > 0]
    assert len(moved) == sum("lora_B" in name for name in state) > 0
    assert not any(isinstance(module, PEFT_LAYER_TYPES) for module in host.loaded_model().model.modules())
    return host, state


@pytest.mark.parametrize("name", CONFIGS)
def test_a_lora(place, last_logits, name):
    assert_trained(place, save_model(place, name), last_logits)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", CONFIGS)
def test_train_head(place, last_logits, name, tied):
    host, state = assert_trained(place, save_model(place, name, tied=tied), last_logits, train_head=True)
    model = host.loaded_model().model
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (embeddings is head) is tied
    whole = [value for key, value in state.items() if "lora_" not in key and value.shape == head.shape]
    assert len(whole) == 2
    assert torch.equal(*whole) is tied
    assert not torch.equal(whole[0], embeddings)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_dora(place, last_logits, name):
    _, state = assert_trained(place, save_model(place, name), last_logits, dora=True)
    assert any("magnitude" in key for key in state)


QUANTIZED = [("llama", "4bit"), ("llama", "8bit"), ("gpt2", "4bit")]
MORE_QUANTIZED = [(n, k) for n in CONFIGS for k in ("4bit", "8bit") if (n, k) not in QUANTIZED]


def assert_quantized_trained(place, last_logits, name, loading, **more):
    pytest.importorskip("bitsandbytes")
    host, before = train(place, save_model(place, name), loading, **more)
    assert bits(host.loaded_model().model) == before
    reloaded = adapter.load_lora(host.loaded_model().model, place.lora(), "again")
    with torch.no_grad():
        assert torch.allclose(reloaded(IDS).logits, last_logits[-1], atol=0.05)


@pytest.mark.parametrize(("name", "loading"), QUANTIZED)
def test_on_quantized_weights(place, last_logits, name, loading):
    assert_quantized_trained(place, last_logits, name, loading)


@pytest.mark.parametrize("loading", ["4bit", "8bit"])
def test_train_head_on_quantized_weights(place, last_logits, loading):
    assert_quantized_trained(place, last_logits, "llama", loading, train_head=True)
    state = load_file(place.lora() / "adapter_model.safetensors")
    assert any("lm_head" in key or "embed_tokens" in key for key in state)


@pytest.mark.long
@pytest.mark.parametrize(("name", "loading"), MORE_QUANTIZED)
def test_on_more_quantized_weights(place, last_logits, name, loading):
    assert_quantized_trained(place, last_logits, name, loading)


def test_dora_on_8_bit_weights_is_refused_with_the_reason(place):
    pytest.importorskip("bitsandbytes")
    host = StandaloneHost(place.folders, model=str(place.tiny), loading="8bit")
    with pytest.raises(Exception, match=r"DoRA can't be trained on 8-bit weights. Load the model in 4-bit or 16"):
        place.train(host, dora=True)
    assert not place.lora().exists()


Q_V = {
    "gpt2": ["transformer.h.0.attn.c_attn"],
    "gpt_neo": ["transformer.h.0.attn.attention.v_proj", "transformer.h.0.attn.attention.q_proj"],
    "gpt_neox": ["gpt_neox.layers.0.attention.query_key_value"],
    "opt": ["model.decoder.layers.0.self_attn.v_proj", "model.decoder.layers.0.self_attn.q_proj"],
    "phi3": ["model.layers.0.self_attn.qkv_proj"],
}
USUAL = ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"]
Q_K_V_O = {
    "gpt2": ["attn.c_attn", "attn.c_proj"],
    "gpt_neox": ["attention.query_key_value", "attention.dense"],
    "phi3": ["self_attn.o_proj", "self_attn.qkv_proj"],
    "opt": ["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj", "self_attn.out_proj"],
}
K_V_DOWN = {
    "gpt2": ["attn.c_attn", "mlp.c_proj"],
    "gpt_neo": ["attention.k_proj", "attention.v_proj", "mlp.c_proj"],
    "gpt_neox": ["attention.query_key_value", "mlp.dense_4h_to_h"],
    "opt": ["self_attn.k_proj", "self_attn.v_proj", "layers.0.fc2"],
    "phi3": ["self_attn.qkv_proj", "mlp.down_proj"],
    "llama": ["self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"],
}


def first_layer(name, selection):
    return [n for n in resolve_targets(selection, make_model(name)).names if ".0." in n]


@pytest.mark.parametrize("name", CONFIGS)
def test_q_v_is_each_architectures_own_layers(name):
    assert sorted(first_layer(name, "q-v")) == sorted(Q_V.get(name, USUAL))


@pytest.mark.parametrize("name", Q_K_V_O)
def test_q_k_v_o(name):
    assert [n for n in first_layer(name, "q-k-v-o") if not n.endswith(tuple(Q_K_V_O[name]))] == []
    assert len(first_layer(name, "q-k-v-o")) == len(Q_K_V_O[name])


@pytest.mark.parametrize("name", K_V_DOWN)
def test_k_v_down(name):
    assert [n for n in first_layer(name, "k-v-down") if not n.endswith(tuple(K_V_DOWN[name]))] == []
    assert len(first_layer(name, "k-v-down")) == len(K_V_DOWN[name])


def vision_model():
    """A tiny model for images and text, as AutoModelForCausalLM loads it."""
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
    tokens = {"image_token_index": 100, "boi_token_index": 101, "eoi_token_index": 102}
    text = CONFIGS["gemma3"][1]
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **tokens)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("selection", ["all-linear", "q-v"])
def test_a_vision_model_gets_its_lora_on_the_text_part(selection):
    base = vision_model()
    assert sum("vision_tower" in name for name, module in base.named_modules() if is_linear(module)) > 4
    targets = resolve_targets(selection, base)
    assert len(targets.names) == (14 if selection == "all-linear" else 4)
    assert all("language_model" in name for name in targets.names)
    assert ("all linear layers of the language model" in targets.words()) is (selection == "all-linear")
    lora = training_settings({"name": "a", "data": ["x"], "targets": selection}).lora
    model = get_peft_model(base, lora_config(lora, base, targets))
    adapted = [name for name, _ in model.named_modules() if name.endswith("lora_A")]
    assert sorted(name.removeprefix("base_model.model.").removesuffix(".lora_A") for name in adapted) == sorted(
        targets.names
    )


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
SPARSE = {
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 8, "num_experts": 4, "mlp_only_layers": [0], **EXPERTS}),
    "qwen2_moe": ("Qwen2MoeConfig", {"num_experts": 4, "shared_expert_intermediate_size": 24, **EXPERTS}),
    "glm4_moe": (
        "Glm4MoeConfig",
        {"head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, **EXPERTS},
    ),
    "afmoe": ("AfmoeConfig", {"head_dim": 8, "num_experts": 4, "num_dense_layers": 1, **EXPERTS}),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        {
            "head_dim": 8,
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "moe_intermediate_size": 16,
        },
    ),
    "exaone_moe": (
        "ExaoneMoeConfig",
        {
            "head_dim": 8,
            "num_experts": 4,
            "num_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse"],
            **EXPERTS,
        },
    ),
}


@pytest.mark.parametrize("name", SPARSE)
def test_the_weights_of_a_model_with_experts_are_counted(name):
    kind, more = SPARSE[name]
    config = getattr(transformers, kind)(**{**CONFIGS["llama"][1], **more})
    base, shape = transformers.AutoModelForCausalLM.from_config(config), ModelShape.of(config.to_dict())
    weights = sum(parameter.numel() for parameter in base.parameters())
    tolerance = 0.1 if name == "afmoe" else 0.01  # Afmoe's attention has a gate too
    assert shape.linear_weights + shape.other_weights == pytest.approx(weights, rel=tolerance)
    # Gates of Qwen2's shared expert, and of Afmoe's attention, are left out
    assert shape.lora_weights(4) == pytest.approx(
        count_lora_weights(base, "all-linear"), rel=0.2 if name == "afmoe" else 0.1
    )
    usual, down = (target_layers(targets) for targets in ("q-k-v-o", "k-v-down"))
    assert shape.lora_weights(4, usual) == count_lora_weights(base, "q-k-v-o")
    if name == "mixtral":  # it has no layer of that name
        with pytest.raises(SettingsError, match="no layer called down"):
            resolve_targets("k-v-down", base)
    else:
        assert shape.lora_weights(4, down) == count_lora_weights(base, "k-v-down")


def count_lora_weights(base, selection):
    """Number of weights of a LoRA as PEFT creates it."""
    lora = training_settings({"name": "a", "data": ["x"], "rank": 4, "targets": selection}).lora
    with inject_lora(base, lora_config(lora, base, resolve_targets(selection, base))) as model:
        return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_a_custom_list_of_short_or_full_names():
    targets = resolve_targets(("up_proj", "model.layers.1.self_attn.q_proj"), make_model("llama"))
    assert targets.names == (
        "model.layers.0.mlp.up_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
    )
    assert (
        targets.words()
        == "the layers in your list: model.layers.0-1.mlp.up_proj, model.layers.1-1.self_attn.q_proj"
    )


def test_a_missing_layer_is_named_with_the_existing_ones():
    with pytest.raises(Exception, match=r"this model has no layer called wq. Its layers are down_proj, gate_proj"):
        resolve_targets(("wq",), make_model("llama"))


def test_the_run_says_where_the_lora_sits_and_saves_full_names(place):
    job = Job("training", "a test")
    place.train(job=job, targets="q-v", max_steps=1)
    notes = [event.text for event in job.log.since(0) if isinstance(event, Note)]
    summary = "q-v: model.layers.0-1.self_attn.q_proj, model.layers.0-1.self_attn.v_proj"
    assert f"The LoRA is added to {summary}." in notes
    keys = load_file(place.lora() / "adapter_model.safetensors")
    assert {key.split(".")[-3] for key in keys} == {"q_proj", "v_proj"}
