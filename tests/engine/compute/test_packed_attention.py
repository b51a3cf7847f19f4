"""Attention text by text is used only for masks of whole texts, and only where the results agree.

`test_layer_patches.py` compares its loss and gradients with those of the mask, for every architecture.
"""

from __future__ import annotations

import pytest
import torch
from training_pro.engine.compute import packed_attention, use_packed_attention
from training_pro.tests.engine.architectures import make_model
from training_pro.tests.tiny import watched_job

OURS = packed_attention.ATTENTION_NAME


def attention_of(model):
    return model.config._attn_implementation


def block(*lengths):
    return torch.block_diag(*[torch.ones(n, n).tril() for n in lengths]).bool()


def packed_mask(visible, **more):
    """What `packed_mask` makes of a row in which these tokens see each other."""
    length = len(visible)
    return packed_attention.packed_mask(
        batch_size=1,
        q_length=length,
        kv_length=length,
        mask_function=lambda batch, head, query, key: visible[query, key],
        **{"allow_is_causal_skip": False, **more},
    )


def test_a_mask_is_read_as_the_bounds_of_its_texts_but_never_in_memory_as_a_whole(monkeypatch):
    """A packed row of 16,000 tokens took 2.4 GB."""
    assert packed_mask(block(3, 1, 2)).tolist() == [0, 3, 4, 6]
    assert packed_mask(block(5), allow_is_causal_skip=True) is None
    sizes, own = [], packed_attention.sdpa_mask
    watched = lambda *args, **more: sizes.append((mask := own(*args, **more)).numel()) or mask  # noqa: E731
    monkeypatch.setattr(packed_attention, "sdpa_mask", watched)
    assert packed_mask(block(2000, 1000)).tolist() == [0, 2000, 3000]
    assert max(sizes) == packed_attention.ROWS_AT_ONCE * 3000


@pytest.mark.parametrize("scale", [1, 400])
@pytest.mark.parametrize(
    ("query", "key", "seen"),
    [(3, 0, False), (slice(None), 0, False), (5, 1, True)],
    ids=["window", "pad", "joined"],
)
def test_any_other_mask_is_left_as_it_is(query, key, seen, scale):
    visible = block(4 * scale, 3 * scale)
    visible[query if isinstance(query, slice) else query * scale, key * scale] = seen
    assert torch.equal(packed_mask(visible)[0, 0], visible)


@pytest.mark.parametrize(("name", "works"), [("llama", True), ("gpt2", True), ("gemma2", False)])
def test_the_attention_of_a_model_is_switched_and_restored(name, works):
    base = make_model(name)
    before = attention_of(base)
    with use_packed_attention(base) as is_used:
        assert is_used is works
        assert attention_of(base) == (OURS if works else before)
    assert attention_of(base) == before


def test_a_model_with_other_results_keeps_its_attention():
    base = make_model("llama")
    base.model.norm.register_forward_hook(lambda module, given, out: out * (1 + (attention_of(base) == OURS)))
    with use_packed_attention(base) as works:
        assert (works, attention_of(base)) == (False, "sdpa")


@pytest.mark.parametrize("packing", ["on", "off"])
def test_a_packed_run_uses_it_and_the_patches_of_layers_and_restores_the_model(place, packing):
    host, seen = place.host(), set()
    model = host.loaded_model().model
    mlp = model.model.layers[0].mlp
    look = lambda *_: seen.update({attention_of(model), "forward" in vars(mlp)})  # noqa: E731
    place.train(host, job=watched_job(look), max_steps=2, packing=packing)
    assert (OURS in seen, True in seen) == (packing == "on", True)
    assert (attention_of(model), "forward" in vars(mlp)) == ("sdpa", False)
