"""The standalone page of `script.py demo --tiny` in a real browser."""

from __future__ import annotations

import json

import pytest
from training_pro.tests.browser import servers
from training_pro.tests.browser.line import proxy_to

pytestmark = pytest.mark.browser

PASSWORD = "Grüße, Käpt'n"
ENDLESS = 400  # epochs; no test waits for the last one


def training_log(server: servers.Server, name: str) -> dict:
    """The training log of an ended run; empty until then."""
    path = server.loras / name / "training_log.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@pytest.mark.long
def test_one_click_trains_the_demo_and_shows_both_replies(browser, tmp_path, open_page):
    with servers.demo(tmp_path) as server:
        page = open_page(server, whole=False)  # with the form of the demo, not one that was left there
        page.wait_for(lambda: page.has("start") and page.written("name") == "first-look", "the form of the demo")
        page.press("start")
        page.wait_for_words("run", "Training 'first-look'")
        page.wait_for(lambda: training_log(server, "first-look").get("ended") == "finished", "its end", 600)
        page.wait_until_ended("first-look")
        page.wait_for_words("samples", "without the LoRA", "step 12")
        page.wait_for(lambda: "LoRA: first-look" in page.offers("tp-start-from"), "its settings to start from")


@pytest.mark.long
def test_a_page_opened_mid_run_and_a_reloaded_one_show_the_whole_run(demo, open_page):
    one, two = open_page(demo), open_page(demo)
    one.start("watched", epochs=ENDLESS)
    late = open_page(demo)
    two.reload()
    pages = (one, two, late)
    seen = [page.wait_for_curve(after=one.curve().last) for page in pages]
    moved = [page.wait_for_curve(after=curve.last) for page, curve in zip(pages, seen, strict=True)]
    assert [curve.first for curve in moved] == [1, 1, 1]
    one.wait_for(lambda: not any(page.can_press("start") for page in pages), "Start is disabled on every page")
    late.stop("watched")
    for page in pages:
        page.wait_until_ended("watched", "stopped")
    one.wait_for(lambda: all(page.can_press("start") for page in pages), "Start can be pressed on every page")
    one.wait_for(lambda: len({page.curve() for page in pages}) == 1, "the same curve on every page")
    assert one.curve().last == training_log(demo, "watched")["current_steps"]


@pytest.mark.long
def test_it_opens_with_the_password_only(browser, tmp_path, open_page):
    with servers.demo(tmp_path, "--password", PASSWORD) as server:
        page = open_page(server, whole=False)
        page.wait_for(lambda: "the password that was set with --password" in page.everything(), "the question")
        page.log_in("me", "a guess")
        page.pause(1)
        assert not page.has("start")
        page.log_in("me", PASSWORD)
        page.wait_for(lambda: page.has("start") and page.written("model"), "the page with its menu of models")
        page.press("load")
        page.wait_for_words("model-said", "is loaded")
        page.start("inside", epochs=4)
        page.reload()
        page.wait_until_ended("inside")


@pytest.mark.long
def test_a_page_that_lost_its_stream_reconnects(demo, open_page):
    with proxy_to(demo.url) as proxy:
        page = open_page(demo, url=proxy.url)
        page.start("interrupted", epochs=ENDLESS)
        assert proxy.cut()
        page.pause(2)  # updates from before the cut are drawn
        curve = page.wait_for_curve(after=page.wait_for_curve().last)
        assert curve.first == 1
        page.stop("interrupted")


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_the_screen(demo, open_page, theme, width):
    page = open_page(demo, theme=theme, width=width)
    page.fill(data="story.txt", name="looks")
    page.fill(rank=64)
    page.check()
    assert page.too_wide() == []
    assert page.faint() == []
    assert page.under_the_arrow() == []
    page.open_menu("data")
    assert not page.help_is_open("data")
    page.photograph(f"standalone-train-{theme}-{width}")
    page.tab("Try it")
    page.wait_for(lambda: page.can_press("go"), "the tab is drawn")
    assert page.too_wide() == []
    page.photograph(f"standalone-try-{theme}-{width}")
