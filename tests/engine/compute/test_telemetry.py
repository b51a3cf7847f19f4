"""Telemetry of a run: sampled every few seconds, logged and recorded."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
import torch
from training_pro.core.jobs import EventLog, Job, MachineUse, Step, event_text, peak_memory_of
from training_pro.engine.compute import MachineMonitor, telemetry

GB = 10**9


class FakeGpus:
    """Three GPUs of 24 GB each, with the model on two of them; synchronizing is an error."""

    def __init__(self):
        self.most, self.asked, self.watts_take = [0, 0, 0], [], 0.0

    def reset_peak_memory_stats(self, card):
        self.most[card] = [5 * GB, 7 * GB, 0][card]

    def utilization(self, card):
        self.asked.append("utilization")
        return [90, 51, 0][card]

    def temperature(self, card):
        self.asked.append("temperature")
        return [70, 64, 30][card]

    def power_draw(self, card):
        self.asked.append("power_draw")
        time.sleep(self.watts_take)
        return [250_400, 200_100, 9_000][card]

    def synchronize(self, *_):
        raise AssertionError("a look waits for no card")

    def put(self, monkeypatch):
        for name in ("reset_peak_memory_stats", "utilization", "temperature", "power_draw", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda card: [5 * GB, 7 * GB, 0][card])
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda card: self.most[card])
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda card: SimpleNamespace(total_memory=24 * GB)
        )
        return self


@pytest.fixture
def gpus(monkeypatch):
    return FakeGpus().put(monkeypatch)


@pytest.fixture
def log():
    return EventLog()


def monitor(log):
    return MachineMonitor(torch.device("cuda"), log)


def uses(log):
    return [event for event in log.since(0) if isinstance(event, MachineUse)]


def test_the_gpus_of_the_model_are_summed_up(gpus, log):
    gpus.most = [20 * GB, 20 * GB, 0]  # an earlier peak of another program
    watching = monitor(log)
    gpus.most[1] = 8 * GB
    watching.observe()
    (use,) = uses(log)
    assert event_text(use) == "GPUs: peak 13 GB of 48 GB so far, 70% busy, 70 °C, 450 W"


def test_sampled_every_few_seconds_and_logged_on_change(gpus, log, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: clock[0])
    watching = monitor(log)
    for gpus.most[0], clock[0] in ((5 * GB, 100), (6 * GB, 104.9), (7 * GB, 105.1), (7 * GB, 111)):
        watching.observe()
    assert [use.peak for use in uses(log)] == [12 * GB, 14 * GB]
    gpus.most[0] = 9 * GB
    watching.observe(at_once=True)
    assert peak_memory_of(log.since(0)) == 16 * GB


@pytest.mark.parametrize("error", [ModuleNotFoundError("no pynvml"), RuntimeError("no driver"), Exception("odd")])
def test_a_failing_sensor_is_left_out_and_not_read_again(gpus, log, monkeypatch, error):
    def unknown(card):
        gpus.asked.append("unknown")
        raise error

    for name in ("utilization", "power_draw"):
        monkeypatch.setattr(torch.cuda, name, unknown)
    watching = monitor(log)
    watching.observe()
    watching.observe(at_once=True)
    assert gpus.asked == ["unknown", "temperature", "temperature", "unknown", "temperature", "temperature"]
    assert event_text(uses(log)[-1]) == "GPUs: peak 12 GB of 48 GB so far, 70 °C"


def test_an_older_torch_without_a_sensor_works(gpus, log, monkeypatch):
    monkeypatch.delattr(torch.cuda, "power_draw")
    monitor(log).observe()
    assert uses(log)[0].watts is None and uses(log)[0].busy == 70


def test_a_slow_sensor_is_read_once(gpus, log):
    gpus.watts_take = telemetry.SLOW_SENSOR_SECONDS
    watching = monitor(log)
    watching.observe()
    watching.observe(at_once=True)
    assert [use.watts for use in uses(log)] == [450, None]
    assert gpus.asked.count("power_draw") == 2


def test_a_segment_starts_with_the_peak_of_earlier_ones(gpus, log):
    log.append(MachineUse(cards=2, peak=30 * GB))
    monitor(log).observe()
    assert uses(log)[-1].peak == 30 * GB


def test_without_a_gpu_it_is_the_memory_of_this_process(log):
    watching = MachineMonitor(torch.device("cpu"), log)
    watching.observe()
    before = uses(log)[-1]
    taken = bytearray(b"x" * 200_000_000)
    watching.observe(at_once=True)
    del taken
    watching.observe(at_once=True)
    assert before.cards == 0 and event_text(before).startswith("program memory: peak ")
    assert uses(log)[-1].peak - before.peak > 150_000_000


def test_without_a_system_peak_the_samples_count(log, monkeypatch, tmp_path):
    monkeypatch.setattr(telemetry, "PROCESS_STATUS", tmp_path / "status")
    monkeypatch.setattr(telemetry, "CLEAR_REFS", tmp_path / "not there" / "clear_refs")
    telemetry.PROCESS_STATUS.write_text("Name:\tpython\n", encoding="ascii")
    MachineMonitor(torch.device("cpu"), log).observe()
    assert uses(log)[0].peak > 1_000_000


def test_a_run_logs_and_records_it(place):
    job = Job("training", "a test")
    place.train(job=job)
    events = job.log.since(0)
    first_step = next(n for n, event in enumerate(events) if isinstance(event, Step))
    assert min(n for n, event in enumerate(events) if isinstance(event, MachineUse)) > first_step
    training_log = json.loads((place.folders.loras / "a" / "training_log.json").read_text(encoding="utf-8"))
    assert training_log["memory_at_most"] == peak_memory_of(events) > 1_000_000
    assert "peak memory" in (place.folders.loras / "a" / "report.html").read_text(encoding="utf-8")
