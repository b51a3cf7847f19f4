"""What a run takes of the machine: looked at now and then, told, and kept in its records."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
import torch
from training_pro.core.jobs.events import EventLog, MachineUse, Progress, most_memory
from training_pro.core.jobs.job import Job
from training_pro.engine.compute import peak_memory, telemetry
from training_pro.engine.compute.telemetry import MachineWatch

GB = 10**9


class Cards:
    """Three cards of 24 GB each, of which the model lies on two; whoever waits for one has failed."""

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
def cards(monkeypatch):
    return Cards().put(monkeypatch)


@pytest.fixture
def log():
    return EventLog()


def watch(log):
    return MachineWatch(torch.device("cuda"), log)


def told(log):
    return [event for event in log.since(0) if isinstance(event, MachineUse)]


def test_of_the_cards_that_hold_the_model_everything_together(cards, log):
    cards.most = [20 * GB, 20 * GB, 0]  # by whoever had them before
    looking = watch(log)
    cards.most[1] = 8 * GB
    looking.look()
    (use,) = told(log)
    assert use.words == "graphics cards: at most 13 GB of 48 GB so far, 70 % busy, 70 °C, 450 W"


def test_looked_at_once_in_a_few_seconds_and_told_when_it_changed(cards, log, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: clock[0])
    looking = watch(log)
    for cards.most[0], clock[0] in ((5 * GB, 100), (6 * GB, 104.9), (7 * GB, 105.1), (7 * GB, 111)):
        looking.look()
    assert [use.peak for use in told(log)] == [12 * GB, 14 * GB]
    cards.most[0] = 9 * GB
    looking.look(at_once=True)
    assert most_memory(log.since(0)) == 16 * GB


@pytest.mark.parametrize("error", [ModuleNotFoundError("no pynvml"), RuntimeError("no driver"), Exception("odd")])
def test_what_a_card_does_not_tell_is_left_out_and_not_asked_again(cards, log, monkeypatch, error):
    def unknown(card):
        cards.asked.append("unknown")
        raise error

    for name in ("utilization", "power_draw"):
        monkeypatch.setattr(torch.cuda, name, unknown)
    looking = watch(log)
    looking.look()
    looking.look(at_once=True)
    assert cards.asked == ["unknown", "temperature", "temperature", "unknown", "temperature", "temperature"]
    assert told(log)[-1].words == "graphics cards: at most 12 GB of 48 GB so far, 70 °C"


def test_an_older_torch_without_a_reading_does_without(cards, log, monkeypatch):
    monkeypatch.delattr(torch.cuda, "power_draw")
    watch(log).look()
    assert told(log)[0].watts is None and told(log)[0].busy == 70


def test_a_driver_that_answers_slowly_is_asked_once(cards, log):
    cards.watts_take = telemetry.TOO_SLOW_SECONDS
    looking = watch(log)
    looking.look()
    looking.look(at_once=True)
    assert [use.watts for use in told(log)] == [450, None]
    assert cards.asked.count("power_draw") == 2


def test_a_part_of_a_run_goes_on_with_the_peak_of_those_before(cards, log):
    log.append(MachineUse(cards=2, peak=30 * GB))
    watch(log).look()
    assert told(log)[-1].peak == 30 * GB


def test_without_a_card_it_is_the_memory_of_this_process(log):
    looking = MachineWatch(torch.device("cpu"), log)
    looking.look()
    before = told(log)[-1]
    taken = bytearray(b"x" * 200_000_000)
    looking.look(at_once=True)
    del taken
    looking.look(at_once=True)
    assert before.cards == 0 and before.words.startswith("memory of the whole program: at most ")
    assert told(log)[-1].peak - before.peak > 150_000_000


def test_where_the_system_tells_no_peak_what_was_seen_counts(log, monkeypatch, tmp_path):
    monkeypatch.setattr(peak_memory, "STATUS", tmp_path / "status")
    monkeypatch.setattr(peak_memory, "NEW_PEAK", tmp_path / "not there" / "clear_refs")
    peak_memory.STATUS.write_text("Name:\tpython\n", encoding="ascii")
    MachineWatch(torch.device("cpu"), log).look()
    assert told(log)[0].peak > 1_000_000


def test_a_run_tells_it_and_keeps_it(place):
    job = Job("training", "a test")
    place.train(job=job)
    events = job.log.since(0)
    first_step = next(n for n, event in enumerate(events) if isinstance(event, Progress))
    assert min(n for n, event in enumerate(events) if isinstance(event, MachineUse)) > first_step
    kept = json.loads((place.folders.loras / "a" / "training_log.json").read_text(encoding="utf-8"))
    assert kept["memory_at_most"] == most_memory(events) > 1_000_000
    assert "memory at most" in (place.folders.loras / "a" / "report.html").read_text(encoding="utf-8")
