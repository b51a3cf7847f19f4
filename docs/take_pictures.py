"""Take the pictures of the page in docs/pictures, light and dark, with Playwright.

    python3 docs/take_pictures.py [MODEL_FOLDER]

Without a folder the tiny random model is used. The pictures are those of a run on the beginning of a short novel,
at a rate at which the loss falls on unseen text too.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
THEMES = ("light", "dark")
SIZE: Any = {"width": 1280, "height": 860}
MAX_BYTES = 300_000
NOVEL = ROOT / "bench" / "recipe_data" / "story.txt"
CHARS = 6000
"""Of the novel: enough for a validation split, and few enough for a run of minutes on a CPU."""
FORM = {
    "name": "my-novel",
    "data": ["my-novel.txt"],
    "cutoff": 128,
    "hard_cut": "\\n\\n",
    "add_eos": "never",
    "overlap": False,
    "batch_size": 2,
    "epochs": 3,
    "eval_share": 0.1,
    "learning_rate": 3e-4,
    "sample_every": "never",
}
FLAGS = ["--no-sandbox", "--disable-gpu"]


def main(arguments: Sequence[str]) -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), arguments) as url, sync_playwright() as play:
        system = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
        with play.chromium.launch(executable_path=system, args=FLAGS) as browser:
            pages = {theme: browser.new_page(viewport=SIZE) for theme in THEMES}
            for theme, page in pages.items():
                page.goto(f"{url}?__theme={theme}")
            take_all(pages)


@contextmanager
def serve(user_data: Path, model: Sequence[str]) -> Iterator[str]:
    """Run the page in a new working folder, with the form filled in."""
    datasets = user_data / "training" / "datasets"
    datasets.mkdir(parents=True)
    text = NOVEL.read_text(encoding="utf-8")
    (datasets / "my-novel.txt").write_text(text[: text.index("\n\n", CHARS)], encoding="utf-8")
    (user_data / "training" / "form.json").write_text(json.dumps(FORM), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["page", "--model", *model] if model else ["demo", "--tiny"]
    options = ["--no-browser", "--port", str(port), "--user-data", str(user_data)]
    server = subprocess.Popen([sys.executable, str(ROOT / "script.py"), *command, *options], cwd=ROOT)
    url = f"http://127.0.0.1:{port}/"
    try:
        wait_for_response(url)
        yield url
    finally:
        server.terminate()
        server.wait()


def wait_for_response(url: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def take_all(pages: dict[str, Any]) -> None:
    """A report of Check, the middle of a run, and replies with and without the LoRA after its end."""
    first = pages["light"]
    first.wait_for_function("document.querySelector('#tp-name :is(input, textarea)')?.value === 'my-novel'")
    first.locator("#tp-load").click()
    first.wait_for_selector("#tp-model-said .tp-good", timeout=300_000)
    take(pages, "check", check)
    first.locator("#tp-start").click()
    take(pages, "train", wait_for_curve)
    first.wait_for_selector("#tp-run .tp-card:not(.tp-live)", timeout=3_600_000)
    take(pages, "try", generate)


def take(pages: dict[str, Any], name: str, prepare: Callable[[Any], None]) -> None:
    """Prepare both pages, then take the picture of what is in the window."""
    for page in pages.values():
        prepare(page)
    for theme, page in pages.items():
        page.evaluate("() => document.activeElement.blur()")
        page.evaluate("() => document.querySelector('#tp-tabs').scrollIntoView()")
        page.wait_for_timeout(800)
        file = PICTURES / (f"{name}.png" if theme == "light" else f"{name}-{theme}.png")
        page.screenshot(path=file)
        assert file.stat().st_size < MAX_BYTES, f"{file.name} has {file.stat().st_size} bytes"


def check(page: Any) -> None:
    page.locator("#tp-check").click()
    page.wait_for_selector("#tp-answer .tp-figures", timeout=120_000)


def wait_for_curve(page: Any) -> None:
    """Wait until two thirds of the run are drawn, so that the picture shows a curve and what is planned."""
    page.wait_for_function(
        "() => { const bar = document.querySelector('#tp-run .tp-bar'); return bar && +bar.ariaValueNow > 66; }",
        timeout=3_600_000,
    )
    page.evaluate("() => document.querySelector('#tp-answer').style.setProperty('display', 'none', 'important')")


def generate(page: Any) -> None:
    page.get_by_role("tab", name="Try it", exact=True).click()
    page.wait_for_timeout(1500)
    page.locator("#tp-go").click()
    reply = page.locator("#tp-with textarea")
    page.wait_for_function("() => document.querySelector('#tp-with textarea').value", timeout=300_000)
    before = ""
    while (now := reply.input_value()) != before:  # a reply may be short, so its length says nothing
        before = now
        page.wait_for_timeout(3000)


if __name__ == "__main__":
    main(sys.argv[1:])
