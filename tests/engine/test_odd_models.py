"""LoRAs on unusual models: the run names the layers that carry the LoRA, or refuses with a reason."""

from __future__ import annotations

import shutil
from importlib.metadata import version

import pytest
import torch
import transformers
from safetensors.torch import load_file
from training_pro.core import model_shape
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Note
from training_pro.engine.lora import count_layer_names
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.settings.target_layers import target_layers
from training_pro.tests.engine.architectures import LENGTHS, LLAMA_LIKE, make_model, save_model
from training_pro.tests.engine.watching import read, texts

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


@pytest.mark.parametrize(
    ("name", "selections"),
    [
        ("mixtral", ("all-linear", "q-k-v-o", ["q_proj", "o_proj"])),
        ("qwen3_moe", ("all-linear",)),
        ("mixed", ("all-linear", "k-v-down")),
    ],
)
def test_experts_are_named_and_counted_where_peft_takes_them(place, name, selections):
    host = host_of(place, name)
    shape = model_shape.ModelShape.of(host.card().config)
    for targets in selections:
        line, weights = train_and_read(place, host, targets=targets, if_exists="replace")
        counted = shape.lora_weights(4, target_layers(place.settings(targets=targets).lora.targets))
        assert counted == sum(weight.numel() for weight in weights.values())
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
        ({"dora": True, "targets": "k-v-down"}, [DORA]),
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
