"""What is known of the machine before torch is loaded, and the memory of a model's cards."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from training_pro.hosts import memory

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("build", "has_tool", "found"),
    [
        ("2.13.0+cpu", True, False),
        ("2.13.0+cu130", True, True),
        ("2.13.0", False, False),
        ("2+rocm7", False, True),
    ],
)
def test_a_card_is_known_without_loading_torch(monkeypatch, tmp_path, build, has_tool, found):
    """Also while another thread loads it: nothing is asked of a half-loaded module."""
    if has_tool:
        (tmp_path / "nvidia-smi").write_text("")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(memory, "version", lambda name: build)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert memory.uses_gpu() is found and "torch" not in sys.modules
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert memory.uses_gpu() is found and (found or memory.read_memory().device == "CPU")


def model_on(*places):
    weights = [SimpleNamespace(device=SimpleNamespace(type=kind, index=index)) for kind, index in places]
    return SimpleNamespace(parameters=lambda: iter(weights))


@pytest.mark.parametrize(
    ("model", "rank", "name", "free", "total"),
    [
        (None, "", "Card 0", 22, 24),
        (object(), "", "Card 0", 22, 24),
        (model_on(("cuda", 1)), "", "Card 1", 21, 24),
        (model_on(("cuda", 0), ("cuda", 1), ("meta", None)), "", "Card 0, Card 1", 43, 48),
        (None, "1", "Card 1", 21, 24),
    ],
)
def test_a_model_has_the_memory_of_all_cards_that_it_lies_on(monkeypatch, model, rank, name, free, total):
    """Each has 24 GB, of which 20 or 19 are free, and torch holds 2; one of several processes has its own card."""
    cuda = SimpleNamespace(
        is_available=lambda: True, mem_get_info=lambda card: ((20 - card) * GB, 24 * GB), device_count=lambda: 2,
        memory_reserved=lambda card: 2 * GB, get_device_name=lambda card: f"Card {card}",
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    if rank:
        monkeypatch.setenv("LOCAL_RANK", rank)
    found = memory.read_memory(model)
    assert memory.uses_gpu() and (found.device, found.free, found.total) == (name, free * GB, total * GB)
