"""Downloading a model on the standalone page in a real browser, up to loading it."""

from __future__ import annotations

import pytest
from training_pro.tests.browser import servers

pytestmark = pytest.mark.browser

NAME, ADDRESS = "toys_tiny", "https://huggingface.co/toys/tiny"


@pytest.fixture
def page_on_hub(browser, served_hub, tiny, tmp_path):
    """A page without models that uses the local hub."""
    served_hub.add("toys/tiny", tiny)
    served_hub.add("toys/gated", tiny).gated = True
    with servers.page(tmp_path / "user_data", served_hub.url) as server:
        yield server


@pytest.mark.long
def test_a_download_is_stopped_resumed_shown_on_every_page_and_loaded(page_on_hub, served_hub, open_page):
    page = open_page(page_on_hub)
    page.link("get-part", "Qwen3-0.6B").click()
    page.wait_for(lambda: page.written("get-name") == "Qwen/Qwen3-0.6B", "the suggestion in the box")
    page.write("get-name", "toys/gated")
    page.press("get")
    page.wait_for_words("get-said", "toys/gated is a gated model")

    served_hub.seconds_a_piece = 4.0
    page.write("get-name", ADDRESS)
    page.press("get")
    page.wait_for_words("get-said", "Downloading toys/tiny", "kB/s, ")
    served_hub.seconds_a_piece = 20.0  # it must not be complete before it is stopped, however slow the pages are
    page.reload()
    page.wait_for_words("get-said", "Downloading toys/tiny", " of ")
    page.wait_for(
        lambda: page.written("get-name") == "https://huggingface.co/toys/tiny", "what is asked for in the box"
    )
    other = open_page(page_on_hub, theme="dark", width=390)
    other.wait_for_words("get-said", "Downloading toys/tiny", " of ")
    for each, look in ((page, "light-1200"), (other, "dark-390")):
        assert each.too_wide() == each.faint() == []
        each.photograph(f"get-model-{look}")
    other.press("get-stop")
    for each in (page, other):
        each.wait_for_words("get-said", "Stopped.", "Start the download again to continue")

    served_hub.seconds_a_piece = 0.0
    served_hub.asked.clear()
    page.press("get")
    for each in (page, other):
        each.wait_for_words("get-said", "It is selected in the model menu above")
        each.wait_for(lambda each=each: each.written("model") == NAME, "the model chosen in the menu")
    assert [begin > 0 for name, begin in served_hub.asked if name == "model.safetensors"] == [True]
    page.press("load")
    page.wait_for_words("model-said", f"{NAME} is loaded")
    third = open_page(page_on_hub)
    third.wait_for(lambda: third.written("model") == NAME, "the model in the menu of a new page")
