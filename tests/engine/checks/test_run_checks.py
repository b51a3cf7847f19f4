"""Requirements of model and machine: Check, the probe and a run report the same, before anything is loaded."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import accelerate
import pytest
import torch
from training_pro.core.engine import MergeRequest
from training_pro.core.errors import ModelError, SettingsError
from training_pro.core.jobs import Job
from training_pro.engine.checks import loaded_model_problems
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.engine.watching import at

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
    ("loading", "values", "starts"),
    [
        ("float16", {"train_head": True}, ["Train Head: the model is in float16"]),
        ("float16", {"method": "full"}, ["Method full: the model is in float16"]),
        ("float16", {}, []),
        ("8bit", {"dora": True}, ["DoRA can't be trained on 8-bit weights."]),
        ("8bit", {"method": "full"}, ["Method full: a model loaded in 8-bit can't be fully fine-tuned."]),
        (
            "auto",
            {"method": "full", "dora": True},
            ["The method is 'full', but these settings apply only to"],
        ),
        (
            "auto",
            {"method": "full", "name": "tiny"},
            ["Name: 'tiny' is the name of the model that"],
        ),
        ("auto", {"attention": "flash_attention_2"}, ["Attention: flash_attention_2 needs an NVIDIA GPU."]),
        (
            "8bit",
            {"targets": ["foo"]},
            ["Target modules: this model has no layer called foo. Its"],
        ),
        ("auto", {"rank": 65}, ["LoRA Rank 65 is larger than the model's hidden size (64). A rank above that"]),
        ("auto", {"optimizer": "adamw_torhc", "liger": True}, ["Optimizer: transformers has no", "Liger kernels"]),
    ],
)
def test_all_entry_points_refuse_alike_and_load_nothing(place, loading, values, starts):
    host, settings = place.host(loading), place.settings(**values)
    problems = reported_by_all(settings, host) if starts else reported("check", settings, host)
    assert len(problems) == len(starts)
    assert all(problem.startswith(start) for problem, start in zip(problems, starts, strict=True))
    assert not is_loaded(host) and not place.lora().exists()


@pytest.mark.parametrize(
    ("values", "layers"),
    [({"rank": 64}, "k: 32, v: 32"), ({"rank": 64, "targets": ["o_proj"]}, ""), ({"rank": 32}, "")],
)
def test_check_advises_on_a_rank_above_the_smaller_side_of_a_layer(place, values, layers):
    report = PeftEngine().check(place.settings(learning_rate=1e-4, **values), place.host())
    assert [f"({layers})" in text for text in report.advice if "Rank" in text] == ([True] if layers else [])


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


@pytest.mark.parametrize("training", [{}, {"train_head": True, "targets": "q-v"}], ids=["plain", "with its head"])
def test_during_a_run_another_is_checked_against_the_models_own_layers(place, training):
    host, engine, during = place.host(), PeftEngine(), []
    before = dict(engine.layers(host))
    requests = [place.settings(name="b", targets=targets) for targets in ("q-v", ["q_proj"], ["default"])]

    def ask():
        during.append(dict(engine.layers(host)))
        during.extend(engine.check_start(settings, host).problems for settings in requests)

    def as_a_page(job):
        page = threading.Thread(target=ask)
        page.start()
        page.join()

    place.train(host, job=at({2: as_a_page}), max_steps=2, **training)
    layers, *fitting, (problem,) = during
    assert (layers, fitting) == (before, [(), ()])
    start = f"Target modules: this model has no layer called default. Its layers are {', '.join(before)}. "
    assert problem.startswith(start)


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
    assert only.startswith("The model is quantized with fp8, which transformers can't train. Load the original")


@pytest.mark.parametrize(
    ("devices", "refused"),
    [(["cpu"], False), (["cuda:0"] * 2, False), (["cuda:1"] * 2, True), (["cuda:0", "cuda:1"], False)],
)
def test_a_model_on_another_gpu_than_the_first_is_refused(devices, refused, monkeypatch):
    parameters = [SimpleNamespace(device=torch.device(device)) for device in devices]
    model = SimpleNamespace(parameters=lambda: parameters)
    problems = [problem.text for problem in loaded_model_problems(model)]
    assert ["is on GPU 1" in text and "CUDA_VISIBLE_DEVICES=1" in text for text in problems] == [True] * refused
    monkeypatch.setenv("WORLD_SIZE", "2")  # each process has a GPU of its own
    assert not list(loaded_model_problems(model))
