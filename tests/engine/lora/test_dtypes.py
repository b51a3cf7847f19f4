"""What is said of the type that a model is computed in."""

from __future__ import annotations

import pytest
import torch
from training_pro.engine.lora import dtypes


@pytest.mark.parametrize(
    ("place", "kind", "imitated", "told"),
    [
        ("cuda", "bfloat16", True, True),
        ("cuda", "bfloat16", False, False),
        ("cuda", "float16", True, False),
        ("cpu", "bfloat16", True, False),
    ],
)
def test_a_card_that_only_imitates_bfloat16_is_told(monkeypatch, place, kind, imitated, told):
    monkeypatch.setattr(dtypes, "device", lambda model: torch.device(place))
    monkeypatch.setattr(dtypes, "computing_type", lambda model: kind)

    def is_supported(including_emulation=True):
        return including_emulation or not imitated

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    said = list(dtypes.slow_type_advice(object()))
    assert len(said) == told
    assert not told or "Load the model in float16" in said[0]
