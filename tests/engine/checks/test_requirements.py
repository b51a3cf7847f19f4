"""What this model or machine cannot do: Check, the probe and a run say the same, before anything is loaded."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import accelerate
import pytest
import torch
from training_pro.core.engine import Merge
from training_pro.core.errors import ModelError, SettingsError
from training_pro.core.jobs.events import Progress
from training_pro.core.jobs.job import Job
from training_pro.engine.checks import requirements
from training_pro.engine.checks.requirements import Here
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training.setup import _told_by_types
from training_pro.tests.tiny import watched

ROADS = {
    "check": lambda engine, asked, host: engine.check(asked, host).problems,
    "probe": lambda engine, asked, host: engine.probe(asked, host, Job("probe", "a test")),
    "run": lambda engine, asked, host: engine.train(asked, host, Job("training", "a test")),
}


def said(road, asked, host):
    try:
        return list(ROADS[road](PeftEngine(), asked, host))
    except SettingsError as error:
        return list(error.problems)


@pytest.mark.parametrize(
    ("loading", "asked", "sentence"),
    [
        ("float16", {"train_head": True}, "Train Head: the model is held in float16"),
        ("float16", {"method": "full"}, "Method full: the model is held in float16"),
        ("8bit", {"dora": True}, "DoRA: it cannot be trained on 8-bit weights."),
        ("auto", {"attention": "flash_attention_2"}, "Attention: flash_attention_2 wants an NVIDIA card."),
        ("auto", {"liger": True}, "Liger: "),
        ("8bit", {"targets": ["foo"]}, "Which layers: this model has no layer called foo. It has down_proj,"),
        ("auto", {"optimizer": "nonsense"}, "Optimizer: transformers knows no 'nonsense'."),
        ("auto", {"optimizer": "paged_adamw_8bit"}, "Optimizer: paged_adamw_8bit "),
    ],
)
def test_all_roads_refuse_it_alike_and_load_nothing(place, loading, asked, sentence):
    host = place.host(loading)
    found = {road: said(road, place.settings(**asked), host) for road in ROADS}
    assert found["check"] == found["probe"] == found["run"]
    (only,) = found["run"]
    assert only.startswith(sentence)
    assert host._loaded is None
    assert not place.lora().exists()


def test_several_come_at_once(place):
    asked = place.settings(train_head=True, liger=True, optimizer="nonsense")
    assert len(said("run", asked, place.host("float16"))) == 3


def test_a_start_says_all_that_check_says_also_of_the_data_and_of_the_name(with_lora):
    asked, host = with_lora.settings(optimizer="nonsense", data=["nothing.txt"], liger=True), with_lora.host()
    found = said("run", asked, host)
    assert [problem.partition(":")[0] for problem in found[1:]] == ["Optimizer", "Liger", "Name"]
    assert "nothing.txt" in found[0]
    assert found == list(PeftEngine().foresee(asked, host).problems)
    assert host._loaded is None


def test_where_check_is_not_possible_a_start_says_what_it_knows(place, monkeypatch):
    host = place.host()
    monkeypatch.setattr(host, "card", lambda: (_ for _ in ()).throw(ModelError("It sleeps.")))
    (only,) = said("run", place.settings(optimizer="nonsense"), host)
    assert only.startswith("Optimizer: ")


def test_a_lora_on_float16_weights_trains_and_is_checked_ready(place):
    host = place.host("float16")
    assert said("check", place.settings(), host) == []
    assert place.train(host, max_steps=1).outcome == "finished"


def test_of_a_model_in_memory_the_model_itself_is_asked(place):
    host = place.host("float16")
    host.load(str(place.tiny), "float16")
    assert Here.of(host) == Here("cpu", "", "float16", True)
    host.loaded().model.bfloat16()
    assert Here.of(host).kind == "bfloat16"


def test_which_layers_there_are_is_asked_with_a_loaded_model_and_under_a_lora_too(with_lora):
    host = with_lora.host()
    asked = [with_lora.settings(name="b", targets=targets) for targets in ("q-v", ["q_proj"], ["foo"])]

    def refused():
        return [bool(said("check", one, host)) for one in asked]

    before = refused()
    host.loaded()
    loaded = refused()
    with_lora.put_on(host, "a")
    assert before == loaded == refused() == [False, False, True]


@pytest.mark.parametrize("training", [{}, {"train_head": True, "targets": "q-v"}], ids=["plain", "with its head"])
def test_while_a_run_trains_another_is_judged_by_the_models_own_layers(place, training):
    host, engine = place.host(), PeftEngine()
    before, during = dict(engine.layers(host)), []

    def ask():
        asked = [place.settings(name="b", targets=targets) for targets in ("q-v", ["q_proj"], ["default"])]
        during.extend([dict(engine.layers(host)), *(engine.foresee(one, host).problems for one in asked)])

    def watch(job, event):
        if isinstance(event, Progress) and event.step == 2:
            page = threading.Thread(target=ask)
            page.start()
            page.join()

    place.train(host, job=watched(watch), **training)
    there = ", ".join(before)
    no_such = f"Which layers: this model has no layer called default. It has {there}. Choose all, or name some of "
    assert during == [before, (), (), (no_such + "these.",)]


def test_the_layers_under_a_lora_that_is_on_are_named(with_lora):
    host = with_lora.host()
    bare = PeftEngine().layers(host)
    with_lora.put_on(host, "a")
    assert PeftEngine().layers(host) == bare


def test_a_model_with_code_of_its_own_is_not_judged_before_it_is_there(place, monkeypatch):
    host = place.host()
    monkeypatch.setitem(host.card().config, "model_type", "something_new")
    assert said("check", place.settings(targets=["foo"]), host) == []


def test_weights_that_turn_out_to_be_float16_are_refused_before_the_first_step(place):
    model, job = place.host("float16").loaded().model, Job("training", "a test")
    _told_by_types(model, place.settings(), job)
    with pytest.raises(SettingsError, match="leave Train Head off"):
        _told_by_types(model, place.settings(train_head=True), job)
    with pytest.raises(SettingsError, match="Load it in bfloat16 or float32"):
        _told_by_types(model, place.settings(method="full"), job)


@pytest.fixture
def offloaded(with_lora):
    """A host whose model did not fit: accelerate keeps its weights elsewhere until they are used."""
    host = with_lora.host()
    accelerate.cpu_offload(host.loaded().model, execution_device=torch.device("cpu"))
    return host


def test_a_model_that_did_not_fit_on_the_card_is_refused_on_all_roads(with_lora, offloaded):
    found = {road: said(road, with_lora.settings(name="b"), offloaded) for road in ROADS}
    assert found["check"] == found["probe"] == found["run"]
    (only,) = found["run"]
    assert only.startswith("Model: it did not fit on the graphics card")


def test_one_that_was_only_loaded_for_the_run_too(with_lora, offloaded, monkeypatch):
    monkeypatch.setattr(requirements.Here, "of", lambda host: Here("cuda", "", "float16", True))
    assert said("run", with_lora.settings(name="b"), offloaded)[0].startswith("Model: it did not fit")


def test_nor_does_it_take_a_lora_in(offloaded, tmp_path):
    with pytest.raises(ModelError, match="tiny did not fit on the graphics card"):
        PeftEngine().merge(Merge("a", str(tmp_path / "out")), offloaded, Job("model", "a test"))
    assert not (tmp_path / "out").exists()


def test_flash_attention_wants_half_precision(monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: object())
    (told,) = requirements.attention_problems("flash_attention_2", "cuda", "float32")
    assert told.startswith("Attention: flash_attention_2 works in bfloat16 and float16 only")
    for half in ("bfloat16", "float16", "4bit", ""):
        assert not list(requirements.attention_problems("flash_attention_2", "cuda", half))


class OnCards:
    """A model whose weights lie there."""

    def __init__(self, *places):
        self._places = places

    def parameters(self):
        return (SimpleNamespace(device=torch.device(place)) for place in self._places)


@pytest.mark.parametrize(
    ("places", "card"),
    [(["cpu"], 0), (["cuda"], 0), (["cuda:0"] * 2, 0), (["cuda:1"] * 2, 1), (["cuda:0", "cuda:1"], 0)],
)
def test_a_model_on_another_card_than_the_first_is_refused(places, card, monkeypatch):
    assert requirements.only_card(OnCards(*places)) == card
    told = list(requirements.card_problems(card))
    assert len(told) == bool(card)
    if told:
        assert "graphics card 1 alone" in told[0] and "CUDA_VISIBLE_DEVICES=1" in told[0]
        monkeypatch.setattr(requirements.dist_env, "count", lambda: 2)
        assert not list(requirements.card_problems(card))


def test_check_and_run_say_so_too(with_lora, monkeypatch):
    monkeypatch.setattr(requirements, "only_card", lambda model: 1)
    host = with_lora.host()
    host.loaded()
    for road in ROADS:
        assert said(road, with_lora.settings(name="b"), host)[0].startswith(
            "Model: it lies on graphics card 1 alone"
        )
