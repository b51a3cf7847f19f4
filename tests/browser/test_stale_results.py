"""Outdated results: removed when the next one fails, marked when the form has changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from training_pro.tests.browser import servers
from training_pro.tests.chapters import CHAPTERS

pytestmark = pytest.mark.browser

BOOK = "pride.txt"
BROKEN = "ValueError: broken on purpose"
BREAK = """
module = next(module for name, module in sys.modules.items() if name.endswith("interface.run.report_view"))
unbroken = module.html
def broken(*_, **__):
    raise ValueError("broken on purpose")
module.html = broken
"""


@pytest.fixture(scope="module")
def webui(browser, tmp_path_factory) -> Iterator[servers.Webui]:
    with servers.webui(tmp_path_factory.mktemp("webui")) as server:
        datasets = server.user_data / "training" / "datasets"
        datasets.mkdir(parents=True, exist_ok=True)
        (datasets / BOOK).write_text(CHAPTERS, encoding="utf-8")
        yield server


@pytest.fixture
def page(webui, open_page):
    page = open_page(webui, tab="Training PRO")
    page.fill(name="stale", data=BOOK, cutoff=64)
    page.wait_for_words("data said", BOOK)
    return page


def test_a_text_suggestion_is_applied_with_a_click(page):
    assert page.check().startswith("Check: ready")
    assert r"Use \nChapter" in page.words("answer")
    page.suggestion("hard_cut").click()
    page.wait_for(lambda: page.setting("hard_cut") == r"\nChapter", "the hard cut that was suggested")
    page.wait_for_words("answer", "Settings have changed since this check.")


def test_a_failed_check_removes_the_previous_report(webui, page):
    assert page.check().startswith("Check: ready")
    webui.expected.add(BROKEN)
    webui.tell(BREAK)
    try:
        page.press("check")
        text = page.wait_for_words("answer", "Check failed")
    finally:
        webui.tell("module.html = unbroken")
    assert text.strip() == f"Check failed: {BROKEN}. See the console for details."
    assert BROKEN in webui.words()
    assert page.check().startswith("Check: ready")


def test_check_reads_the_line_of_a_dataset_anew(webui, page):
    book = webui.user_data / "training" / "datasets" / BOOK
    try:
        book.write_text("One sentence.", encoding="utf-8")
        page.check()
        page.wait_for_words("data said", "1 section,")
        book.unlink()
        page.press("check")
        page.wait_for_words("data said", f"there is no dataset named '{BOOK}'")
    finally:
        book.write_text(CHAPTERS, encoding="utf-8")


def test_a_check_keeps_the_result_of_an_earlier_run(page):
    page.start("ended", epochs=400)
    page.stop("ended")
    page.fill(name="next")
    assert page.check().startswith("Check: ready")
    page.pause(1)
    assert "ended" in page.words("run")


def test_a_refused_start_is_marked_when_the_form_changes(page):
    page.fill(name="")
    page.press("start")
    page.wait_for_words("answer", "Enter a name for the LoRA")
    page.fill(name="named")
    page.wait_for_words(
        "answer",
        "Settings have changed since this check. Press Check for a new report.",
    )


def test_a_report_says_when_the_form_has_changed(page):
    notice = "Settings have changed since this check. Press Check for a new report."
    page.check()
    page.wait_for(lambda: notice not in page.words("answer"), "a report that is up to date")
    page.fill(rank=64)
    page.wait_for_words("answer", notice)
    page.fill(rank=32)
    page.wait_for(lambda: notice not in page.words("answer"), "the form as it was checked")
    page.fill(cutoff=128)
    page.wait_for_words("answer", notice)
    page.check()
    page.wait_for(lambda: notice not in page.words("answer"), "a new report")
