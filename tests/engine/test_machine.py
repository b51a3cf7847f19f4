"""What a run switches on the machine, and that it is switched back."""

from __future__ import annotations

import sys

import pytest
from training_pro.engine import machine


class Libc:
    def __init__(self):
        self.calls = []

    def mallopt(self, what, value):
        self.calls.append((what, value))

    def malloc_trim(self, rest):
        self.calls.append("trim")


def test_memory_is_kept_on_the_cpu_and_goes_back_also_after_an_error(monkeypatch):
    libc = Libc()
    monkeypatch.setattr(machine, "_glibc", lambda: libc)
    with pytest.raises(KeyError), machine.kept_memory("cpu"):
        assert libc.calls == [(-3, 32 * 2**20), (-1, 2**31 - 1)]
        raise KeyError
    assert libc.calls[2:] == [(-1, 64 * 2**20), "trim"]


def test_on_a_card_nothing_is_touched(monkeypatch):
    libc = Libc()
    monkeypatch.setattr(machine, "_glibc", lambda: libc)
    with machine.kept_memory("cuda"):
        pass
    assert not libc.calls


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_the_real_one_takes_it():
    with machine.kept_memory("cpu"):
        pass
