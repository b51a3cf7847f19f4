"""What is known of the machine before torch is loaded."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from training_pro.hosts import memory

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("build", "tool", "found"),
    [
        ("2.13.0+cpu", "/usr/bin/nvidia-smi", False),
        ("2.13.0+cu130", "/usr/bin/nvidia-smi", True),
        ("2.13.0", None, False),
        ("2.13.0+rocm7.0", None, True),
    ],
)
def test_a_card_is_known_without_loading_torch(monkeypatch, build, tool, found):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(memory, "version", lambda name: build)
    monkeypatch.setattr("shutil.which", lambda name: tool)
    assert memory.uses_gpu() is found
    assert "torch" not in sys.modules


def test_while_another_thread_loads_torch_nothing_is_asked_of_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setattr(memory, "version", lambda name: "2.13.0+cpu")
    assert memory.read_memory().device == "CPU"
    assert memory.uses_gpu() is False


def test_torch_itself_knows_best(monkeypatch):
    for there in (True, False):
        cuda = SimpleNamespace(is_available=lambda there=there: there)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        assert memory.uses_gpu() is there


def fake_cards(monkeypatch, count):
    """Each has 24 GB, of which 20, 19, ... are free, and torch holds 2."""
    cuda = SimpleNamespace(
        is_available=lambda: True,
        mem_get_info=lambda card: ((20 - card) * GB, 24 * GB),
        memory_reserved=lambda card: 2 * GB,
        get_device_name=lambda card: f"Card {card}",
        device_count=lambda: count,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def model_on(*places):
    weights = [SimpleNamespace(device=SimpleNamespace(type=kind, index=index)) for kind, index in places]
    return SimpleNamespace(parameters=lambda: iter(weights))


@pytest.mark.parametrize(
    ("model", "name", "free", "total"),
    [
        (None, "Card 0", 22, 24),
        (object(), "Card 0", 22, 24),
        (model_on(("cuda", 0), ("cuda", 0)), "Card 0", 22, 24),
        (model_on(("cuda", 1)), "Card 1", 21, 24),
        (model_on(("cuda", 0), ("cuda", 1), ("meta", None)), "Card 0, Card 1", 43, 48),
    ],
)
def test_a_model_has_the_memory_of_all_cards_that_it_lies_on(monkeypatch, model, name, free, total):
    fake_cards(monkeypatch, 2)
    found = memory.read_memory(model)
    assert (found.device, found.free, found.total) == (name, free * GB, total * GB)


def test_one_of_several_processes_is_told_of_its_own_card(monkeypatch):
    """To ask another one would also take some of that one's memory."""
    fake_cards(monkeypatch, 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert memory.read_memory().device == "Card 1"
