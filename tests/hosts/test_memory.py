"""What is known of the machine before torch is loaded."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from training_pro.hosts import memory


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
    assert memory.on_card() is found
    assert "torch" not in sys.modules


def test_while_another_thread_loads_torch_nothing_is_asked_of_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setattr(memory, "version", lambda name: "2.13.0+cpu")
    assert memory.memory().device == "CPU"
    assert memory.on_card() is False


def test_torch_itself_knows_best(monkeypatch):
    for there in (True, False):
        cuda = SimpleNamespace(is_available=lambda there=there: there)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        assert memory.on_card() is there
