"""Fixtures of the browser tests. Without a browser the tests are skipped, but fail if CI=true."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""The headless shell first: a page takes it a third less CPU time."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WORDS_SHOWN = 6000
TIMEOUT_SECONDS = 900  # of a test


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser per test file, because its event loop would disturb other tests in this thread."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _skip_or_fail("playwright is not installed")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium(playwright.chromium), args=FLAGS) as instance,
    ):
        yield instance


@pytest.fixture(scope="module")
def demo(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The standalone page of `demo --tiny`, for the tests of one file."""
    from training_pro.tests.browser import servers

    with servers.demo(tmp_path_factory.mktemp("demo")) as server:
        yield server


@pytest.fixture(scope="module")
def webui(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The stand-in for the webui with the tiny model loaded, for the tests of one file."""
    from training_pro.tests.browser import servers

    with servers.webui(tmp_path_factory.mktemp("webui")) as server:
        yield server


@pytest.fixture
def open_tab(webui: Any, open_page: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **how: open_page(webui, tab="Training PRO", **how)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages. Afterwards a running run is stopped, and errors of pages and servers fail the test."""
    from training_pro.tests.browser import driver, servers

    opened: list[tuple[driver.TrainingPage, servers.Server]] = []
    checked_servers: list[servers.Server] = []

    def open_one(server: Any, *, width: int = 1200, whole: bool = True, **options: Any) -> driver.TrainingPage:
        """Open a page. `whole` waits for the form of our tab; `url` is another address of the server."""
        page = driver.new_page(browser, width)
        opened.append((page, server))
        options = {"url": server.url, **options}
        if not whole:
            return page.open(**options)
        checked_servers.append(server)
        for _ in range(2):  # a page that was just closed may still write its form
            server.leave_form()
            with contextlib.suppress(AssertionError):
                return page.open(left=servers.LEFT, patience=20, **options)
        server.leave_form()
        return page.open(left=servers.LEFT, **options)

    yield open_one
    for server in {server for _, server in opened if server in servers.Server.running}:
        server.end_runs()
    for page, _ in opened:
        if not page.closed:
            page.close()
    assert [error for page, _ in opened for error in page.errors] == []
    assert [error_line for server in checked_servers for error_line in server.stumbles()] == []


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the console output of the servers to the report of a failed test."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed and item.get_closest_marker("browser"):
        from training_pro.tests.browser.servers import Server

        for server in Server.running:
            report.sections.append((f"console of {server.url}", server.words()[-WORDS_SHOWN:]))


def chromium(kind: Any) -> str:
    path = next(filter(None, map(shutil.which, NAMES)), "") or kind.executable_path
    return path if Path(path).is_file() else _skip_or_fail(f"there is no Chromium: none of {', '.join(NAMES)}")


def _skip_or_fail(reason: str) -> NoReturn:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason}, and CI asks for it")
    pytest.skip(reason)
