"""No violation of WCAG 2.1 AA on any tab, light and dark, found by axe-core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.long]

TABS = ("Train", "Data", "Try it", "Perplexity", "Runs")
RUN_AXE = """() => axe.run({exclude: [['footer']]}, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})"""
STILL = "*, *::before, *::after { transition: none !important; animation: none !important; }"
"""Colors in the middle of a transition are nobody's choice."""
UNFOLD = """() => document.querySelectorAll(':is([id^=tp-part], #tp-presets) .label-wrap:not(.open)')
    .forEach(title => title.click())"""


def axe() -> str:
    """The source of axe-core, out of a package of PyPI."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Any) -> list[str]:
    return [
        f"{rule['id']}: {node['target']} {node['html'][:120]} {node['failureSummary']}"
        for rule in page.evaluate(RUN_AXE)["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_violation_on_any_tab(demo, browser, theme):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(300_000)  # a click waits long beside other work
    page.goto(f"{demo.url}?__theme={theme}")
    page.wait_for_selector("#tp-check")
    page.add_style_tag(content=STILL)
    page.evaluate(axe())
    train(page)  # so that the report, the curve and Runs have something to show
    found = {}
    for tab in TABS:
        page.get_by_role("tab", name=tab, exact=True).first.click()
        page.evaluate(UNFOLD)
        page.wait_for_timeout(1500)
        found[tab] = violations(page)
    page.close()
    assert found == {tab: [] for tab in TABS}


def train(page: Any) -> None:
    page.locator("#tp-start").click()
    page.wait_for_selector("#tp-run svg", timeout=120_000)
    page.locator("#tp-check").click()
    page.wait_for_selector("#tp-answer .tp-card")
