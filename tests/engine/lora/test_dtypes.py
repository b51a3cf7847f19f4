"""Advice about the dtype that a model computes in."""

from __future__ import annotations

import pytest
import torch
from training_pro.engine.lora import dtypes


@pytest.mark.parametrize(
    ("device", "dtype", "emulated", "has_advice"),
    [
        ("cuda", "bfloat16", True, True),
        ("cuda", "bfloat16", False, False),
        ("cuda", "float16", True, False),
        ("cpu", "bfloat16", True, False),
    ],
)
def test_a_gpu_that_only_emulates_bfloat16_gives_advice(monkeypatch, device, dtype, emulated, has_advice):
    monkeypatch.setattr(dtypes, "model_device", lambda model: torch.device(device))
    monkeypatch.setattr(dtypes, "compute_dtype", lambda model: dtype)

    def is_supported(including_emulation=True):
        return including_emulation or not emulated

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    advice = list(dtypes.slow_dtype_advice(object()))
    assert len(advice) == has_advice
    assert not has_advice or "Load the model in float16" in advice[0]
