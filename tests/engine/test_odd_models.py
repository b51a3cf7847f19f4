"""LoRAs on unusual models: the run names the layers that carry the LoRA, or refuses with a reason."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Note
from training_pro.core.model_shape import LORA_EXPERT_TYPES, ModelShape
from training_pro.engine.lora import inject_lora, lora_config
from training_pro.engine.lora.targets import count_layer_names, refuse_misplaced_targets, resolve_targets
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.settings.parsing import training_settings
from training_pro.settings.target_layers import target_layers
from training_pro.tests.engine.architectures import LENGTHS, LLAMA_LIKE, make_model, save_model

EXPERTS_SUPPORTED = tuple(map(int, version("peft").split(".")[:2])) >= (0, 20)
ODD = {
    "llama4": (
        "Llama4TextConfig",
        {**LLAMA_LIKE, "head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 64},
    ),
    "mamba": ("MambaConfig", {**LENGTHS, "state_size": 8}),
}


def odd_host(place, name):
    kind, values = ODD[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**values, "vocab_size": 512})
    return host_for(place, name, transformers.AutoModelForCausalLM.from_config(config))


def mixed_host(place):
    """A model with experts in one layer and a plain MLP in the other."""
    return host_for(place, "mixed", make_model("qwen3_moe", mlp_only_layers=[0], vocab_size=512))


def host_for(place, name, model):
    """Save the model and return a host for its folder; nothing is loaded."""
    folder = place.folders.models / name
    model.save_pretrained(folder)
    for file in place.tiny.glob("tokenizer*"):
        shutil.copy(file, folder)
    return StandaloneHost(place.folders, model=str(folder))


def train_and_read(place, host, **more):
    """Train; return the note about the target layers, and the layers in the saved file."""
    job = Job("training", "a test")
    place.train(host, job=job, max_steps=2, **more)
    line = next(
        event.text for event in job.log.since(0) if isinstance(event, Note) and "is added to" in event.text
    )
    keys = load_file(place.lora() / "adapter_model.safetensors")
    return line, {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in keys}


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_experts_are_named_where_peft_takes_them(place, name):
    line, layers = train_and_read(place, StandaloneHost(place.folders, model=str(save_model(place, name))))
    start = "The LoRA is added to all linear layers: "
    attention = ", ".join(f"model.layers.0-1.self_attn.{part}_proj" for part in "koqv")
    experts = ", ".join(
        f"model.layers.0-1.mlp.{part}" for part in ("experts.down_proj", "experts.gate_up_proj", "gate.weight")
    )
    assert line == start + (f"{experts}, {attention}." if EXPERTS_SUPPORTED else f"{attention}.")
    assert any("mlp.experts" in layer for layer in layers) is EXPERTS_SUPPORTED


@pytest.mark.skipif(not EXPERTS_SUPPORTED, reason="this PEFT puts no LoRA on experts by itself")
def test_unsupported_settings_on_experts_are_refused_with_a_remedy(place):
    host = StandaloneHost(place.folders, model=str(save_model(place, "mixtral")))
    before = {name: type(module) for name, module in host.loaded_model().model.named_modules()}
    with pytest.raises(SettingsError) as error:
        place.train(host, dropout=0.05, dora=True)
    assert str(error.value).splitlines() == [
        "Dropout 0.05 can't be used on this model's experts, which are stored in one tensor. Set Dropout "
        "to 0, or choose target modules that leave out the experts (q-k-v-o).",
        "DoRA can't be used on this model's experts, which are stored in one tensor. Turn DoRA "
        "off, or choose target modules that leave out the experts (q-k-v-o).",
    ]
    assert {name: type(module) for name, module in host.loaded_model().model.named_modules()} == before
    assert not place.lora().exists()
    place.train(host, dropout=0.05, dora=True, targets="q-k-v-o", max_steps=1)


@pytest.mark.parametrize(
    ("values", "starts"),
    [
        ({}, []),
        ({"dropout": 0.05}, ["Dropout 0.05 can't be used on this model's experts"]),
        ({"dora": True, "targets": "k-v-down"}, ["DoRA can't be used on this model's experts"]),
        ({"dropout": 0.1, "dora": True}, ["Dropout 0.1 can't", "DoRA can't"]),
        ({"dropout": 0.05, "dora": True, "targets": "q-k-v-o"}, []),
        (
            {"targets": ["q_proj", "down_proj"]},
            ["Target modules: your list names model.layers.0-0.mlp.down"],
        ),
        (
            {"targets": ["gate_proj"]},
            ["This model can't be trained with a LoRA: Cannot convert PEFT target(s) gate_pr"],
        ),
    ],
)
def test_unsupported_settings_on_experts_are_refused_alike_before_anything_is_loaded(place, values, starts):
    host = mixed_host(place)
    problems = PeftEngine().check(place.settings(**values), host).problems
    assert len(problems) == (len(starts) if EXPERTS_SUPPORTED else 0)
    if not problems:
        place.train(host, max_steps=1, **values)
        return
    assert all(problem.startswith(start) for problem, start in zip(problems, starts, strict=True))
    with pytest.raises(SettingsError) as refusal:
        place.train(host, **values)
    assert tuple(refusal.value.problems) == problems
    assert host._loaded is None
    before = dict(host.loaded_model().model.named_modules())
    assert PeftEngine().check(place.settings(**values), host).problems == problems
    assert dict(host.loaded_model().model.named_modules()) == before


@pytest.mark.skipif(not EXPERTS_SUPPORTED, reason="this PEFT puts no LoRA on experts by itself")
def test_a_layer_whose_name_peft_maps_to_experts_is_refused():
    base, selection = make_model("qwen3_moe", mlp_only_layers=[0]), ("q_proj", "gate_proj", "up_proj")
    lora, targets = (
        training_settings({"name": "a", "data": ["x"], "targets": selection}).lora,
        resolve_targets(selection, base),
    )
    with (
        inject_lora(base, lora_config(lora, base, targets)) as model,
        pytest.raises(
            SettingsError, match=r"list names model\.layers\.0-0\.mlp\.gate_proj, model\.layers\.0-0\.mlp\.up_"
        ),
    ):
        refuse_misplaced_targets(targets, model)


@pytest.mark.parametrize(("name", "unfit"), [("llama4", "router"), ("mamba", "out_proj")])
def test_layers_that_cannot_hold_a_lora_are_left_out_and_refused_by_name(place, name, unfit):
    host = odd_host(place, name)
    line, layers = train_and_read(place, host)
    model = host.loaded_model().model
    assert unfit not in line
    assert layers == set(resolve_targets("all-linear", model).names)
    assert unfit in {layer.rpartition(".")[2] for layer, _ in model.named_modules()}
    assert unfit not in count_layer_names(model)
    config = json.loads((place.lora() / "adapter_config.json").read_text(encoding="utf-8"))
    assert all(layer.endswith(unfit) for layer in config["exclude_modules"])
    place.attach_lora(host, "a")
    place.detach_lora(host)
    with pytest.raises(
        SettingsError,
        match=(
            r"a LoRA can't be added to "
            rf"\S+\.layers\.0-1\.\S+\.{unfit}, because this"
        ),
    ):
        place.train(host, name="b", targets=[unfit])


@pytest.mark.parametrize(
    ("name", "selections"),
    [
        ("mixtral", ("all-linear", "q-k-v-o", ("q_proj", "o_proj"))),
        ("qwen3_moe", ("all-linear", "q-k-v-o", ("q_proj", "o_proj"))),
        ("mixed", ("all-linear", "k-v-down")),
    ],
)
def test_the_estimate_counts_the_loras_on_experts(place, name, selections):
    host = (
        mixed_host(place) if name == "mixed" else StandaloneHost(place.folders, model=str(save_model(place, name)))
    )
    shape = ModelShape.of(host.card().config)
    for targets in selections:
        place.train(host, targets=targets, max_steps=1, if_exists="replace")
        weights = load_file(place.lora() / "adapter_model.safetensors").values()
        settings = place.settings(targets=targets)
        assert shape.lora_weights(settings.lora.rank, target_layers(settings.lora.targets)) == sum(
            weight.numel() for weight in weights
        )


def test_weights_of_experts_with_a_lora_are_rebuilt_and_saved_for_backward():
    """Measured by what the forward pass saves for backward."""
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    baseline, shape = count_saved_values(attention), ModelShape.of(make_model("mixtral").config.to_dict())
    assert shape.recreated_numbers(frozenset("qkvo"), checkpointing=False) == 0
    for targets, trained_parts in (("all-linear", None), ([*attention, "w2"], frozenset({*"qkvo", "down"}))):
        expected = (
            shape.recreated_numbers(trained_parts, checkpointing=False)
            - shape.recreated_numbers(trained_parts, checkpointing=True) // 2
        )
        assert (
            expected <= count_saved_values(targets) - baseline <= 1.3 * expected
            if EXPERTS_SUPPORTED
            else expected == 0
        )


def count_saved_values(targets):
    """Count the values that a forward pass saves besides the model's own weights."""
    torch.manual_seed(0)
    model = get_peft_model(
        make_model("mixtral"), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=targets)
    ).train()
    parameters, saved = {weight.untyped_storage().data_ptr() for weight in model.parameters()}, {}

    def record(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = (storage.nbytes() // 4, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        out = model(torch.arange(3, 9)[None]).logits
    assert out.requires_grad
    return sum(count for count, _ in saved.values())


@pytest.mark.skipif(not EXPERTS_SUPPORTED, reason="this PEFT puts no LoRA on experts by itself")
def test_models_with_experts_are_those_that_peft_knows():
    from peft.utils import transformers_weight_conversion as known

    patterns = known._MODEL_TO_CONVERSION_PATTERN
    known_names = {name for name, pattern in patterns.items() if pattern in known._MOE_TARGET_MODULE_MAPPING}
    assert known_names & set(transformers.CONFIG_MAPPING.keys()) == LORA_EXPERT_TYPES
