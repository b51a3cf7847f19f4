"""Requirements of model and machine: Check, the probe and a run report the same, before anything is loaded."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import accelerate
import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.engine import MergeRequest
from training_pro.core.errors import ModelError, SettingsError
from training_pro.core.jobs import Job, Step
from training_pro.engine.checks import run_checks
from training_pro.engine.checks.run_checks import DeviceInfo
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training.setup import _check_trainable_dtypes
from training_pro.tests.tiny import watched_job

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


@pytest.mark.parametrize(
    ("loading", "values", "sentence"),
    [
        ("float16", {"train_head": True}, "Train Head: the model is in float16"),
        ("float16", {"method": "full"}, "Method full: the model is in float16"),
        ("8bit", {"dora": True}, "DoRA can't be trained on 8-bit weights."),
        ("auto", {"attention": "flash_attention_2"}, "Attention: flash_attention_2 needs an NVIDIA GPU."),
        ("auto", {"liger": True}, "Liger kernels: "),
        (
            "8bit",
            {"targets": ["foo"]},
            "Target modules: this model has no layer called foo. Its layers are down_proj,",
        ),
        (
            "auto",
            {"rank": 65},
            "LoRA Rank 65 is larger than the model's hidden size (64). A rank above that adds nothing.",
        ),
        ("auto", {"optimizer": "nonsense"}, "Optimizer: transformers has no optimizer called 'nonsense'."),
        ("auto", {"optimizer": "paged_adamw_8bit"}, "Optimizer: paged_adamw_8bit "),
    ],
)
def test_all_entry_points_refuse_alike_and_load_nothing(place, loading, values, sentence):
    host = place.host(loading)
    problems = {entry: reported(entry, place.settings(**values), host) for entry in ENTRY_POINTS}
    assert problems["check"] == problems["probe"] == problems["run"]
    (only,) = problems["run"]
    assert only.startswith(sentence)
    assert host._loaded is None
    assert not place.lora().exists()


@pytest.mark.parametrize(
    ("values", "layers"),
    [({"rank": 64}, "k: 32, v: 32"), ({"rank": 64, "targets": ["o_proj"]}, ""), ({"rank": 32}, "")],
)
def test_check_advises_on_a_rank_above_the_smaller_side_of_a_layer(place, values, layers):
    values = {"learning_rate": 1e-4, **values}
    advice = [text for text in PeftEngine().check(place.settings(**values), place.host()).advice if "Rank" in text]
    assert [f"({layers})" in text for text in advice] == ([True] if layers else [])


def test_a_lora_of_the_hidden_size_trains(place):
    place.train(rank=64, alpha=64, learning_rate=1e-4, max_steps=1)
    weights = load_file(place.lora() / "adapter_model.safetensors")
    assert {min(weight.shape) for weight in weights.values()} == {32, 64}


def test_several_problems_are_reported_at_once(place):
    settings = place.settings(train_head=True, liger=True, optimizer="nonsense")
    assert len(reported("run", settings, place.host("float16"))) == 3


def test_a_start_reports_all_that_check_reports_also_of_the_data_and_the_name(with_lora):
    settings, host = with_lora.settings(optimizer="nonsense", data=["nothing.txt"], liger=True), with_lora.host()
    problems = reported("run", settings, host)
    assert [problem.partition(":")[0] for problem in problems[1:]] == ["Optimizer", "Liger kernels", "Name"]
    assert "nothing.txt" in problems[0]
    assert problems == list(PeftEngine().check_start(settings, host).problems)
    assert host._loaded is None


def test_where_check_is_not_possible_a_start_reports_what_is_known(place, monkeypatch):
    host = place.host()
    monkeypatch.setattr(host, "card", lambda: (_ for _ in ()).throw(ModelError("It sleeps.")))
    (only,) = reported("run", place.settings(optimizer="nonsense"), host)
    assert only.startswith("Optimizer: ")


def test_a_lora_on_float16_weights_trains_and_is_checked_ready(place):
    host = place.host("float16")
    assert reported("check", place.settings(), host) == []
    assert place.train(host, max_steps=1).outcome == "finished"


def test_a_loaded_model_is_inspected_itself(place):
    host = place.host("float16")
    host.load(str(place.tiny), "float16")
    assert DeviceInfo.of(host) == DeviceInfo("cpu", "", "float16", True)
    host.loaded_model().model.bfloat16()
    assert DeviceInfo.of(host).kind == "bfloat16"


def test_target_layers_are_checked_with_a_loaded_model_and_under_a_lora_too(with_lora):
    host = with_lora.host()
    requests = [with_lora.settings(name="b", targets=targets) for targets in ("q-v", ["q_proj"], ["foo"])]

    def refused():
        return [bool(reported("check", settings, host)) for settings in requests]

    before = refused()
    host.loaded_model()
    loaded = refused()
    with_lora.attach_lora(host, "a")
    assert before == loaded == refused() == [False, False, True]


@pytest.mark.parametrize("training", [{}, {"train_head": True, "targets": "q-v"}], ids=["plain", "with its head"])
def test_during_a_run_another_is_checked_against_the_models_own_layers(place, training):
    host, engine = place.host(), PeftEngine()
    before, during = dict(engine.layers(host)), []

    def ask():
        requests = [place.settings(name="b", targets=targets) for targets in ("q-v", ["q_proj"], ["default"])]
        during.extend(
            [dict(engine.layers(host)), *(engine.check_start(settings, host).problems for settings in requests)]
        )

    def watch(job, event):
        if isinstance(event, Step) and event.step == 2:
            page = threading.Thread(target=ask)
            page.start()
            page.join()

    place.train(host, job=watched_job(watch), **training)
    existing = ", ".join(before)
    message = (
        f"Target modules: this model has no layer called default. Its layers are {existing}. "
        "Choose all linear layers, or enter some of "
    )
    assert during == [before, (), (), (message + "these.",)]


def test_the_layers_under_a_loaded_lora_are_listed(with_lora):
    host = with_lora.host()
    layers = PeftEngine().layers(host)
    with_lora.attach_lora(host, "a")
    assert PeftEngine().layers(host) == layers


def test_a_model_with_custom_code_is_not_checked_before_it_is_loaded(place, monkeypatch):
    host = place.host()
    monkeypatch.setitem(host.card().config, "model_type", "something_new")
    assert reported("check", place.settings(targets=["foo"]), host) == []


def test_weights_that_turn_out_to_be_float16_are_refused_before_the_first_step(place):
    model, job = place.host("float16").loaded_model().model, Job("training", "a test")
    _check_trainable_dtypes(model, place.settings(), job)
    with pytest.raises(SettingsError, match="turn Train Head off"):
        _check_trainable_dtypes(model, place.settings(train_head=True), job)
    with pytest.raises(SettingsError, match="Load the model in bfloat16 or float32"):
        _check_trainable_dtypes(model, place.settings(method="full"), job)


@pytest.fixture
def offloaded(with_lora):
    """A host whose model did not fit on the GPU: accelerate moves its weights there when they are used."""
    host = with_lora.host()
    accelerate.cpu_offload(host.loaded_model().model, execution_device=torch.device("cpu"))
    return host


def test_a_model_that_did_not_fit_on_the_gpu_is_refused_by_all_entry_points(with_lora, offloaded):
    problems = {entry: reported(entry, with_lora.settings(name="b"), offloaded) for entry in ENTRY_POINTS}
    assert problems["check"] == problems["probe"] == problems["run"]
    (only,) = problems["run"]
    assert only.startswith("The model did not fit on the GPU")


def test_a_model_loaded_for_the_run_is_refused_too(with_lora, offloaded, monkeypatch):
    monkeypatch.setattr(run_checks.DeviceInfo, "of", lambda host: DeviceInfo("cuda", "", "float16", True))
    assert reported("run", with_lora.settings(name="b"), offloaded)[0].startswith("The model did not fit")


def test_an_offloaded_model_cannot_be_merged(offloaded, tmp_path):
    with pytest.raises(ModelError, match="tiny did not fit on the GPU"):
        PeftEngine().merge(MergeRequest("a", str(tmp_path / "out")), offloaded, Job("model", "a test"))
    assert not (tmp_path / "out").exists()


def test_flash_attention_needs_half_precision(monkeypatch):
    monkeypatch.setattr(run_checks, "find_spec", lambda name: object())
    (problem,) = run_checks.attention_problems("flash_attention_2", "cuda", "float32")
    assert problem.text.startswith("Attention: flash_attention_2 needs a model in bfloat16 or float16")
    for half in ("bfloat16", "float16", "4bit", ""):
        assert not list(run_checks.attention_problems("flash_attention_2", "cuda", half))


class FakeModel:
    """A model whose parameters are on these devices."""

    def __init__(self, *devices):
        self._devices = devices

    def parameters(self):
        return (SimpleNamespace(device=torch.device(device)) for device in self._devices)


@pytest.mark.parametrize(
    ("devices", "card"),
    [(["cpu"], 0), (["cuda"], 0), (["cuda:0"] * 2, 0), (["cuda:1"] * 2, 1), (["cuda:0", "cuda:1"], 0)],
)
def test_a_model_on_another_gpu_than_the_first_is_refused(devices, card, monkeypatch):
    problems = list(run_checks.loaded_model_problems(FakeModel(*devices)))
    assert len(problems) == bool(card)
    if problems:
        assert "is on GPU 1" in problems[0].text and "CUDA_VISIBLE_DEVICES=1" in problems[0].text
        monkeypatch.setattr(run_checks.dist_env, "world_size", lambda: 2)
        assert not list(run_checks.loaded_model_problems(FakeModel(*devices)))


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_a_quantization_that_transformers_cannot_train_is_refused_in_a_sentence(with_lora, entry):
    host = with_lora.host()
    config = SimpleNamespace(quant_method="fp8")
    host.loaded_model().model.hf_quantizer = SimpleNamespace(is_trainable=False, quantization_config=config)
    (only,) = reported(entry, with_lora.settings(name="b"), host)
    assert only.startswith("The model is quantized with fp8, which transformers can't train. Load the original")
