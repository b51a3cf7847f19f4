"""The tab inside the stand-in for the webui, in a real browser: whole runs, chat, restarts, and layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from training_pro.tests.browser import servers

pytestmark = pytest.mark.browser

OURS = "Training PRO"
ENDLESS = 400  # epochs; no test waits for the last one
PHONE = 420
BARE, WITH_LORA = "LlamaForCausalLM", "PeftModelForCausalLM"
FINGERPRINT = """
def fingerprint():
    import hashlib
    named = sorted(shared.model.named_parameters())
    return hashlib.sha256(b"".join(n.encode() + p.detach().numpy().tobytes() for n, p in named)).hexdigest()
"""
RUN_PANEL = """
def run_panel():
    import sys
    return next(module for name, module in sys.modules.items() if name.endswith("interface.run.run_panel"))
"""


@pytest.fixture(scope="module")
def webui(browser, tmp_path_factory) -> Iterator[servers.Webui]:
    with servers.webui(tmp_path_factory.mktemp("webui")) as server:
        server.tell(FINGERPRINT)
        yield server


@pytest.fixture
def open_tab(webui, open_page) -> Callable[..., Any]:
    return lambda **how: open_page(webui, tab=OURS, **how)


def model_and_loras(server: servers.Webui) -> list[object]:
    return server.ask("[type(shared.model).__name__, shared.lora_names, shared.model_name]")


def test_a_run_from_check_to_both_answers(webui, open_tab):
    original = webui.ask("fingerprint()")
    page = open_tab()
    page.wait_for_words("line", servers.TINY, "float32")
    page.fill(name="inside", data="story.txt", cutoff=64, epochs=16)
    assert page.check().startswith("Check: ready")
    assert page.characters_lost() == 0

    page.press("start")
    first_curve = page.wait_for_curve()
    assert webui.ask("shared.generation_lock.locked()")
    page.press("save")
    page.wait_for(lambda: list((webui.loras / "inside").glob("checkpoint-*-user")), "the checkpoint on disk")
    page.wait_for_curve(after=first_curve.last)
    page.wait_until_ended("inside")
    assert not webui.ask("shared.generation_lock.locked()")
    assert webui.ask("fingerprint()") == original
    assert model_and_loras(webui) == [BARE, [], servers.TINY]

    page.tab("Try it")
    page.choose_lora("inside")
    page.write("prompt", "Old Maren Tull ran the ferry")
    assert not page.can_press("stop answer")
    page.press("go on")
    for side in ("without", "with"):
        page.wait_for(lambda side=side: page.written(side), f"the answer {side!r}")
    page.wait_for(lambda: not page.can_press("stop answer"), "Stop is disabled again")
    page.wait_for(lambda: not webui.ask("shared.generation_lock.locked()"), "the end of the answer")

    page.press("put on")
    page.wait_for(lambda: model_and_loras(webui) == [WITH_LORA, ["inside"], servers.TINY], "the LoRA is on")
    page.wait_for_words("line", "inside")
    page.press("take off")
    page.wait_for(lambda: model_and_loras(webui) == [BARE, [], servers.TINY], "the LoRA is off")
    assert webui.ask("fingerprint()") == original


def test_chat_is_refused_while_a_run_uses_the_model(webui, open_tab):
    page = open_tab()
    page.start("talked-to", epochs=ENDLESS)
    page.tab("Chat")
    page.write("message", "Hello, you & <b>I</b>")
    page.press("send")
    page.wait_for(lambda: "The model is busy (Training PRO: training)" in page.everything(), "a refusal")
    assert (page.written("message"), page.written("reply")) == ("Hello, you & <b>I</b>", "")
    page.tab(OURS)
    page.stop("talked-to")
    page.tab("Chat")
    page.press("send")
    page.wait_for(lambda: page.written("reply"), "a reply")


@pytest.mark.long
def test_out_of_memory_offers_remedies_as_buttons(webui, open_tab):
    page = open_tab()
    webui.tell("import torch")
    webui.tell("def full(*_): raise torch.OutOfMemoryError('CUDA out of memory.')")
    webui.tell("hook = shared.model.lm_head.register_forward_pre_hook(full)")
    try:
        page.fill(name="too-large", data="story.txt", cutoff=64)
        page.press("start")
        page.wait_for_words("run", "Training 'too-large': failed", "Out of memory", "To fix this")
        page.unfold("part-memory-and-speed")
        page.helpful("gradient_checkpointing").click()
        page.wait_for(lambda: page.setting("gradient_checkpointing") == "on", "what helps in the form")
    finally:
        webui.tell("hook.remove()")
    assert not (webui.loras / "too-large").exists()
    page.start("fits-again", epochs=2)
    page.wait_until_ended("fits-again")


@pytest.mark.long
def test_a_run_and_the_queue_outlive_an_interface_restart(webui, open_tab):
    first = open_tab()
    first_curve = first.start("outlives", epochs=ENDLESS)
    first.fill(name="after-it", epochs=1)
    first.press("put")
    first.wait_for_words("queue", "1 waiting run")
    first.close()
    webui.tell("restart()")
    page = open_tab()
    curve = page.wait_for_curve(after=first_curve.last)
    assert curve.first == 1
    assert page.wait_for_curve(after=curve.last).first == 1
    page.wait_for_words("run", "next: after-it")
    page.stop("outlives")
    assert (webui.loras / "outlives" / "adapter_model.safetensors").is_file()
    page.wait_for_words("queue", "Training 'outlives' was stopped.")
    page.press("queue on")
    page.wait_for_words("queue", "after-it: finished", "no waiting runs")


@pytest.mark.long
def test_a_second_start_during_a_run_is_refused(webui, open_tab):
    page, other = open_tab(), open_tab()
    other.fill(name="second", data="story.txt", cutoff=64)
    page.start("first", epochs=ENDLESS)
    other.press_all_the_same("start")
    other.wait_for_words("answer", "The model is busy: Training 'first'", "stop it first")
    assert not (webui.loras / "second").exists()
    page.stop("first")


@pytest.mark.long
def test_in_multi_user_mode_nobody_starts_or_stops(webui, open_tab):
    webui.tell("shared.args.multi_user = True; restart()")
    try:
        page = open_tab()
        page.wait_for_words("line", "--multi-user")
        page.fill(name="not-here", data="story.txt")
        for button in ("start", "stop", "save"):
            assert not page.can_press(button)
        page.tab("Try it")
        for button in ("go on", "put on", "take off"):
            assert not page.can_press(button)
    finally:
        webui.tell("shared.args.multi_user = False; restart()")
    page = open_tab()
    page.wait_for(lambda: page.can_press("start"), "Start is there again")


@pytest.mark.parametrize(
    ("theme", "width"), [pytest.param("light", 1200, marks=pytest.mark.long), ("dark", 390)], ids=str
)
def test_it_fits_the_screen(open_tab, theme, width):
    page = open_tab(theme=theme, width=width)
    page.fill(data="story.txt", name="looks")
    page.check()
    assert page.too_wide() == []
    page.photograph(f"webui-train-{theme}-{width}")
    page.tab("Try it")
    page.wait_for(lambda: page.can_press("go on"), "the tab is drawn")
    assert page.too_wide() == []
    page.photograph(f"webui-try-{theme}-{width}")


def test_the_tab_key_leaves_the_chosen_data_and_remove_icons_have_labels(open_tab):
    page = open_tab()
    page.fill(data="story.txt")
    page.wait_for(lambda: page.signs("data") == ["Remove story.txt (an example)"], "the name on its sign")
    page.focus("if_exists")
    passed = page.tabs_until("chunking")
    assert passed.index("data") < passed.index("chunking") and len(passed) < 16
    assert page.tabs_until("if_exists", back=True)[-1] == "if_exists"


def test_help_buttons_and_shadows_on_a_phone(open_tab):
    page = open_tab(width=PHONE)
    for key in ("name", "hard_cut", "learning_rate", "accumulation"):
        page.focus(key)
        page.wait_for(lambda key=key: page.help_is_open(key), f"the help of {key}")
        page.wait_for(lambda key=key: page.help_is_inside(key), f"the help of {key} inside the window")
    page.wait_for(lambda: page.in_sight("check") and page.in_sight("start"), "Check and Start in sight")
    page.fill(name="narrow", data="story.txt", cutoff=64)
    page.check()
    assert page.too_wide() == []
    assert page.shadows_without_need() == []


def test_one_of_many_pages_asks_by_itself_and_gets_a_stream_again(webui, open_tab):
    """As if there were too many pages for streams."""
    webui.tell(RUN_PANEL)
    page = open_tab()
    webui.tell("run_panel().MAX_STREAMS = 0")
    page.start("asks", epochs=ENDLESS)
    first_curve = page.wait_for_curve()
    assert page.asks_by_itself()
    page.wait_for_curve(after=first_curve.last)
    webui.tell("run_panel().MAX_STREAMS = 8")
    page.wait_for(lambda: not page.asks_by_itself(), "a stream again")
    page.wait_for_curve(after=page.curve().last)
    page.stop("asks")
