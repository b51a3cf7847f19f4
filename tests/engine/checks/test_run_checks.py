"""Requirements of model, machine and optimizer: Check, the probe and a run report the same, before loading."""

from __future__ import annotations

import sys
from importlib.metadata import version
from types import SimpleNamespace

import accelerate
import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.engine import MergeRequest
from training_pro.core.errors import ModelError, SettingsError
from training_pro.core.jobs import Advice, Job
from training_pro.engine.compute import add_neftune_noise, collate
from training_pro.engine.peft_engine import PeftEngine
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.engine.architectures import random_examples
from training_pro.tests.engine.watching import texts

ENTRY_POINTS = {
    "check": lambda engine, asked, host: engine.check(asked, host).problems,
    "probe": lambda engine, asked, host: engine.probe(asked, host, Job("probe", "a test")),
    "run": lambda engine, asked, host: engine.train(asked, host, Job("training", "a test")),
}


def reported(entry, settings, host):
    try:
        return list(ENTRY_POINTS[entry](PeftEngine(), settings, host))
    except SettingsError as error:
        return list(error.problems)


def reported_by_all(settings, host):
    problems = [reported(entry, settings, host) for entry in ENTRY_POINTS]
    assert problems[0] == problems[1] == problems[2]
    return problems[0]


def is_loaded(host):
    return not host.model_status().problem


@pytest.mark.parametrize(
    ("loading", "values", "start"),
    [
        ("float16", {"train_head": True}, "Train Head: the model is in float16"),
        ("float16", {"method": "full"}, "Method full: the model is in float16"),
        ("8bit", {"dora": True}, "DoRA can't be trained on 8-bit weights."),
        ("8bit", {"method": "full"}, "Method full: a model loaded in 8-bit can't be fully fine-tuned."),
        ("4bit", {"method": "full"}, "Method full: a model loaded in 4-bit can't be fully fine-tuned."),
        ("auto", {"method": "full", "dora": True}, "The method is 'full', but these settings apply only"),
        ("auto", {"method": "full", "name": "tiny"}, "Name: 'tiny' is the name of the model that you"),
        (
            "auto",
            {"attention": "flash_attention_2"},
            "Attention: flash_attention_2 needs an NVIDIA GPU. Choose",
        ),
        (
            "8bit",
            {"targets": ["foo"]},
            "Target modules: this model has no layer called foo. Its layers are down_proj, gate_proj, k_proj, ",
        ),
        ("auto", {"report_to": "trackio"}, "Report to: trackio is not installed. Install it ("),
        ("auto", {"optimizer": "galore_adamw"}, "Optimizer: galore_adamw does not work here: it is an"),
        ("auto", {"rank": 65}, "LoRA Rank 65 is larger than the model's hidden size (64). A rank above that"),
        ("auto", {"liger": True}, "Liger kernels"),
    ],
)
def test_all_entry_points_refuse_alike_and_load_nothing(place, loading, values, start):
    host, settings = place.host(loading), place.settings(**values)
    (problem,) = reported_by_all(settings, host)
    assert problem.startswith(start)
    assert not is_loaded(host) and not place.lora().exists()


def test_a_start_reports_all_that_check_reports_also_of_the_data_and_the_name(with_lora):
    settings, host = with_lora.settings(optimizer="nonsense", data=["nothing.txt"], liger=True), with_lora.host()
    problems = reported("run", settings, host)
    assert [problem.partition(":")[0] for problem in problems[1:]] == ["Optimizer", "Liger kernels", "Name"]
    assert "nothing.txt" in problems[0]
    assert problems == list(PeftEngine().check_start(settings, host).problems)
    assert not is_loaded(host)

    def asleep():
        raise ModelError("It sleeps.")

    host.card = asleep  # Check is not possible, and a start reports what is known
    (only,) = reported("run", with_lora.settings(name="b", optimizer="nonsense"), host)
    assert only.startswith("Optimizer: ")


def test_target_layers_are_checked_alike_before_loading_loaded_and_under_a_lora(with_lora):
    host, engine = with_lora.host(), PeftEngine()
    requests = [with_lora.settings(name="b", targets=targets) for targets in ("q-v", ["q_proj"], ["foo"])]

    def found():
        return [bool(reported("check", settings, host)) for settings in requests], engine.layers(host)

    before = found()
    assert before[0] == [False, False, True] and not is_loaded(host)
    host.loaded_model()
    assert found() == before
    with_lora.attach_lora(host, "a")
    assert found() == before
    host.card().config["model_type"] = "something_new"  # custom code, which is not run before it is loaded
    host.unload()
    assert reported("check", requests[2], host) == []


def test_a_model_whose_weights_cannot_be_trained_is_refused(with_lora, tmp_path):
    """One that did not fit on the GPU, which is not merged either, and one whose quantization is only for use."""
    host = with_lora.host()
    accelerate.cpu_offload(host.loaded_model().model, execution_device=torch.device("cpu"))
    (only,) = reported_by_all(with_lora.settings(name="b"), host)
    assert only.startswith("The model did not fit on the GPU")
    with pytest.raises(ModelError, match="tiny did not fit on the GPU"):
        PeftEngine().merge(MergeRequest("a", str(tmp_path / "out")), host, Job("model", "a test"))
    assert not (tmp_path / "out").exists()
    config, host = SimpleNamespace(quant_method="fp8"), with_lora.host()
    host.loaded_model().model.hf_quantizer = SimpleNamespace(is_trainable=False, quantization_config=config)
    (only,) = reported_by_all(with_lora.settings(name="b"), host)
    assert only.startswith("The model is quantized with fp8, which transformers can't train. Choose a version")


DECLARED = tuple(SETTINGS["optimizer"].choices)


@pytest.mark.parametrize("name", [*DECLARED, "rmsprop", "adagrad"])
def test_an_optimizer_steps_or_is_refused_where_bitsandbytes_needs_a_gpu(place, name):
    needs_gpu = "paged" in name or ("8bit" in name and version("bitsandbytes") < "0.50")
    if needs_gpu:
        with pytest.raises(SettingsError, match=f"Optimizer: {name} needs a GPU"):
            place.train(optimizer=name, max_steps=1)
    else:
        place.train(optimizer=name, max_steps=1, save_each_epoch=False, learning_rate=1e-3)
    assert place.lora().exists() is not needs_gpu
    if "bitsandbytes" in sys.modules:  # embeddings would stay in its list, and on the GPU
        manager = sys.modules["bitsandbytes"].optim.GlobalOptimManager.get_instance()
        assert not manager.module_weight_config_triple


@pytest.mark.parametrize("in_one_row", [False, True])
def test_the_noise_of_a_token_depends_on_the_length_of_its_example_and_is_removed(in_one_row):
    torch.manual_seed(0)
    embeddings, batch = torch.nn.Embedding(200, 16), collate(random_examples(4, 400), in_one_row=in_one_row)
    clean = embeddings(batch.inputs["input_ids"])
    with add_neftune_noise(embeddings, 5.0, batch):
        difference = (embeddings(batch.inputs["input_ids"]) - clean).abs()
    short, long = (difference[0, :4], difference[0, 4:] if in_one_row else difference[1])
    assert 0.9 * 5 / 8 < float(short.max()) <= 5 / 8
    assert 0.9 * 5 / 80 < float(long.max()) <= 5 / 80
    assert torch.equal(embeddings(batch.inputs["input_ids"]), clean)


HEAD = {"train_head": True, "max_steps": 12, "schedule": "constant", "epochs": 3}
SLOW = {**HEAD, "learning_rate": 1e-5}


def about_bfloat16(advice):
    return [text for text in advice if "bfloat16" in text]


@pytest.mark.long
def test_a_run_gives_the_advice_of_check_and_it_is_right(place):
    changed = {}
    for loading in ("float32", "bfloat16"):
        host, job = place.host(loading), Job("training", "a test")
        before = host.loaded_model().model.get_output_embeddings().weight.detach().clone()
        place.train(host, job=job, name=f"in-{loading}", **SLOW)
        checked = PeftEngine().check(place.settings(name="new", **SLOW), host)
        assert about_bfloat16(texts(job, Advice)) == about_bfloat16(checked.advice)
        assert len(about_bfloat16(checked.advice)) == (loading == "bfloat16")
        weights = load_file(place.lora(f"in-{loading}") / "adapter_model.safetensors")
        (head,) = (weight for name, weight in weights.items() if "lm_head" in name and "lora" not in name)
        changed[loading] = float((head != before).float().mean())
    assert changed["float32"] > 0.95 and changed["bfloat16"] < 0.3
