"""Train each architecture once: the LoRA learns, the base is unchanged bit for bit, the saved LoRA is the same."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file
from training_pro.core.jobs import Step
from training_pro.engine.lora import choose_targets, inject_lora, load_lora, lora_config, remove_peft_layers
from training_pro.hosts.standalone import StandaloneHost
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import CONFIGS, make_model, save_model
from training_pro.tests.tiny import watched_job

IDS = torch.arange(5, 45)[None]


def bits(model):
    """Bytes of every tensor, and which names share one."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {
        name: (t.data_ptr(), t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, t in tensors.items()
    }


def logits_of(model):
    """Logits in eval mode; the modes are as before."""
    modes = [(module, module.training) for module in model.modules()]
    with torch.no_grad():
        logits = model.eval()(IDS).logits
    for module, mode in modes:
        module.training = mode
    return logits


def assert_trained(place, folder, loading="auto", tolerance=1e-5, **more):
    """Train two steps, and compare the base with itself before, and the saved LoRA with that of the last step."""
    host, last = StandaloneHost(place.folders, model=str(folder), loading=loading), []
    model = host.loaded_model().model
    logits_of(model)  # on some machines 4-bit weights are repacked at first use
    before = bits(model)

    def watch(job, event):
        if isinstance(event, Step) and event.step == event.steps:
            last.append(logits_of(model))

    place.train(host, job=watched_job(watch), max_steps=2, save_each_epoch=False, **more)
    assert bits(model) == before
    assert not any(type(module).__module__.startswith("peft") for module in model.modules())
    reloaded = logits_of(load_lora(model, place.lora(), "again"))
    remove_peft_layers(model)
    assert torch.allclose(reloaded, last[0], atol=tolerance, rtol=0)
    state = load_file(place.lora() / "adapter_model.safetensors")
    halves = [value for name, value in state.items() if "lora_B" in name]
    assert halves and all(value.abs().max() > 0 for value in halves)
    return model, state


def heads(*names, marks=()):
    ids = {True: "tied", False: "untied"}
    return [pytest.param(name, tied, marks=marks, id=f"{name}-{ids[tied]}") for name in names for tied in ids]


SHORT = ("llama", "gpt2", "gemma2")
OTHERS = tuple(name for name in CONFIGS if name not in SHORT)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_lora(place, name):
    assert_trained(place, save_model(place, name))


@pytest.mark.parametrize(("name", "tied"), [*heads(*SHORT), *heads(*OTHERS, marks=pytest.mark.long)])
def test_train_head(place, name, tied):
    model, state = assert_trained(place, save_model(place, name, tied=tied), train_head=True)
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (embeddings is head) is tied
    whole = [value for key, value in state.items() if "lora_" not in key and value.shape == head.shape]
    assert len(whole) == 2 and torch.equal(*whole) is tied
    assert not torch.equal(whole[0], embeddings)


@pytest.mark.parametrize("name", SHORT)
def test_dora(place, name):
    _, state = assert_trained(place, save_model(place, name), dora=True)
    assert any("magnitude" in key for key in state)


SHORT_QUANTIZED = {("llama", "4bit", True), ("llama", "8bit", True), ("gpt2", "4bit", False)}
QUANTIZED = [
    pytest.param(*case, marks=() if case in SHORT_QUANTIZED else pytest.mark.long)
    for case in ((name, kind, head) for name in CONFIGS for kind in ("4bit", "8bit") for head in (False, True))
]


@pytest.mark.parametrize(("name", "loading", "head"), QUANTIZED)
def test_on_quantized_weights(place, name, loading, head):
    pytest.importorskip("bitsandbytes")
    _, state = assert_trained(place, save_model(place, name), loading, 0.05, train_head=head)
    assert any("lora_" not in key for key in state) is head


def lora_settings(targets):
    return training_settings({"name": "a", "data": ["x"], "rank": 4, "targets": targets}).lora


def targets_of(model, selection):
    return choose_targets(lora_settings(selection), model)


LAYERS = {
    ("q-v", "llama"): "self_attn.q_proj self_attn.v_proj",
    ("q-v", "gpt2"): "attn.c_attn",
    ("q-v", "gpt_neo"): "attention.q_proj attention.v_proj",
    ("q-v", "gpt_neox"): "attention.query_key_value",
    ("q-v", "phi3"): "self_attn.qkv_proj",
    ("q-k-v-o", "gpt2"): "attn.c_attn attn.c_proj",
    ("q-k-v-o", "gpt_neox"): "attention.query_key_value attention.dense",
    ("q-k-v-o", "opt"): "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj",
    ("k-v-down", "gpt2"): "attn.c_attn mlp.c_proj",
    ("k-v-down", "gpt_neo"): "attention.k_proj attention.v_proj mlp.c_proj",
    ("k-v-down", "opt"): "self_attn.k_proj self_attn.v_proj layers.0.fc2",
}


@pytest.mark.parametrize(("selection", "name"), LAYERS)
def test_a_selection_is_each_architectures_own_layers(selection, name):
    expected = tuple(LAYERS[selection, name].split())
    in_first = [layer for layer in targets_of(make_model(name), selection).names if ".0." in layer]
    assert len(in_first) == len(expected) and all(layer.endswith(expected) for layer in in_first)


def test_a_custom_list_of_short_or_full_names():
    targets = targets_of(make_model("llama"), ["up_proj", "model.layers.1.self_attn.q_proj"])
    names = ["0.mlp.up_proj", "1.self_attn.q_proj", "1.mlp.up_proj"]
    assert targets.names == tuple(f"model.layers.{name}" for name in names)
    words = "the layers in your list: model.layers.0-1.mlp.up_proj, model.layers.1-1.self_attn.q_proj"
    assert targets.words() == words


def vision_model():
    """A tiny model for images and text, as AutoModelForCausalLM loads it."""
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
    tokens = {"image_token_index": 100, "boi_token_index": 101, "eoi_token_index": 102}
    text = CONFIGS["gemma3"][1]
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **tokens)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(("selection", "count"), [("all-linear", 14), ("q-v", 4)])
def test_a_vision_model_gets_its_lora_on_the_text_part(selection, count):
    base = vision_model()
    targets = targets_of(base, selection)
    assert len(targets.names) == count and all("language_model" in name for name in targets.names)
    assert any("vision_tower" in name for name, _ in base.named_modules())
    with inject_lora(base, lora_config(lora_settings(selection), base, targets)) as model:
        adapted = [name.removesuffix(".lora_A") for name, _ in model.named_modules() if name.endswith("lora_A")]
    assert sorted(name.removeprefix("base_model.model.") for name in adapted) == sorted(targets.names)
