"""When the tab cannot train it names the next step, and the page of the webui still works."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from training_pro.tests.browser import servers

pytestmark = pytest.mark.browser

OURS = "Training PRO"
GGUF = "story-Q4.gguf"
ORIGIN = "https://huggingface.co/Some-Owner/Story-1B"


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def write_gguf(path: Path) -> None:
    """Write a GGUF header: version, no tensors, and one key with the source repository."""
    pair = text("general.base_model.0.repo_url") + struct.pack("<I", 8) + text(ORIGIN)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)


@pytest.fixture(scope="module")
def webui(browser, tmp_path_factory) -> Iterator[servers.Webui]:
    folder = tmp_path_factory.mktemp("webui")
    write_gguf(folder / "models" / GGUF)
    with servers.webui(folder, model=False) as server:
        yield server


@pytest.fixture
def open_tab(webui, open_page) -> Callable[..., Any]:
    return lambda **how: open_page(webui, tab=OURS, **how)


def assert_refused(page: Any, *words: str) -> None:
    """The status line, Check, and Start all show these words."""
    page.wait_for_words("line", *words)
    page.fill(data="story.txt")
    page.press("check")
    page.wait_for_words("answer", *words)
    page.press("start")
    page.wait_for_words("run", *words)


def test_no_model_is_loaded(webui, open_tab):
    page = open_tab()
    assert webui.ask("[name for name in ('torch', 'transformers', 'peft') if name in sys.modules]") == []
    assert_refused(page, "No model is loaded", "Model loader to Transformers", "press Load")
    assert not webui.loras.exists()


@pytest.mark.long
def test_a_gguf_file_names_the_model_to_download(webui, open_tab):
    page = open_tab()
    webui.tell(f"shared.model, shared.tokenizer = models.load_model({GGUF!r})")
    words = ("is a GGUF file", "Some-Owner/Story-1B", "Download", "Transformers", "load-in-4bit", "press Load")
    try:
        assert_refused(page, *words)
        webui.tell("restart()")
        page = open_tab()
        assert_refused(page, *words)
        webui.tell("models.unload_model()")
        page.wait_for_words("line", "No model is loaded")
    finally:
        webui.tell("models.unload_model()")


@pytest.mark.long
def test_a_portable_webui_names_what_to_install(webui, open_tab):
    webui.tell("import importlib.util as u; find_spec = u.find_spec")
    webui.tell("u.find_spec = lambda name, *more: None if name == 'torch' else find_spec(name, *more)")
    try:
        assert_refused(open_tab(), "portable webui", "install the full version", "script.py demo")
    finally:
        webui.tell("u.find_spec = find_spec")


def test_without_data_it_says_where_to_put_them(webui, open_tab):
    page = open_tab()
    folder = str(webui.user_data / "training" / "datasets")
    page.wait_for_words("data said", "Add files", folder)
    page.press("check")
    page.wait_for_words("answer", "Dataset: choose at least one file", "story.txt")


@pytest.mark.long
def test_a_webui_without_the_required_names(webui, open_page):
    webui.tell("names = shared.lora_names; del shared.lora_names; restart()")
    try:
        page = open_page(webui, tab=OURS, whole=False)
        page.wait_for_words("line", "has no shared.lora_names", "Update Training PRO")
        for button in ("check", "start"):
            page.press(button)
            page.wait_for_words("answer", "Data")
        assert_webui_answers(page)
        assert webui.stumbles() == []
    finally:
        webui.tell("shared.lora_names = names; restart()")


def test_errors_in_the_tab_never_reach_the_host(browser, tmp_path, open_page):
    damaged = servers.copied(tmp_path / "damaged")
    (damaged / "interface" / "base" / "style.py").write_text("raise RuntimeError('a part is damaged')\n")
    with servers.webui(tmp_path / "webui", model=False, extension=damaged) as server:
        page = open_page(server, tab=OURS, whole=False)
        page.wait_for(lambda: "can't show its tab here" in page.everything(), "a sentence in the tab")
        assert "a part is damaged" in page.everything()
        assert_webui_answers(page)


def assert_webui_answers(page: Any) -> None:
    page.tab("Chat")
    page.write("message", "Hello")
    page.press("send")
    page.wait_for(lambda: page.written("reply") == "No model is loaded!", "the webui's own answer")
