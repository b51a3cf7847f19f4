"""Embeddings, output layer, biases, whole modules and chosen layers: trained, saved, loaded, merged, refused."""

from __future__ import annotations

import shutil
import warnings

import gguf
import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from training_pro.core.engine import GgufRequest, MergeRequest
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job
from training_pro.core.model_shape import ModelShape
from training_pro.engine.lora import adapter
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.tests.engine.architectures import save_model, simulate_kill
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

IDS = torch.tensor([[1, 5, 9, 30, 7, 12, 88, 3]])
OUTER = {"targets": ["q_proj", "embed_tokens", "lm_head"]}
QWEN = {"bias": "all", "targets": "q-v"}
NORMS = {"modules_to_save": ["norm", "input_layernorm"]}
FURTHER = [("qwen2", QWEN), ("llama", NORMS), ("llama", OUTER)]
CASES = [
    *FURTHER,
    ("tied llama", OUTER),
    ("llama", {**OUTER, "dora": True, "dropout": 0.1, "neftune_noise": 5.0}),
    ("qwen2", {**QWEN, "bias": "lora_only"}),
    ("gpt2", {"bias": "all", "targets": "q-v", "modules_to_save": ["ln_f"]}),
    ("gpt2", {"targets": ["c_attn", "embed_tokens"]}),  # the words mean the same layers in any model
    ("llama", {"modules_to_save": ["embed_tokens"], "train_head": True}),
    ("llama", {"layers_to_transform": "0-1", "targets": ["q_proj", "lm_head"], "modules_to_save": "norm"}),
]


def host_of(place, name):
    model, tied = name.removeprefix("tied "), name.startswith("tied ")
    return StandaloneHost(place.folders, model=str(save_model(place, model, tied=tied)))


def weights_of(place):
    return load_file(place.lora() / "adapter_model.safetensors")


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def copied(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_same(model, before):
    state = model.state_dict()
    return state.keys() == before.keys() and all(torch.equal(state[name], before[name]) for name in before)


def problems_of(place, host=None, **more):
    return PeftEngine().check(place.settings(**more), host or place.host()).problems


@pytest.mark.long
@pytest.mark.parametrize(("name", "more"), CASES)
def test_it_is_trained_saved_loaded_and_merged_and_leaves_the_model_as_it_was(place, tmp_path, name, more):
    host = host_of(place, name)
    base = host.loaded_model().model
    plain, before = logits(base), copied(base)
    disk = PeftEngine().check(place.settings(**more), host).disk
    place.train(host, **more)
    weights = weights_of(place)
    assert all(weight.abs().sum() > 0 for weight in weights.values())
    assert not any("original_module" in key or "base_layer.weight" in key for key in weights)
    assert disk.exact and (disk.made == 4 * sum(weight.numel() for weight in weights.values()) or "dora" in more)
    place.attach_lora(host, "a")
    attached = logits(host.loaded_model().model)
    place.detach_lora(host)
    assert not torch.allclose(attached, plain, atol=1e-3)
    if "dora" not in more:  # its magnitudes know no strength
        place.attach_lora(host, "a", strength=0.0)
        assert torch.allclose(logits(host.loaded_model().model), plain, atol=1e-6)
        place.detach_lora(host)
    PeftEngine().merge(MergeRequest("a", str(tmp_path / "new")), host, Job("merge", "a test"))
    assert is_same(base, before)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype=torch.float32)
    assert torch.allclose(logits(merged), attached, atol=2e-5, rtol=1e-4)
    assert torch.allclose(logits(PeftModel.from_pretrained(base, place.lora())), attached, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("name", "more"), FURTHER)
def test_a_killed_run_resumes_to_the_same_bytes_and_trains_further_from_its_own_values(place, name, more):
    host = host_of(place, name)
    place.train(host, epochs=2, **more)
    expected, before = place.weights(), weights_of(place)
    simulate_kill(place, "a", 5)
    place.train(host, epochs=2, resume="newest", **more)
    assert place.weights() == expected
    place.train(host, if_exists="continue", max_steps=1, **{**more, "learning_rate": 1e-9})
    assert all(torch.allclose(weight, before[key], atol=1e-6) for key, weight in weights_of(place).items())
    if more != OUTER:
        with pytest.raises(SettingsError, match=r"(Bias|Train Head) is \w+ in the LoRA 'a'"):
            place.train(host, if_exists="continue", targets=more.get("targets", "all-linear"))


@pytest.mark.long
def test_a_lora_with_biases_in_memory_is_moved_disabled_and_no_part_of_another_run(place):
    host = host_of(place, "qwen2")
    base = host.loaded_model().model
    plain, before = logits(base), copied(base)
    place.train(host, **QWEN)
    place.attach_lora(host, "a", strength=0.5)
    attached = logits(host.loaded_model().model)
    with adapter.disable_lora(host.loaded_model().model):  # as for a sample without the LoRA
        assert torch.equal(logits(host.loaded_model().model), plain)
    assert torch.equal(logits(host.loaded_model().model), attached)
    place.train(host, name="b", **QWEN)
    assert place.weights("b") == place.weights("a")
    attach_again = adapter.snapshot_adapters(host)
    host.unload()
    attach_again()
    assert torch.equal(logits(host.loaded_model().model), attached)
    place.detach_lora(host)
    assert is_same(host.loaded_model().model, before)


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"modules_to_save": ["nonsense"]}, "Modules to save: this model has no module called nonsense. Its"),
        ({"modules_to_save": ["mlp"]}, "Modules to save: this setting trains model.layers.0.mlp in full, but"),
        ({"modules_to_save": ["act_fn"]}, "Modules to save: this setting trains model.layers.0.mlp.act_fn, which"),
        ({"modules_to_save": ["mlp", "up_proj"], "targets": "q-v"}, "Modules to save: this setting trains"),
        ({"layers_to_transform": "0-2"}, "Layers to transform: there is no layer 2. This model has 2 layers"),
        ({**OUTER, "train_head": True}, "Target modules: Train Head trains model.embed_tokens in full, but"),
    ],
)
def test_what_does_not_fit_is_refused_by_check_and_run(place, more, refusal):
    (problem,) = problems_of(place, **more)
    assert problem.startswith(refusal)
    with pytest.raises(SettingsError) as error:
        place.train(**more)
    assert str(error.value).startswith(refusal)


def test_quantized_modules_lists_of_layers_and_experts_of_some_layers_are_refused(place):
    with pytest.raises(SettingsError, match=r"o_proj in full, but it is quantized\. Load the model in 16"):
        place.train(place.host("4bit"), targets="q-v", modules_to_save=["o_proj"])
    for text in ("a", "3-1"):
        with pytest.raises(SettingsError, match="Layers to transform: "):
            place.settings(layers_to_transform=text)
    (problem,) = problems_of(place, host_of(place, "mixtral"), layers_to_transform="0")
    assert problem.startswith("Layers to transform: PEFT can't train the experts of only some layers.")


@pytest.mark.long
def test_only_the_chosen_layers_have_a_lora_and_need_memory(place):
    place.train(layers_to_transform="1", max_steps=1)
    assert {key.split("layers.")[1][0] for key in weights_of(place)} == {"1"}  # and neither embeddings nor head
    check = lambda **more: PeftEngine().check(place.settings(**more), place.host()).memory  # noqa: E731
    assert check(layers_to_transform="1").lora == check().lora / 2


def test_gguf_holds_both_outer_layers_where_the_model_keeps_them_apart(place):
    place.train(host_of(place, "llama"), **OUTER)
    file = PeftEngine().export_gguf(GgufRequest("a"), place.host())
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(file).tensors}
    looked_up = weights_of(place)["base_model.model.model.embed_tokens.lora_embedding_A"]
    assert np.allclose(tensors["token_embd.weight.lora_a"], looked_up.T.numpy())  # llama.cpp takes rows by token
    assert tensors["token_embd.weight.lora_b"].shape == (32, 4)
    assert {"output.weight.lora_a", "output.weight.lora_b"} <= tensors.keys()


def check_config(place, config, **more):
    """Check with a model of which only config and tokenizer exist."""
    config.architectures = ["SomeForCausalLM"]
    folder = place.folders.models / config.model_type
    config.save_pretrained(folder)
    for file in place.tiny.glob("tokenizer*"):
        shutil.copy(file, folder)
    return PeftEngine().check(place.settings(**more), StandaloneHost(place.folders, model=str(folder)))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi3", "gpt_oss", "qwen3_moe"])
def test_check_counts_the_weights_that_peft_trains(place, kind):
    """And arithmetic does, where no torch is, but for layers in one and a LoRA on experts."""
    config = CONFIG_MAPPING[kind](num_hidden_layers=4)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = transformers.AutoModelForCausalLM.from_config(config)
        weights = sum(parameter.numel() for parameter in base.parameters())
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    report = check_config(place, config, rank=8)
    assert report.disk.exact and "LoRA about" not in report.disk.words()
    assert report.disk.made == report.memory.lora == report.memory.gradients == 4 * trained
    assert check_config(place, config, method="full", learning_rate=1e-3).disk.made == 4 * weights
    assert (ModelShape.of(config.to_dict()).lora_weights(8) == trained) == (kind not in ("phi3", "qwen3_moe"))
