"""HTML in data, names, notes, prompts and errors is shown as text: 50 payloads in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from training_pro.tests.browser import servers
from training_pro.tests.records.on_disk import FINISHED, write_files

pytestmark = [pytest.mark.browser, pytest.mark.long]

HIT = "window.hit=1"
TAGS = (
    f"<img data-hit src=x onerror={HIT}>",
    f"<svg data-hit onload={HIT}>",
    f"<script data-hit>{HIT}</script>",
    "<iframe data-hit srcdoc='<script>top.hit=1</script>'></iframe>",
    f"<body data-hit onload={HIT}>",
    f"<details data-hit open ontoggle={HIT}>x</details>",
    f"<input data-hit autofocus onfocus={HIT}>",
    f"<video data-hit><source onerror={HIT}></video>",
    f"<audio data-hit src=x onerror={HIT}>",
    f"<marquee data-hit onstart={HIT}>x</marquee>",
    f"<math data-hit><mtext><img src=x onerror={HIT}></mtext></math>",
    f"<a data-hit href='javascript:{HIT}'>x</a>",
    f"<object data-hit data='javascript:{HIT}'></object>",
    f"<style data-hit onload={HIT}></style>",
    f"<form data-hit><button formaction='javascript:{HIT}'>x</button></form>",
)
CLOSERS = ("", "\"'>", "</title></textarea></pre>", "-->", "]]>", "&quot;&gt;")
"""What ends the place where the text stands, before the tag."""
ATTRIBUTES = (
    f'" data-hit onmouseover={HIT} x="',
    f"' data-hit onfocus={HIT} autofocus tabindex=1 x='",
    f"javascript:{HIT}",
    f"[x](javascript:{HIT})",
    f'![x](x" onerror="{HIT})',
    "{{ 7 * 7 }}<b data-hit>",
    f"`<img data-hit src=x onerror={HIT}>`",
    f"$\\href{{javascript:{HIT}}}{{x}}$",
)
CLOSED = [f"{closer}{tag}" for closer in CLOSERS for tag in TAGS]
PAYLOADS = (*CLOSED[::2][:42], *ATTRIBUTES)
MANY = " ".join(PAYLOADS)
FILE = f"{TAGS[0]}.txt".replace("/", "")
"""A file name may hold all but a slash."""


@pytest.fixture(scope="module")
def demo(browser, tmp_path_factory) -> Iterator[servers.Server]:
    root = tmp_path_factory.mktemp("payloads")
    rows = [{"instruction": payload, "output": payload, "category": payload} for payload in PAYLOADS]
    samples = [{"step": step, "prompt": MANY, "text": MANY} for step in (0, 8)]
    settings = {"name": "story", "rank": 4, "data": [FILE], "optimizer": TAGS[1], "hard_cut": MANY}
    files = {
        **FINISHED,
        "notes.txt": MANY,
        "samples.jsonl": "\n".join(map(json.dumps, samples)),
        "training_parameters.json": settings,
        "training_log.json": {**FINISHED["training_log.json"], "base_model_name": MANY, "ended": TAGS[0]},
    }
    write_files(root / "loras", "story", files)
    write_files(root / "loras", "other", {**files, "notes.txt": TAGS[1]})
    datasets = {
        "rows.jsonl": "\n".join(map(json.dumps, rows)),
        "prose.txt": "\n\n".join(f"Once upon a time. {payload} The end." for payload in PAYLOADS),
        FILE: f"{MANY}\n" * 9,
        "broken.json": json.dumps({"messages": [{"role": MANY, "content": 1}]}),
    }
    write_files(root / "training", "datasets", datasets)
    write_files(root / "training", "presets", {f"{TAGS[3].partition('/')[0]}.json": {"rank": 8}})
    with servers.demo(root) as server:
        yield server


@pytest.fixture
def page(demo, open_page):
    page = open_page(demo)
    page.press("load")
    page.wait_for_words("model-said", "is loaded")
    yield page
    assert page.injected() == []


def test_in_a_run_and_in_what_is_typed(page):
    """Notes, samples, settings, names and prompts."""
    assert len(PAYLOADS) == len(set(PAYLOADS)) == 50
    page.tab("Runs")
    page.run_row("story").click()
    page.wait_for(lambda: "hit" in page.text("runs-one"), "the run with its note")
    page.write("runs-note", MANY)
    page.press("runs-keep")
    page.wait_for_words("runs-said", "saved")
    page.write("runs-filter", f"{MANY} and more")
    page.wait_for(lambda: not page.runs(), "an empty list")
    assert page.injected() == []
    page.tab("Try it")
    page.write("prompt", "".join(ATTRIBUTES))
    page.press("go")
    page.wait_for(lambda: page.written("without"), "a reply")
    page.tab("Train")
    for payload in PAYLOADS[::25]:
        page.fill(name=payload, learning_rate=payload, cutoff=payload)
        page.press("check")
        page.wait_for(lambda value=payload: value[-9:] in page.text("answer"), "the value in the refusal")
    assert page.injected() == []
    page.plant(TAGS[0])  # the browser would run them
    page.wait_for(lambda: len(page.injected()) == 2, "the payload that was planted")
    page.reload()
    page.wait_for_words("line", "float32")


@pytest.mark.parametrize("data", ["rows.jsonl", "prose.txt", FILE, "broken.json"])
def test_in_data_and_names_of_files(page, data):
    page.fill(name="payload", data=data, cutoff=512)
    page.check()
    assert page.injected() == []
    page.unfold("leafing")
    page.press("leafing-show")
    page.wait_for(lambda: page.text("leafing-said"), "an example")
    page.press("leafing-next")
    page.pause(2)
