"""Telemetry of a run: sampled every few seconds, logged and recorded; and memory that Windows would spill."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
import torch
from training_pro.core.jobs import Advice, EventLog, Job, MachineUse, Step, event_text, peak_memory_of
from training_pro.engine.compute import MachineMonitor
from training_pro.tests.engine.architectures import read_log

GB = 10**9
GPU = torch.device("cuda", 0)


@pytest.fixture
def gpus(monkeypatch):
    """Three GPUs of 24 GB each, with the model on two of them; synchronizing is an error."""
    most, reserved = [20 * GB, 20 * GB, 0], [5 * GB, 7 * GB, 0]
    gpus = SimpleNamespace(
        now=100.0,
        most=most,
        device_count=lambda: 3,
        memory_reserved=lambda card: reserved[card],
        max_memory_reserved=lambda card: most[card],
        reset_peak_memory_stats=lambda card: most.__setitem__(card, reserved[card]),
        get_device_properties=lambda card: SimpleNamespace(total_memory=24 * GB),
        utilization=lambda card: [90, 51, 0][card],
        temperature=lambda card: [70, 64, 30][card],
        power_draw=lambda card: [250_400, 200_100, 9_000][card],
    )
    monkeypatch.setattr(torch, "cuda", gpus)
    monkeypatch.setattr(time, "monotonic", lambda: gpus.now)
    return gpus


def uses(log):
    return [event for event in log.since(0) if isinstance(event, MachineUse)]


def test_the_gpus_of_the_model_are_summed_up_without_the_peak_of_another_program(gpus):
    log = EventLog()
    watching = MachineMonitor(GPU, log)
    gpus.most[1] = 8 * GB
    watching.observe()
    assert event_text(uses(log)[0]) == "GPUs: peak 13 GB of 48 GB so far, 70% busy, 70 °C, 450 W"
    watching.observe()  # too soon
    assert len(uses(log)) == 1


@pytest.mark.parametrize("error", [None, ModuleNotFoundError("no pynvml"), Exception("odd")])
def test_a_missing_failing_or_slow_sensor_is_left_out_and_not_read_again(gpus, error):
    def read(card):
        asked.append(card)
        if error:
            raise error
        gpus.now += 1.0
        return 50

    log, asked = EventLog(), []
    gpus.utilization, gpus.power_draw = read, None  # an older torch has no such function
    watching = MachineMonitor(GPU, log)
    watching.observe()
    watching.observe(at_once=True)
    assert asked == ([0] if error else [0, 1])
    assert event_text(uses(log)[-1]) == "GPUs: peak 12 GB of 48 GB so far, 70 °C"


def test_a_run_logs_and_records_the_memory_of_its_process(place):
    job = Job("training", "a test")
    place.train(job=job, max_steps=1)
    assert event_text(uses(job.log)[0]).startswith("program memory: peak ")
    assert read_log(place)["memory_at_most"] == peak_memory_of(job.log.since(0)) > 1_000_000
    assert "peak memory" in (place.lora() / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("system", "times"), [("win32", 1), ("linux", 0)])
def test_on_windows_spilling_is_told_once_when_steps_become_much_slower(gpus, monkeypatch, system, times):
    monkeypatch.setattr(sys, "platform", system)
    log = EventLog()
    watching = MachineMonitor(GPU, log)

    def told_after(steps):
        for seconds, tokens in steps:
            rest = {"step": 1, "epoch": 0, "loss": 1, "smoothed": 1, "learning_rate": 1, "gradient_norm": 1}
            watching.observe_step(Step(**rest, seconds=seconds, tokens=tokens))
        return len([event for event in log.since(0) if isinstance(event, Advice)])

    usual = [(1.0 + 0.1 * (n % 3), 1000) for n in range(20)]
    assert told_after([*usual, *[(4.0, 4000)] * 5, *[(9.0, 1000)] * 2]) == 0  # more tokens are not slower
    assert told_after([(9.0, 1000)] * 4) == times
