"""A browser for the tests that drive a page; without one they skip, but not where CI wants them run."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WORDS_SHOWN = 6000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for each file of tests: its event loop stays in this thread, and others would trip over it."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _without("playwright is not installed")
    with (
        sync_playwright() as player,
        player.chromium.launch(executable_path=chromium(player.chromium), args=FLAGS) as made,
    ):
        yield made


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; what a test leaves running there is stopped, and neither page nor server may have stumbled."""
    from training_pro.tests.browser import driver, servers

    pages: list[driver.TrainingPage] = []
    sound: list[servers.Server] = []

    def open_one(server: Any, *, width: int = 1200, whole: bool = True, **how: Any) -> driver.TrainingPage:
        """`whole`: our tab can be expected to be there, with its form filled; `url`: another way to the server."""
        pages.append(driver.new_page(browser, width))
        how = {"url": server.url, **how}
        if not whole:
            return pages[-1].open(**how)
        sound.append(server)
        for _ in range(2):  # what a page that was just closed still had to say may come into the form
            server.leave_form()
            with contextlib.suppress(AssertionError):
                return pages[-1].open(left=servers.LEFT, patience=20, **how)
        server.leave_form()
        return pages[-1].open(left=servers.LEFT, **how)

    yield open_one
    left = [page for page in pages if not page.closed]
    if left and left[0].has("stop"):
        left[0].end_run()
    for page in left:
        page.close()
    assert [error for page in pages for error in page.errors] == []
    assert [stumble for server in sound for stumble in server.stumbles()] == []


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """The servers' own words, where a test fails."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed and item.get_closest_marker("browser"):
        from training_pro.tests.browser.servers import Server

        for server in Server.running:
            report.sections.append((f"console of {server.url}", server.words()[-WORDS_SHOWN:]))


def chromium(kind: Any) -> str:
    found = next(filter(None, map(shutil.which, NAMES)), "") or kind.executable_path
    return found if Path(found).is_file() else _without(f"there is no Chromium: none of {', '.join(NAMES)}")


def _without(reason: str) -> NoReturn:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason}, and CI asks for it")
    pytest.skip(reason)
