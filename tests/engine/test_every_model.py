"""Each architecture, also unusual ones: the LoRA learns, the base is unchanged, the saved LoRA is the same."""

from __future__ import annotations

import shutil
from importlib.metadata import version

import pytest
import torch
import transformers
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Note, Step
from training_pro.engine.lora import adapter, choose_targets, count_layer_names
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import CONFIGS, LENGTHS, LLAMA_LIKE, make_model, save_model
from training_pro.tests.engine.watching import read, texts
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
    reloaded = logits_of(adapter.load_lora(model, place.lora(), "again"))
    adapter.remove_peft_layers(model)
    assert torch.allclose(reloaded, last[0], atol=tolerance, rtol=0)
    state = load_file(place.lora() / "adapter_model.safetensors")
    halves = [value for name, value in state.items() if "lora_B" in name]
    assert halves and all(value.abs().max() > 0 for value in halves)
    return model, state


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_lora(place, name):
    """The other architectures, and with their head, by the long tests."""
    assert_trained(place, save_model(place, name))


@pytest.mark.long
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_train_head(place, name, tied):
    model, state = assert_trained(place, save_model(place, name, tied=tied), train_head=True)
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (embeddings is head) is tied
    whole = [value for key, value in state.items() if "lora_" not in key and value.shape == head.shape]
    assert len(whole) == 2 and torch.equal(*whole) is tied
    assert not torch.equal(whole[0], embeddings)


@pytest.mark.long
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("loading", ["4bit", "8bit"])
@pytest.mark.parametrize("name", CONFIGS)
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
    ("q-k-v", "llama"): "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    ("q-v", "gpt2"): "attn.c_attn",
    ("q-v", "gpt_neox"): "attention.query_key_value",
    ("q-v", "phi3"): "self_attn.qkv_proj",
    ("q-k-v-o", "gpt2"): "attn.c_attn attn.c_proj",
    ("q-k-v-o", "opt"): "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj",
    ("k-v-down", "gpt2"): "attn.c_attn mlp.c_proj",
    ("k-v-down", "opt"): "self_attn.k_proj self_attn.v_proj layers.0.fc2",
}


@pytest.mark.parametrize(("selection", "name"), LAYERS)
def test_a_selection_is_each_architectures_own_layers(selection, name):
    expected = tuple(LAYERS[selection, name].split())
    in_first = [layer for layer in targets_of(make_model(name), selection).names if ".0." in layer]
    assert len(in_first) == len(expected) and all(layer.endswith(expected) for layer in in_first)


def test_a_vision_model_gets_its_lora_on_the_text_part():
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
    parts = {"text_config": CONFIGS["gemma3"][1], "vision_config": vision, "mm_tokens_per_image": 4}
    base = transformers.AutoModelForCausalLM.from_config(transformers.Gemma3Config(**parts, image_token_index=100))
    assert any("vision_tower" in name for name, _ in base.named_modules())
    with adapter.inject_lora(base, lora_settings("all-linear")) as (model, targets):
        adapted = [name for name, _ in model.named_modules() if name.endswith(".lora_A")]
    assert len(adapted) == len(targets.names) == 14 and all("language_model" in name for name in adapted)


EXPERTS_SUPPORTED = tuple(map(int, version("peft").split(".")[:2])) >= (0, 20)
ODD = {
    "Llama4Text": {**LLAMA_LIKE, "head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 64},
    "Mamba": {**LENGTHS, "state_size": 8},
}


def host_of(place, name):
    """A host for a folder with a model; 'mixed' has experts in one layer and a plain MLP in the other."""
    if name in ODD:
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**{**ODD[name], "vocab_size": 512})
        model = transformers.AutoModelForCausalLM.from_config(config)
    elif name == "mixed":
        model = make_model("qwen3_moe", mlp_only_layers=[0], vocab_size=512)
    else:
        return StandaloneHost(place.folders, model=str(save_model(place, name)))
    folder = place.folders.models / name
    model.save_pretrained(folder)
    for file in place.tiny.glob("tokenizer*"):
        shutil.copy(file, folder)
    return StandaloneHost(place.folders, model=str(folder))


def train_and_read(place, host, **more):
    """Train; return the note about the target layers, and the weights by their names without PEFT's prefix."""
    job = Job("training", "a test")
    place.train(host, job=job, max_steps=2, **more)
    (line,) = (text for text in texts(job, Note) if "is added to" in text)
    weights = load_file(place.lora() / "adapter_model.safetensors")
    return line, {key.removeprefix("base_model.model."): weight for key, weight in weights.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "selections"),
    [
        ("mixtral", ("all-linear", "q-k-v-o", ["q_proj", "o_proj"])),
        ("mixed", ("all-linear", "k-v-down")),
    ],
)
def test_experts_are_named_and_counted_where_peft_takes_them(place, name, selections):
    host = host_of(place, name)
    for targets in selections:
        line, weights = train_and_read(place, host, targets=targets, if_exists="replace")
        disk = PeftEngine().check(place.settings(targets=targets), host).disk
        assert disk.made == 4 * sum(weight.numel() for weight in weights.values())
        if targets == "all-linear" and name != "mixed":
            attention = ", ".join(f"model.layers.0-1.self_attn.{part}_proj" for part in "koqv")
            parts = ("experts.down_proj", "experts.gate_up_proj", "gate.weight") if EXPERTS_SUPPORTED else ()
            experts = "".join(f"model.layers.0-1.mlp.{part}, " for part in parts)
            assert line == f"The LoRA is added to all linear layers: {experts}{attention}."
            assert any("mlp.experts" in layer for layer in weights) is EXPERTS_SUPPORTED


DROPOUT, DORA = "Dropout 0.05 can't be used on this model's experts", "DoRA can't be used on this model's experts"


@pytest.mark.parametrize(
    ("values", "starts"),
    [
        ({"dropout": 0.05, "dora": True}, [DROPOUT, DORA]),
        ({"dropout": 0.05, "dora": True, "targets": "q-k-v-o"}, []),
        ({"targets": ["q_proj", "down_proj"]}, ["Target modules: your list names model.layers.0-0.mlp.down"]),
        ({"targets": ["gate_proj"]}, ["This model can't be trained with a LoRA: Cannot convert PEFT target(s)"]),
    ],
)
def test_unsupported_settings_on_experts_are_refused_alike_before_anything_is_loaded(place, values, starts):
    host, engine, settings = host_of(place, "mixed"), PeftEngine(), place.settings(**values)
    problems = engine.check(settings, host).problems
    assert len(problems) == (len(starts) if EXPERTS_SUPPORTED else 0)
    if not problems:
        place.train(host, max_steps=1, **values)
        return
    assert all(problem.startswith(start) for problem, start in zip(problems, starts, strict=True))
    with pytest.raises(SettingsError) as refusal:
        place.train(host, **values)
    assert tuple(refusal.value.problems) == problems
    assert host.model_status().problem and not place.lora().exists()  # it is not loaded
    before = dict(host.loaded_model().model.named_modules())
    assert engine.check(settings, host).problems == problems
    assert dict(host.loaded_model().model.named_modules()) == before


@pytest.mark.parametrize(("name", "unfit"), [("Llama4Text", "router"), ("Mamba", "out_proj")])
def test_layers_that_cannot_hold_a_lora_are_left_out_and_refused_by_name(place, name, unfit):
    host = host_of(place, name)
    line, weights = train_and_read(place, host)
    model = host.loaded_model().model
    assert unfit not in line and not any(unfit in layer for layer in weights)
    assert unfit in {layer.rpartition(".")[2] for layer, _ in model.named_modules()}
    assert unfit not in count_layer_names(model)
    excluded = read(place.lora() / "adapter_config.json")["exclude_modules"]
    assert excluded and all(layer.endswith(unfit) for layer in excluded)
    place.attach_lora(host, "a")
    place.detach_lora(host)
    with pytest.raises(SettingsError, match=rf"a LoRA can't be added to \S+\.layers\.0-1\.\S+\.{unfit}, because"):
        place.train(host, name="b", targets=[unfit])
