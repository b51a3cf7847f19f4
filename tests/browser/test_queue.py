"""The queue in a real browser: add, move, reload, restart, stop, and resume."""

from __future__ import annotations

import pytest
from training_pro.records.folder import loras
from training_pro.tests.browser import servers

pytestmark = [pytest.mark.browser, pytest.mark.long]

ENDLESS = 400  # epochs; no test waits for the last one


def test_several_runs_in_a_row(browser, tmp_path, open_page):
    with servers.demo(tmp_path) as server:
        page = open_page(server, width=1300)
        page.start("a", epochs=ENDLESS)
        page.wait_for(lambda: "queue after this run" in page.everything(), "the button's words during a run")
        page.fill(name="b", epochs=2)
        page.press("put")
        page.wait_for_words("queue", "1 waiting run", "b story.txt;", "in 2 epochs")
        page.press("put")
        page.wait_for_words("queue said", "an earlier run is also called 'b'")
        page.fill(name="c", epochs=1)
        page.press("put")
        page.wait_for_words("queue", "2 wait", "c story.txt;")
        page.wait_for_words("run", "next: b")
        page.in_queue("Up: c").click()
        page.wait_for_words("run", "next: c")
        page.photograph("queue-1300")
        narrow = open_page(server, width=400)
        narrow.wait_for_words("queue", "2 wait", "When the current run ends")
        assert narrow.too_wide() == [] and narrow.faint() == []
        narrow.photograph("queue-400")
        page.press("stop")
        page.wait_for_words("queue", "Training 'a' was stopped.")
        page.wait_for(lambda: "Resume queue (2 waiting)" in page.everything(), "the offer")
        for one in (page, narrow):
            one.close()
    with servers.demo(tmp_path) as server:
        page = open_page(server)
        page.wait_for_words("queue", "2 wait", "After a restart, the queue does not start by itself")
        page.press("queue on")
        page.wait_for_words("queue", "no waiting runs", "c: finished", "b: finished")
        assert [loras.run_status(server.loras / name) for name in "abc"] == ["stopped", "finished", "finished"]
        page.reload()
        page.wait_for_words("queue", "b: finished")
