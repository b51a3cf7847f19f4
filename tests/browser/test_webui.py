"""The tab inside the stand-in for the webui, in a real browser: whole runs, chat, restarts, and layout."""

from __future__ import annotations

from typing import Any

import pytest
from training_pro.tests.browser import servers
from training_pro.tests.chapters import CHAPTERS
from training_pro.tests.records.on_disk import write_files

pytestmark = pytest.mark.browser

OURS = "Training PRO"
BOOK = "pride.txt"
BROKEN = "ValueError: broken on purpose"
GGUF = "story-Q4.gguf"
ENDLESS = 400  # epochs; no test waits for the last one
PHONE = 420
BARE, WITH_LORA = "LlamaForCausalLM", "PeftModelForCausalLM"
FINGERPRINT = """
def fingerprint():
    import hashlib
    named = sorted(shared.model.named_parameters())
    return hashlib.sha256(b"".join(n.encode() + p.detach().numpy().tobytes() for n, p in named)).hexdigest()
"""
BREAK = """
module = next(module for name, module in sys.modules.items() if name.endswith("interface.run.report_view"))
unbroken = module.html
def broken(*_, **__):
    raise ValueError("broken on purpose")
module.html = broken
"""


@pytest.fixture(scope="module", autouse=True)
def told(webui) -> None:
    webui.tell(FINGERPRINT)


def model_and_loras(server: servers.Webui) -> list[object]:
    return server.ask("[type(shared.model).__name__, shared.lora_names, shared.model_name]")


def test_a_run_from_check_to_both_answers(webui, open_tab):
    original = webui.ask("fingerprint()")
    page = open_tab()
    page.wait_for_words("line", servers.TINY, "float32")
    page.fill(name="inside", data="story.txt", cutoff=64, epochs=ENDLESS)
    assert page.check().startswith("Check: ready")
    assert page.characters_lost() == 0

    page.press("start")
    first_curve = page.wait_for_curve()
    assert webui.ask("shared.generation_lock.locked()")
    page.tab("Chat")
    page.send("Hello, you & <b>I</b>")
    page.wait_for(lambda: "Training PRO is using the model." in page.everything(), "a refusal")
    assert page.chat() == ("Hello, you & <b>I</b>", "")
    page.tab(OURS)
    page.press("save")
    page.wait_for(lambda: list((webui.loras / "inside").glob("checkpoint-*-user")), "the checkpoint on disk")
    page.wait_for_curve(after=first_curve.last)
    page.stop("inside")
    assert not webui.ask("shared.generation_lock.locked()")
    assert webui.ask("fingerprint()") == original
    assert model_and_loras(webui) == [BARE, [], servers.TINY]
    page.tab("Chat")
    page.send()
    page.wait_for(lambda: page.chat()[1], "a reply")

    page.tab(OURS)
    page.tab("Try it")
    page.choose("lora", "inside")
    page.write("prompt", "Old Maren Tull ran the ferry")
    assert not page.can_press("stop-answer")
    page.press("go")
    for side in ("without", "with"):
        page.wait_for(lambda side=side: page.written(side), f"the answer {side!r}")
    page.wait_for(lambda: not page.can_press("stop-answer"), "Stop is disabled again")
    page.wait_for(lambda: not webui.ask("shared.generation_lock.locked()"), "the end of the answer")

    page.press("put-on")
    page.wait_for(lambda: model_and_loras(webui) == [WITH_LORA, ["inside"], servers.TINY], "the LoRA is on")
    page.wait_for_words("line", "inside")
    page.press("take-off")
    page.wait_for(lambda: model_and_loras(webui) == [BARE, [], servers.TINY], "the LoRA is off")
    assert webui.ask("fingerprint()") == original


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
        page.wait_for(lambda: page.written("gradient_checkpointing") == "on", "what helps in the form")
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
    first.press("queue-put")
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
    page.press("queue-go-on")
    page.wait_for_words("queue", "after-it: finished", "no waiting runs")


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
        for button in ("go", "put-on", "take-off"):
            assert not page.can_press(button)
    finally:
        webui.tell("shared.args.multi_user = False; restart()")
    page = open_tab()
    page.wait_for(lambda: page.can_press("start"), "Start is there again")


@pytest.mark.long
def test_results_are_read_anew_and_a_failed_check_removes_the_last_report(webui, open_tab):
    book = webui.user_data / "training" / "datasets" / BOOK
    book.parent.mkdir(parents=True, exist_ok=True)
    book.write_text(CHAPTERS, encoding="utf-8")
    page = open_tab()
    page.fill(name="stale", data=BOOK, cutoff=64)
    page.wait_for_words("data-said", BOOK)
    assert page.check().startswith("Check: ready")
    page.suggestion("hard_cut").click()
    page.wait_for(lambda: page.written("hard_cut") == r"\nChapter", "the hard cut that was suggested")
    webui.expected.add(BROKEN)
    webui.tell(BREAK)
    try:
        page.press("check")
        text = page.wait_for_words("answer", "Check failed")
    finally:
        webui.tell("module.html = unbroken")
    assert text.strip() == f"Check failed: {BROKEN}. See the console for details."
    book.write_text("One sentence.", encoding="utf-8")
    page.check()
    page.wait_for_words("data-said", "1 section,")
    book.unlink()
    page.press("check")
    page.wait_for_words("data-said", f"there is no dataset named '{BOOK}'")


@pytest.mark.long
def test_the_tab_key_leaves_the_chosen_data_and_remove_icons_have_labels(open_tab):
    page = open_tab()
    page.fill(data="story.txt")
    page.wait_for(lambda: page.signs("data") == ["Remove story.txt (an example)"], "the name on its sign")
    page.focus("if_exists")
    passed = page.tabs_until("chunking")
    assert passed.index("data") < passed.index("chunking") and len(passed) < 16
    assert page.tabs_until("if_exists", back=True)[-1] == "if_exists"


@pytest.mark.long
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
    page.photograph("webui-train-phone")
    page.tab("Try it")
    page.wait_for(lambda: page.can_press("go"), "the tab is drawn")
    assert page.too_wide() == []


@pytest.mark.long
def test_without_a_model_or_data_with_a_gguf_file_and_without_torch_it_says_what_to_do(
    browser, tmp_path, open_page
):
    with servers.webui(tmp_path, model=False) as server:
        page = open_page(server, tab=OURS)
        assert server.ask("[name for name in ('torch', 'transformers', 'peft') if name in sys.modules]") == []
        page.wait_for_words("data-said", "Add files", str(server.user_data / "training" / "datasets"))
        page.press("check")
        page.wait_for_words("answer", "Dataset: choose at least one file", "story.txt")
        assert_refused(page, "No model is loaded", "Model loader to Transformers", "press Load")
        assert not server.loras.exists()
        write_files(tmp_path, "models", {GGUF: "GGUF\x03" + 19 * "\0"})  # version 3, without tensors and keys
        server.tell(f"shared.model, shared.tokenizer = models.load_model({GGUF!r})")
        page = open_page(server, tab=OURS)
        page.wait_for_words("line", f"To train {GGUF}, ")
        assert_refused(page, "the environment for training is not ready. Set it up on the Train tab.")
        server.tell("models.unload_model()")
        server.tell("import importlib.util as u; find_spec = u.find_spec")
        server.tell("u.find_spec = lambda name, *more: None if name == 'torch' else find_spec(name, *more)")
        page = open_page(server, tab=OURS)
        page.wait_for_words("line", "does not include torch", "load a GGUF file in the Model tab")


@pytest.mark.long
def test_errors_in_the_tab_never_reach_the_host(browser, tmp_path, open_page):
    damaged = servers.copied(tmp_path / "damaged")
    (damaged / "interface" / "base" / "style.py").write_text("raise RuntimeError('a part is damaged')\n")
    with servers.webui(tmp_path / "webui", model=False, extension=damaged) as server:
        page = open_page(server, tab=OURS, whole=False)
        page.wait_for(lambda: "can't show its tab here" in page.everything(), "a sentence in the tab")
        assert "a part is damaged" in page.everything()
        assert_webui_answers(page)
    with servers.webui(tmp_path / "older", model=False) as server:
        server.tell("del shared.lora_names; restart()")
        page = open_page(server, tab=OURS, whole=False)
        page.wait_for(lambda: "has no shared.lora_names. Update" in page.everything(), "a sentence in the tab")


def assert_refused(page: Any, *words: str) -> None:
    """The status line, Check, and Start all show these words."""
    page.wait_for_words("line", *words)
    page.fill(data="story.txt")
    page.press("check")
    page.wait_for_words("answer", *words)
    page.press("start")
    page.wait_for_words("run", *words)


def assert_webui_answers(page: Any) -> None:
    page.tab("Chat")
    page.send("Hello")
    page.wait_for(lambda: page.chat()[1] == "No model is loaded!", "the webui's own answer")
