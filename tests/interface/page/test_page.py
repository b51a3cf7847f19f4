"""The standalone page: the size of models, loading, the Try it tab, and requests while the model is busy."""

from __future__ import annotations

import json
import re
import shutil
import threading

import gradio as gr
import pytest
from training_pro.core.jobs import Answer, JobEnded, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.interface.base import PageContext
from training_pro.interface.page import page
from training_pro.interface.tabs import TryTab
from training_pro.tests.fakes import make_folders
from training_pro.tests.interface.visit import Visit, open_tab
from training_pro.tests.records.on_disk import FINISHED, write_files
from training_pro.train_utils import size


class Host(StandaloneHost):
    """Says of itself whether it uses a graphics card."""

    on_card = False

    def uses_gpu(self):
        return self.on_card


@pytest.fixture
def host(place, tiny):
    shutil.copytree(tiny, place.folders.models / "mine")
    return Host(place.folders, model=str(tiny))


@pytest.fixture
def busy(host):
    """A session whose model a job uses until the event is set."""
    session, finish = Session(), threading.Event()
    work = lambda job: finish.wait(60) and JobEnded(outcome="finished", text="")  # noqa: E731
    session.start("training", "Training 'night'", host, work)
    yield session
    finish.set()


def picker(host, session=None):
    context = PageContext(host, PeftEngine(), session or Session())
    return Visit(lambda: page.draw_model_picker(host, context))


def test_the_memory_is_computed_for_this_machine(host):
    """Automatically, a model on a card keeps its dtype."""
    path = host.folders.models / "mine" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}))
    numbers = sum(weight.numel() for weight in host.loaded_model().model.parameters())
    for host.on_card, loading, kind in (
        (False, "auto", "float32"),
        (False, "bfloat16", "bfloat16"),
        (True, "auto", "bfloat16"),
    ):
        words = page.describe_size(host, "mine", loading)
        number, unit, loaded_as = re.search(r"about (\d+) (\w+) in memory when loaded as (\w+)", words).groups()
        expected = size(numbers * (4 if kind == "float32" else 2)).split()
        assert (loaded_as, unit) == (kind, expected[1])
        assert float(number) == pytest.approx(float(expected[0]), rel=0.02)
    path.write_text("{}")
    assert "on disk.</p>" in page.describe_size(host, "mine", "auto")
    assert page.describe_size(host, "nowhere", "auto") == ""


def test_a_single_model_is_selected_and_of_several_none(tmp_path):
    folders, selected = make_folders(tmp_path), []
    visit = picker(StandaloneHost(folders))
    for name in ("one", "other"):
        write_files(folders.models, name, {"config.json": "{}"})
        selected.append(visit.press("Reading the model", "load")["model"]["value"])
    assert selected == ["one", None]


def test_load_says_how_it_ended(host):
    visit = picker(host)
    for name, words in (("mine", "mine is loaded."), ("nowhere", "nowhere")):
        first, *_, last = visit.steps("load", model=name, loading="float32")
        assert f"Loading {name} ..." in first["model-said"]
        assert words in last["model-said"] and ("tp-bad" in last["model-said"]) == (name == "nowhere")


def test_while_the_model_is_busy_each_action_says_so_in_its_place(host, busy):
    trying = open_tab(TryTab, PageContext(host, PeftEngine(), busy))
    trying.fill(lora="a", prompt="The ferry")
    load = picker(host, busy)
    load.fill(model="mine")
    actions = [(trying, "go", "try-said"), (trying, "put-on", "put-said"), (load, "load", "model-said")]
    for visit, action, place in actions:
        refused = visit.until(action, lambda shown, place=place: shown.get(place))
        assert "The model is busy: Training &#39;night&#39;" in refused[place] and "with" not in refused


def test_answers_have_a_heading_with_their_prompt_and_an_empty_prompt_is_refused(host):
    class EchoEngine:
        def answer(self, question, host, job):
            job.log.append(Answer(side="without", piece=f"after {question.prompt}"))
            return JobEnded(outcome="finished", text="")

    visit = open_tab(TryTab, PageContext(host, EchoEngine(), Session()))
    visit.fill(**{"LoRA strength (%)": 80})
    answered = visit.press("go", prompt="The <ferry>", lora="a/checkpoint-1")
    assert answered["without"] == "after The <ferry>" and answered["with"] == ""
    assert "LoRA: a/checkpoint-1, used at 80% strength. Prompt: The &lt;ferry&gt;" in answered["try-of"]
    write_files(host.folders.loras, "a", {**FINISHED, "training_log.json": {"current_steps": 240}})
    assert "LoRA: a (trained for 240 steps), used at 80%" in visit.press("go", lora="a")["try-of"]
    empty = visit.press("go", prompt=" \n")
    assert empty.keys() == {"try-said"} and "Enter a prompt." in empty["try-said"]


@pytest.fixture
def trying(with_lora):
    """The Try it tab of a place with a LoRA; and writes the prompt that the LoRA was trained with."""
    visit = open_tab(TryTab, PageContext(with_lora.host(), PeftEngine(), Session()))

    def suggest(trained_with=None, **values):
        if trained_with:
            (with_lora.lora() / "training_prompt.json").write_text(json.dumps(trained_with), encoding="utf-8")
        return visit.press("lora", "input", **{"lora": "a", "prompt": "", **values})

    return suggest


def test_a_suggested_prompt_is_from_the_middle_of_the_data_and_keeps_its_line_breaks(trying, with_lora):
    story = (with_lora.folders.datasets / "story.txt").read_text(encoding="utf-8")
    assert 0.3 < story.index(trying()["prompt"]) / len(story) < 0.7
    text = "The Ferry of Low Water\n\nOld Maren Tull ran the ferry at dawn"
    assert trying({"example": f" {text} and more"})["prompt"] == "The Ferry of Low Water\n\nOld Maren Tull ran the"
    assert trying({"example": "Short\n"}, lora="a/checkpoint-1")["prompt"] == "Short"
    assert trying({"example": "\u6e21\u8239" * 200})["prompt"] == "\u6e21\u8239" * 40
    (with_lora.lora() / "training_prompt.json").unlink()
    assert story.startswith(trying()["prompt"])


def test_a_chat_lora_suggests_its_first_message_and_a_typed_prompt_is_kept(trying):
    opening, closing = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    example = f"{opening}Where is\nthe key?{closing}Under the mat.<|im_end|>\n"
    chat = {"kind": "chat", "before": opening, "after": closing, "starts_with_bos": False, "example": example}
    chat["message"] = "Where is\nthe key?"
    suggested = trying(chat)
    assert (suggested["prompt"], suggested["As a chat message"]) == ("Where is\nthe key?", True)
    unchanged = gr.update()
    assert trying(prompt="mine")["prompt"] == trying(lora="(no LoRA)")["prompt"] == unchanged
