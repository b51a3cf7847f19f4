"""Biases, whole modules and chosen layers: trained, resumed, loaded, merged, estimated, refused."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from training_pro.core.engine import GgufRequest
from training_pro.core.errors import ModelError, SavingError, SettingsError
from training_pro.core.jobs import Advice, Job
from training_pro.engine.lora import adapter_stash, disable_lora
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.tests.engine.architectures import save_model, simulate_kill
from training_pro.tests.engine.saving.test_merging import assert_merged, logits
from training_pro.tests.engine.test_given_back import tensors

QWEN = {"bias": "all", "targets": "q-v"}
CASES = [
    ("qwen2", QWEN),
    ("qwen2", {**QWEN, "bias": "lora_only"}),
    ("gpt2", {"bias": "all", "targets": "q-v"}),
    ("gpt2", {"bias": "all", "targets": "q-v", "modules_to_save": ["ln_f"]}),
    ("llama", {"modules_to_save": ["norm", "input_layernorm"]}),
    ("llama", {"modules_to_save": ["mlp", "lm_head"], "targets": "q-k-v-o"}),
    ("llama", {"modules_to_save": ["embed_tokens"], "train_head": True}),
    ("llama", {"layers_to_transform": "1"}),
    ("llama", {"layers_to_transform": "0-1", "targets": ["q_proj", "lm_head"], "modules_to_save": "norm"}),
]


def host_of(place, name):
    return StandaloneHost(place.folders, model=str(save_model(place, name, tied=False)))


def saved_weights(place, name="a"):
    return load_file(place.lora(name) / "adapter_model.safetensors")


@pytest.mark.parametrize(("name", "more"), CASES)
def test_a_run_changes_what_it_says_leaves_the_model_and_merges(place, tmp_path, name, more):
    host = host_of(place, name)
    before = tensors(host.loaded_model().model)
    disk = PeftEngine().check(place.settings(**more), host).disk
    place.train(host, **more)
    assert tensors(host.loaded_model().model) == before
    weights = saved_weights(place)
    assert all(weight.abs().sum() > 0 for weight in weights.values())
    assert not any("original_module" in key for key in weights)
    assert (disk.made, disk.exact) == (4 * sum(weight.numel() for weight in weights.values()), True)
    assert_merged(host_of(place, name), "a", tmp_path / "new")


@pytest.mark.parametrize(("name", "more"), CASES)
def test_peft_alone_loads_it_and_strength_0_is_the_model_itself(place, name, more):
    place.train(host_of(place, name), **more)
    host = host_of(place, name)
    base = host.loaded_model().model
    plain, before = logits(base), tensors(base)
    place.attach_lora(host, "a")
    ours = logits(host.loaded_model().model)
    place.detach_lora(host)
    assert tensors(base) == before
    if "modules_to_save" not in more:  # these replace a module and know no strength
        place.attach_lora(host, "a", strength=0.0)
        assert torch.allclose(logits(host.loaded_model().model), plain, atol=1e-6)
        place.detach_lora(host)
    peft = logits(PeftModel.from_pretrained(base, place.lora()))
    assert torch.allclose(ours, peft, atol=1e-5) and not torch.allclose(ours, plain, atol=1e-3)


@pytest.mark.parametrize(("name", "more"), CASES[:2] + CASES[4:5] + CASES[7:8])
def test_a_killed_run_resumes_to_the_same_bytes(place, name, more):
    host = host_of(place, name)
    place.train(host, epochs=2, **more)
    expected = place.weights()
    simulate_kill(place, "a", 5)
    place.train(host, epochs=2, resume="newest", **more)
    assert place.weights() == expected


@pytest.mark.parametrize(("name", "more"), CASES[:2] + CASES[4:5])
def test_it_is_trained_further_from_its_own_values(place, name, more):
    host = host_of(place, name)
    place.train(host, **more)
    before = saved_weights(place)
    place.train(host, if_exists="continue", max_steps=1, **{**more, "learning_rate": 1e-9})
    assert all(torch.allclose(weight, before[key], atol=1e-6) for key, weight in saved_weights(place).items())
    with pytest.raises(SettingsError, match=r"(Bias|Train Head) is \w+ in the LoRA 'a'"):
        place.train(host, if_exists="continue", targets=more.get("targets", "all-linear"))


def test_a_lora_with_biases_survives_the_models_leaving_memory(place):
    place.train(host_of(place, "qwen2"), **QWEN)
    host = host_of(place, "qwen2")
    plain = tensors(host.loaded_model().model)
    place.attach_lora(host, "a", strength=0.5)
    attached = logits(host.loaded_model().model)
    snapshot = adapter_stash.snapshot_adapters(host)
    host.unload()
    snapshot.attach_lora(host)
    assert torch.equal(logits(host.loaded_model().model), attached)
    place.detach_lora(host)
    assert tensors(host.loaded_model().model) == plain


def test_a_run_with_an_attached_lora_trains_on_the_models_own_biases(place):
    host = host_of(place, "qwen2")
    place.train(host, **QWEN)
    expected = place.weights()
    place.attach_lora(host, "a")
    attached = logits(host.loaded_model().model)
    place.train(host, name="b", **QWEN)
    assert place.weights("b") == expected
    assert torch.equal(logits(host.loaded_model().model), attached)


def test_a_sample_without_the_lora_is_without_its_biases(place):
    host = host_of(place, "qwen2")
    place.train(host, **QWEN)
    plain = logits(host.loaded_model().model)
    place.attach_lora(host, "a")
    model = host.loaded_model().model
    attached = logits(model)
    with disable_lora(model):
        assert torch.equal(logits(model), plain)
    assert torch.equal(logits(model), attached)


def test_biases_that_another_program_has_overwritten_are_refused(place):
    host = host_of(place, "qwen2")
    place.train(host, **QWEN)
    base = host.loaded_model().model
    host.set_loras(PeftModel.from_pretrained(base, place.lora()), ("a",))
    for action in (
        place.detach_lora,
        lambda host: place.attach_lora(host, "a"),
        lambda host: place.train(host, name="b"),
    ):
        with pytest.raises(ModelError, match="outside Training PRO"):
            action(host)


def test_a_model_without_biases_is_told_so_by_check_and_run(place):
    expected = "Bias all: this model has no biases, so this setting has no effect. Set Bias to none."
    assert expected in PeftEngine().check(place.settings(bias="all"), place.host()).advice
    job = Job("training", "a test")
    place.train(bias="all", max_steps=1, job=job)
    assert expected in [event.text for event in job.log.since(0) if isinstance(event, Advice)]


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        (
            {"modules_to_save": ["nonsense"]},
            "Modules to save: this model has no module called nonsense. Its modules are embed",
        ),
        (
            {"modules_to_save": ["mlp"]},
            "Modules to save: this setting trains model.layers.0.mlp in full, but model.layers.0.m",
        ),
        (
            {"modules_to_save": ["act_fn"]},
            "Modules to save: this setting trains model.layers.0.mlp.act_fn, which has no wei",
        ),
        (
            {"modules_to_save": ["mlp", "up_proj"], "targets": "q-v"},
            "Modules to save: this setting trains model.layers.0.mlp in full, including the modules inside it.",
        ),
        (
            {"layers_to_transform": "0-2"},
            "Layers to transform: there is no layer 2. This model has 2 layers, numbered 0 to 1.",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_check_and_run(place, more, refusal):
    (problem,) = PeftEngine().check(place.settings(**more), place.host()).problems
    assert problem.startswith(refusal)
    with pytest.raises(SettingsError) as error:
        place.train(**more)
    assert str(error.value).startswith(refusal)


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "0,,1", "-1"])
def test_lists_of_layers_are_checked(place, text):
    with pytest.raises(SettingsError, match="Layers to transform: "):
        place.settings(layers_to_transform=text)


def test_quantized_modules_can_not_be_trained_in_full(place):
    with pytest.raises(
        SettingsError, match=r"o_proj in full, but it is quantized\. Load the model in 16 or 32 bits"
    ):
        place.train(place.host("4bit"), targets="q-v", modules_to_save=["o_proj"])


@pytest.mark.parametrize(
    ("key", "value"), [("bias", "all"), ("modules_to_save", ["norm"]), ("layers_to_transform", "0")]
)
def test_full_fine_tuning_refuses_them_and_float16_those_that_train_the_model(place, key, value):
    report = PeftEngine().check(place.settings(method="full", learning_rate=1e-4, **{key: value}), place.host())
    assert any("apply only to a LoRA: " in problem for problem in report.problems)
    report = PeftEngine().check(place.settings(**{key: value}), place.host("float16"))
    assert any("the model is in float16" in problem for problem in report.problems) is (
        key != "layers_to_transform"
    )


def test_in_bfloat16_small_steps_are_said_to_be_lost(place):
    report = PeftEngine().check(place.settings(modules_to_save="norm", learning_rate=1e-5), place.host("bfloat16"))
    assert any(advice.startswith("Modules to save: the model is in bfloat16") for advice in report.advice)


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [("qwen2", QWEN, "it has biases"), ("llama", {"modules_to_save": "norm"}, "contains weights besides")],
)
def test_gguf_refuses_what_llama_cpp_can_not_hold(place, name, more, reason):
    place.train(host_of(place, name), **more)
    with pytest.raises(SavingError, match=reason):
        PeftEngine().export_gguf(GgufRequest("a"), place.host())


def test_only_the_chosen_layers_have_a_lora_and_memory_knows(place):
    place.train(layers_to_transform="1")
    assert {key.split("layers.")[1][0] for key in saved_weights(place)} == {"1"}
    every, one = (
        PeftEngine().check(place.settings(layers_to_transform=layers), place.host()).memory.lora
        for layers in ("", "1")
    )
    assert one == every / 2


def test_experts_can_not_be_chosen_by_layer(place):
    host = host_of(place, "mixtral")
    (problem,) = PeftEngine().check(place.settings(layers_to_transform="0"), host).problems
    assert problem.startswith("Layers to transform: PEFT can't train the experts of only some layers.")
    place.train(host, layers_to_transform="0", targets="q-k-v-o", max_steps=1)
    assert not any("layers.1" in key for key in saved_weights(place))
