"""The standalone page: the size of models, loading, the Try it tab, and requests while the model is busy."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading

import gradio as gr
import pytest
from training_pro.core.jobs import Answer, JobEnded, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import LOADING_OPTIONS, StandaloneHost
from training_pro.interface.base import PageContext
from training_pro.interface.page import page
from training_pro.interface.tabs import try_tab
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import FINISHED, write_files
from training_pro.train_utils import size

PATIENCE_SECONDS = 60


@pytest.fixture
def host(place, tiny):
    shutil.copytree(tiny, place.folders.models / "mine")
    return place.host()


@pytest.fixture
def busy():
    """A session, and the event that ends the job on its model."""
    session, finish = Session(), threading.Event()
    yield session, finish
    finish.set()


def begin(session, host, finish):
    def work(job):
        finish.wait(PATIENCE_SECONDS)
        return JobEnded(outcome="finished", text="")

    return session.start("training", "Training 'night'", host, work)


def messages_until_free(stream, finish):
    """All messages of a stream; the job on the model ends after the first one."""

    async def collect():
        messages = []
        async for message in stream:
            messages.append(message)
            finish.set()
        return messages

    return asyncio.run(collect())


@pytest.mark.parametrize(("loading", "bytes_each"), [("auto", 4), ("float32", 4), ("bfloat16", 2)])
def test_the_memory_is_computed_for_this_machine(host, loading, bytes_each, monkeypatch):
    monkeypatch.setattr(type(host), "uses_gpu", lambda self: False)
    n_bytes = sum(weight.numel() for weight in host.loaded_model().model.parameters()) * bytes_each
    words = page.describe_size(host, "mine", loading)
    text = re.search(r"about (\d+) (\w+) in memory when loaded as (\w+)", words)
    assert text[3] == ("float32" if bytes_each == 4 else "bfloat16")
    assert text[2] == size(n_bytes).split()[1] and float(text[1]) == pytest.approx(
        float(size(n_bytes).split()[0]), rel=0.02
    )
    assert "free" not in words


def test_auto_keeps_the_dtype_of_a_model_on_a_gpu(host, monkeypatch):
    path = host.folders.models / "mine" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}))
    for on_card, kind in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(type(host), "uses_gpu", lambda self, on_card=on_card: on_card)
        assert page.describe_size(host, "mine", "auto").endswith(f"loaded as {kind}.</p>")


def test_without_a_config_only_the_size_on_disk_is_shown(host):
    (host.folders.models / "mine" / "config.json").write_text("{}")
    assert "on disk.</p>" in page.describe_size(host, "mine", "auto")
    assert page.describe_size(host, "nowhere", "auto") == ""
    assert str(host.folders.models) in page.describe_size(host, "", "auto")


def test_load_says_that_the_model_is_busy_until_it_is_free(host, busy):
    session, finish = busy
    with gr.Blocks():
        picker = page.ModelPicker(host, session, LOADING_OPTIONS)
        picker.draw()
    begin(session, host, finish)
    stream = picker._load_model({picker.menu: "mine", picker._loading: "auto"})
    refusal, after = messages_until_free(stream, finish)
    assert "The model is busy: Training &#39;night&#39;" in refusal and "is done. You can try again now" in after
    assert picker._show_selection()[0]["value"] == host.selected_model[0]


def test_a_single_model_is_selected(tmp_path):
    """With several models none is chosen for the user."""
    folders = make_folders(tmp_path)
    picker = page.ModelPicker(StandaloneHost(folders), Session(), LOADING_OPTIONS)
    selections = [picker._selection()[0]]
    for name in ("one", "other"):
        (folders.models / name).mkdir(parents=True)
        (folders.models / name / "config.json").write_text("{}")
        selections.append(picker._selection()[0])
    assert selections == ["", "one", ""]


@pytest.mark.parametrize(("name", "words"), [("mine", "mine is loaded."), ("nowhere", "nowhere")])
def test_load_says_how_it_ended(host, name, words):
    with gr.Blocks():
        picker = page.ModelPicker(host, Session(), LOADING_OPTIONS)
        picker.draw()
    first, *_, last = messages_until_free(
        picker._load_model({picker.menu: name, picker._loading: "float32"}), threading.Event()
    )
    assert f"Loading {name} ..." in first
    assert words in last and ("tp-bad" in last) == (name == "nowhere")


def test_put_on_has_its_own_place_for_the_busy_message(host, busy):
    session, finish = busy
    with gr.Blocks(), gr.Tab() as tab:
        try_it = try_tab.TryTab(PageContext(host, PeftEngine(), session))
        try_it.draw(tab)
    assert try_it._lora_status is not try_it._status
    begin(session, host, finish)
    stream = try_it._on_put_on({try_it._lora: "a", try_it._strength: 100})
    refusal, after = messages_until_free(stream, finish)
    assert "The model is busy" in refusal and "is done. You can try again now" in after


def test_answers_have_a_heading_with_their_prompt_and_an_empty_prompt_is_refused(host, busy):
    class EchoEngine:
        def answer(self, question, host, job):
            job.log.append(Answer(side="without", piece=f"after {question.prompt}"))
            return JobEnded(outcome="finished", text="")

    session, finish = busy
    with gr.Blocks(), gr.Tab() as tab:
        try_it = try_tab.TryTab(PageContext(host, EchoEngine(), session))
        try_it.draw(tab)
    inputs = {try_it._lora: "a/checkpoint-1", try_it._strength: 80, try_it._as_chat: False, try_it._length: 10}
    inputs |= {try_it._temperature: 0, try_it._prompt: "The <ferry>"}
    *_, last = messages_until_free(try_it._on_answer(inputs), threading.Event())
    assert last[try_it._without] == "after The <ferry>" and last[try_it._with] == ""
    assert "LoRA: a/checkpoint-1, used at 80% strength. Prompt: The &lt;ferry&gt;" in last[try_it._heading]
    write_files(host.folders.loras, "a", {**FINISHED, "training_log.json": {"current_steps": 240}})
    *_, last = messages_until_free(try_it._on_answer({**inputs, try_it._lora: "a"}), threading.Event())
    assert "LoRA: a (trained for 240 steps), used at 80% strength. Prompt:" in last[try_it._heading]
    (empty,) = messages_until_free(try_it._on_answer({**inputs, try_it._prompt: " \n"}), threading.Event())
    assert empty.keys() == {try_it._status} and "Enter a prompt." in empty[try_it._status]
    begin(session, host, finish)
    cleared, refusal, after = messages_until_free(try_it._on_answer(inputs), finish)
    assert cleared == {try_it._lora_status: ""}  # it was about the reply before
    assert refusal.keys() == after.keys() == {try_it._status}  # the old answers stay
    assert "The model is busy" in refusal[try_it._status]


def test_a_suggested_prompt_keeps_its_line_breaks(with_lora):
    context = PageContext(with_lora.host(), PeftEngine(), Session())
    prompt = with_lora.lora() / "training_prompt.json"
    text = "The Ferry of Low Water\n\nOld Maren Tull ran the ferry at dawn"
    prompt.write_text(json.dumps({"example": f" {text} and more"}), encoding="utf-8")
    assert try_tab.suggest_prompt(context, "a").text == "The Ferry of Low Water\n\nOld Maren Tull ran the"
    prompt.write_text(json.dumps({"example": "Short\n"}), encoding="utf-8")
    assert try_tab.suggest_prompt(context, "a/checkpoint-1").text == "Short"
    prompt.write_text(json.dumps({"example": "\u6e21\u8239" * 200}), encoding="utf-8")
    assert try_tab.suggest_prompt(context, "a").text == "\u6e21\u8239" * 40


def test_a_suggested_prompt_is_from_the_middle_of_the_data(with_lora):
    context = PageContext(with_lora.host(), PeftEngine(), Session())
    story = (with_lora.folders.datasets / "story.txt").read_text(encoding="utf-8")
    suggested = try_tab.suggest_prompt(context, "a").text
    assert 0.3 < story.index(suggested) / len(story) < 0.7
    (with_lora.lora() / "training_prompt.json").unlink()
    assert story.startswith(try_tab.suggest_prompt(context, "a").text)


def test_a_chat_lora_suggests_its_first_message_and_a_typed_prompt_is_kept(with_lora):
    context = PageContext(with_lora.host(), PeftEngine(), Session())
    with gr.Blocks(), gr.Tab() as tab:
        try_it = try_tab.TryTab(context)
        try_it.draw(tab)
    opening, closing = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    example = f"{opening}Where is\nthe key?{closing}Under the mat.<|im_end|>\n"
    chat_prompt = {
        "kind": "chat",
        "before": opening,
        "after": closing,
        "starts_with_bos": False,
        "example": example,
    }
    (with_lora.lora() / "training_prompt.json").write_text(json.dumps(chat_prompt), encoding="utf-8")
    inputs = {try_it._lora: "a", try_it._prompt: "", try_it._as_chat: False, try_it._suggestion: ""}
    chat = ("Where is\nthe key?", True, "Where is\nthe key?")
    assert try_it._suggest(inputs) == chat
    unchanged = (gr.update(), gr.update(), gr.update())
    assert try_it._suggest({**inputs, try_it._prompt: "mine"}) == unchanged
    assert try_it._suggest({**inputs, try_it._lora: try_tab.NO_LORA}) == unchanged
    of_another = {**inputs, try_it._prompt: "The ferry", try_it._suggestion: "The ferry"}
    assert try_it._suggest(of_another) == chat
