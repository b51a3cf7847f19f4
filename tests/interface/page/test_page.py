"""The page of our own: what a model will take, and wishes for a model that is busy."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading

import gradio as gr
import pytest
from training_pro.core.jobs.events import Answer, Ended
from training_pro.core.jobs.session import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import LOADINGS, StandaloneHost
from training_pro.interface.base.page_context import Joined
from training_pro.interface.page import page
from training_pro.interface.tabs import try_tab
from training_pro.tests.fakes import made_folders
from training_pro.train_utils import size

PATIENCE_SECONDS = 60


@pytest.fixture
def host(place, tiny):
    shutil.copytree(tiny, place.folders.models / "mine")
    return place.host()


@pytest.fixture
def busy():
    """A session whose model is being trained on, and how that is ended."""
    session, done = Session(), threading.Event()
    yield session, done
    done.set()


def begin(session, host, done):
    def work(job):
        done.wait(PATIENCE_SECONDS)
        return Ended(outcome="finished", text="")

    return session.start("training", "Training 'night'", host, work)


def said_until_free(stream, done):
    """Everything that is said; the job that has the model ends when the first of it is there."""

    async def said():
        found = []
        async for words in stream:
            found.append(words)
            done.set()
        return found

    return asyncio.run(said())


@pytest.mark.parametrize(("loading", "bytes_each"), [("auto", 4), ("float32", 4), ("bfloat16", 2)])
def test_the_memory_is_that_of_this_machine(host, loading, bytes_each, monkeypatch):
    monkeypatch.setattr(type(host), "on_card", lambda self: False)
    held = sum(weight.numel() for weight in host.loaded().model.parameters()) * bytes_each
    words = page.needs(host, "mine", loading)
    told = re.search(r"about (\d+) (\w+) in memory, loaded as (\w+)", words)
    assert told[3] == ("float32" if bytes_each == 4 else "bfloat16")
    assert told[2] == size(held).split()[1] and float(told[1]) == pytest.approx(
        float(size(held).split()[0]), rel=0.02
    )
    assert "Free now" not in words


def test_by_itself_a_model_on_a_card_keeps_its_type(host, monkeypatch):
    path = host.folders.models / "mine" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}))
    for on_card, kind in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(type(host), "on_card", lambda self, on_card=on_card: on_card)
        assert page.needs(host, "mine", "auto").endswith(f"loaded as {kind}.</p>")


def test_of_a_model_that_says_too_little_only_its_size_on_disk_is_told(host):
    (host.folders.models / "mine" / "config.json").write_text("{}")
    assert "on disk.</p>" in page.needs(host, "mine", "auto")
    assert page.needs(host, "nowhere", "auto") == ""
    assert str(host.folders.models) in page.needs(host, "", "auto")


def test_load_says_that_the_model_is_busy_for_as_long_as_it_is(host, busy):
    session, done = busy
    with gr.Blocks():
        picker = page.ModelPicker(host, session, LOADINGS)
        picker.draw()
    begin(session, host, done)
    stream = picker._load_it({picker._model: "mine", picker._loading: "auto"})
    refusal, after = said_until_free(stream, done)
    assert "The model is busy: Training &#x27;night&#x27;" in refusal and "can be pressed again" in after
    assert picker._as_chosen()[0]["value"] == host.chosen[0]


def test_an_only_model_is_the_one_that_is_meant(tmp_path):
    """Of several none is chosen for the user."""
    folders = made_folders(tmp_path)
    picker = page.ModelPicker(StandaloneHost(folders), Session(), LOADINGS)
    meant = [picker._meant()[0]]
    for name in ("one", "other"):
        (folders.models / name).mkdir(parents=True)
        (folders.models / name / "config.json").write_text("{}")
        meant.append(picker._meant()[0])
    assert meant == ["", "one", ""]


@pytest.mark.parametrize(("name", "words"), [("mine", "mine is loaded."), ("nowhere", "nowhere")])
def test_load_says_how_it_ended(host, name, words):
    with gr.Blocks():
        picker = page.ModelPicker(host, Session(), LOADINGS)
        picker.draw()
    first, *_, last = said_until_free(
        picker._load_it({picker._model: name, picker._loading: "float32"}), threading.Event()
    )
    assert f"Loading {name} ..." in first
    assert words in last and ("tp-bad" in last) == (name == "nowhere")


def test_put_on_says_that_the_model_is_busy_where_no_answer_writes_over_it(host, busy):
    session, done = busy
    with gr.Blocks(), gr.Tab() as tab:
        made = try_tab.TryTab(Joined(host, PeftEngine(), session))
        made.draw(tab)
    assert made._put_said is not made._said
    begin(session, host, done)
    stream = made._put({made._lora: "a", made._strength: 100})
    refusal, after = said_until_free(stream, done)
    assert "The model is busy" in refusal and "can be pressed again" in after


def test_an_answer_stands_beside_what_it_answers_and_nothing_is_asked_of_nothing(host, busy):
    class Saying:
        def answer(self, question, host, job):
            job.log.append(Answer(side="without", piece=f"after {question.prompt}"))
            return Ended(outcome="finished", text="")

    session, done = busy
    with gr.Blocks(), gr.Tab() as tab:
        made = try_tab.TryTab(Joined(host, Saying(), session))
        made.draw(tab)
    given = {made._lora: "a/checkpoint-1", made._strength: 80, made._as_chat: False, made._length: 10}
    given |= {made._warmth: 0, made._prompt: "The <ferry>"}
    *_, last = said_until_free(made._answer(given), threading.Event())
    assert last[made._without] == "after The <ferry>" and last[made._with] == ""
    assert "Going on from \u201cThe &lt;ferry&gt;\u201d, a/checkpoint-1 at 80%:" in last[made._of]
    (empty,) = said_until_free(made._answer({**given, made._prompt: " \n"}), threading.Event())
    assert empty.keys() == {made._said} and "is empty. Type one" in empty[made._said]
    begin(session, host, done)
    refusal, after = said_until_free(made._answer(given), done)
    assert refusal.keys() == after.keys() == {made._said}  # the answers that are there stay
    assert "The model is busy" in refusal[made._said]


def test_the_beginning_keeps_its_line_ends(with_lora):
    joined = Joined(with_lora.host(), PeftEngine(), Session())
    sample = with_lora.lora() / "train_dataset_sample.json"
    told = "The Ferry of Low Water\n\nOld Maren Tull ran the ferry at dawn"
    sample.write_text(json.dumps([{"value": f" {told} and more"}]), encoding="utf-8")
    assert try_tab.opening_of(joined, "a").words == "The Ferry of Low Water\n\nOld Maren Tull ran the"
    sample.write_text(json.dumps([{"value": "Short\n"}]), encoding="utf-8")
    assert try_tab.opening_of(joined, "a/checkpoint-1").words == "Short"


def test_a_lora_of_chats_is_asked_its_first_message_and_what_is_typed_stays(with_lora):
    joined = Joined(with_lora.host(), PeftEngine(), Session())
    with gr.Blocks(), gr.Tab() as tab:
        made = try_tab.TryTab(joined)
        made.draw(tab)
    opening, closing = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    talking = {"kind": "chat", "before": opening, "after": closing, "starts_with_bos": False}
    (with_lora.lora() / "training_prompt.json").write_text(json.dumps(talking), encoding="utf-8")
    said = [{"value": f"{opening}Where is\nthe key?{closing}Under the mat.<|im_end|>\n"}]
    (with_lora.lora() / "train_dataset_sample.json").write_text(json.dumps(said), encoding="utf-8")
    given = {made._lora: "a", made._prompt: "", made._as_chat: False, made._suggested: ""}
    chat = ("Where is\nthe key?", True, "Where is\nthe key?")
    assert made._begun(given) == chat
    assert made._begun({**given, made._prompt: "mine"}) == ("mine", False, "")
    of_another = {**given, made._prompt: "The ferry", made._suggested: "The ferry"}
    assert made._begun(of_another) == chat
