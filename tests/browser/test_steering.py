"""Every button of the run panel, pressed in the middle of a run, in a real browser."""

from __future__ import annotations

import json

import pytest
from training_pro.records.folder import loras
from training_pro.tests.browser import servers

pytestmark = [pytest.mark.browser, pytest.mark.long]

ENDLESS = 400  # epochs; no test waits for the last one
SECOND_START_SECONDS = 20


def test_each_button_works_and_confirms_it(demo, open_page):
    page = open_page(demo)
    page.unfold("part-validation-and-samples")
    page.fill(eval_share="0.2")
    first_curve = page.start("steered", epochs=ENDLESS)

    page.press("pause")
    page.wait_for_words("run", "until you resume the run")
    paused = page.curve()
    page.pause(1.5)
    assert page.curve().last - paused.last <= 1
    page.press("pause")
    page.wait_for_curve(after=paused.last + 1)

    page.press("save")
    folder = demo.loras / "steered"
    page.wait_for(lambda: list(folder.glob("checkpoint-*-user")), "the checkpoint on disk")
    measurements = page.link("run", "All measurements")
    measurements.click()
    page.press("sample")
    page.wait_for_words("samples", "without the LoRA", "step ")
    page.pause(2)  # Gradio closes folds when a button is pressed, and ours opens them again
    assert measurements.locator("xpath=..").get_attribute("open") is not None

    page.unfold("more")
    page.press("evaluate")
    page.wait_for_words("run", "validation loss at step")
    page.press("halve")
    page.wait_for_words("run", "learning rate multiplied by 0.5")
    before = planned_steps(page)
    page.press("extend")
    page.wait_for(lambda: planned_steps(page) > before, "more steps are planned")

    page.unfold("part-saving-and-stopping")
    page.fill(save_every="7")
    page.press("live")
    page.wait_for_words("run", "Save every (steps) 0 → 7")
    page.reload()  # the page shows what is in force in the run ...
    page.unfold("part-saving-and-stopping")
    page.wait_for(lambda: page.written("save_every") == "7", "the value of the run in the form")
    page.wait_for_words("run", "last checkpoint")
    page.unfold("more")

    page.press("free")
    page.wait_for_words("run", "the model is unloaded")
    freed = page.curve()
    page.press("pause")
    page.wait_for_curve(after=freed.last)
    page.press("wind-down")
    text = page.wait_until_ended("steered")
    assert "the learning rate has fallen to 0" in text
    graph = json.loads((folder / "training_graph.json").read_text(encoding="utf-8"))
    rates = [entry["learning_rate"] for entry in graph if "loss" in entry]
    assert len(rates) > first_curve.last and rates[-1] < max(rates) / 8
    assert any("eval_loss" in entry for entry in graph)
    parameters = json.loads((folder / "training_parameters.json").read_text(encoding="utf-8"))
    assert parameters["save_every"] == 7
    page.wait_for(lambda: page.written("save_every") == "0", "the form for the next run")  # ... and then its own
    page.reload()
    page.unfold("part-saving-and-stopping")
    page.wait_for(lambda: page.written("save_every") == "0", "the form for the next run after a reload")


def planned_steps(page) -> int:
    """The number of planned steps on the run panel."""
    return int(page.words("run").split(" / ")[1].split()[0].replace(",", ""))


def test_a_discarded_run_and_a_failed_one_leave_nothing(demo, open_page):
    page = open_page(demo)
    page.start("unwanted", epochs=ENDLESS)
    assert (demo.loras / "unwanted").exists()
    page.unfold("more")
    page.press("throw-away")
    page.wait_for(lambda: "Delete all" in page.label("throw-away"), "the question on the button")
    assert (demo.loras / "unwanted").exists()
    page.press("throw-away")
    page.wait_until_ended("unwanted", "stopped")
    page.unfold("part-learning-rate-and-optimizer")
    page.fill(name="fails", optimizer="no_such_optimizer")
    page.press("start")
    text = page.wait_for_words("run", "Training 'fails': failed", "no_such_optimizer")
    assert "Traceback" not in text
    page.wait_for(lambda: page.can_press("start"), "Start can be pressed again")
    assert not (demo.loras / "unwanted").exists() and not (demo.loras / "fails").exists()


def test_a_crashed_run_is_offered_when_the_page_is_opened_again(browser, tmp_path, open_page):
    with servers.demo(tmp_path) as server:
        page = open_page(server)
        page.start("night", epochs=ENDLESS)
        page.press("save")
        page.wait_for(lambda: list((server.loras / "night").glob("checkpoint-*-user")), "the checkpoint on disk")
        before = page.curve()
        page.close()
    with servers.demo(tmp_path) as server:
        assert server.started_after < SECOND_START_SECONDS
        page = open_page(server)
        page.wait_for_words("unfinished-said", "night stopped unexpectedly", "If you resume it")
        page.press("unfinished-go-on")
        curve = page.wait_for_curve(after=before.last)
        assert curve.first == 1
        page.stop("night")


def test_several_runs_in_a_row(browser, tmp_path, open_page):
    with servers.demo(tmp_path) as server:
        page = open_page(server, width=1300)
        page.start("a", epochs=ENDLESS)
        page.wait_for(lambda: "queue after this run" in page.everything(), "the button's words during a run")
        for name, epochs in (("b", 2), ("c", 1)):
            page.fill(name=name, epochs=epochs)
            page.press("queue-put")
            page.wait_for_words("queue", f"{name} story.txt;")
        page.press("queue-put")
        page.wait_for(lambda: "an earlier run is also called 'c'" in page.everything(), "the refusal")
        page.wait_for_words("run", "next: b")
        page.in_queue("Up: c").click()
        page.wait_for_words("run", "next: c")
        page.press("stop")
        page.wait_for_words("queue", "Training 'a' was stopped.")
        page.wait_for(lambda: "Resume queue (2 waiting)" in page.everything(), "the offer")
        page.close()
    with servers.demo(tmp_path) as server:
        page = open_page(server)
        page.wait_for_words("queue", "2 wait", "After a restart, the queue does not start by itself")
        page.press("queue-go-on")
        page.wait_for_words("queue", "no waiting runs", "c: finished", "b: finished")
        assert [loras.run_status(server.loras / name) for name in "abc"] == ["stopped", "finished", "finished"]
