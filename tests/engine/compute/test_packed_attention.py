"""Attention text by text equals a mask over the whole row, and is used only for such masks."""

from __future__ import annotations

import pytest
import torch
from training_pro.engine.compute import packed_attention
from training_pro.tests.engine.architectures import (
    CONFIGS,
    add_random_lora,
    loss_and_gradients,
    make_model,
    max_relative_error,
    random_examples,
    supervised_loss,
)
from training_pro.tests.engine.batches import packed_batch, padded_batch
from training_pro.tests.tiny import watched_job

WITH_SDPA = [name for name in CONFIGS if name not in ("gpt_neo", "gemma2")]


@pytest.mark.parametrize("name", WITH_SDPA)
@pytest.mark.parametrize("batch", [packed_batch, padded_batch], ids=["packed", "padded"])
def test_gradients_are_those_of_the_mask(name, batch):
    base = make_model(name, num_hidden_layers=2) if name == "llama" else make_model(name)
    before = base.config._attn_implementation
    model, rows = add_random_lora(base), random_examples(9, 17, 3, 12)
    expected = loss_and_gradients(model, lambda: supervised_loss(model, batch(rows)))
    with packed_attention.use_packed_attention(base) as works:
        actual = loss_and_gradients(model, lambda: supervised_loss(model, batch(rows)))
    assert base.config._attn_implementation == before
    assert works is (before == "sdpa" and name != "opt") or name == "opt"
    assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert max_relative_error(actual["gradients"], expected["gradients"]) < 1e-5


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


@pytest.mark.parametrize("rows_at_once", [2, 1024])
def test_a_mask_is_read_as_the_bounds_of_its_texts(monkeypatch, rows_at_once):
    monkeypatch.setattr(packed_attention, "ROWS_AT_ONCE", rows_at_once)
    assert packed_mask(block(3, 1, 2)).tolist() == [0, 3, 4, 6]
    assert packed_mask(block(5)).tolist() == [0, 5]


@pytest.mark.parametrize("rows_at_once", [2, 1024])
@pytest.mark.parametrize("kind", ["window", "padding", "joined"])
def test_any_other_mask_is_left_as_it_is(monkeypatch, kind, rows_at_once):
    monkeypatch.setattr(packed_attention, "ROWS_AT_ONCE", rows_at_once)
    visible = block(4, 3)
    if kind == "window":
        visible[3, 0] = False
    elif kind == "padding":
        visible[:, 0] = False
    else:
        visible[5, 1] = True
    assert torch.equal(packed_mask(visible)[0, 0], visible)


def test_a_row_of_one_text_needs_no_mask():
    assert packed_mask(block(5), allow_is_causal_skip=True) is None


def test_the_mask_of_a_long_row_is_never_in_memory_as_a_whole(monkeypatch):
    """A packed row of 16,000 tokens took 2.4 GB."""
    sizes = []
    usual = packed_attention.sdpa_mask

    def watched(*args, **kwargs):
        mask = usual(*args, **kwargs)
        sizes.append(mask.numel())
        return mask

    monkeypatch.setattr(packed_attention, "sdpa_mask", watched)
    assert packed_mask(block(2000, 1000)).tolist() == [0, 2000, 3000]
    assert max(sizes) == packed_attention.ROWS_AT_ONCE * 3000


def test_a_model_with_other_results_keeps_its_attention(monkeypatch):
    base = make_model("llama")
    monkeypatch.setattr(
        packed_attention,
        "packed_attention_forward",
        lambda *a, **m: (packed_attention.sdpa_attention_forward(*a, **m)[0] * 2, None),
    )
    with packed_attention.use_packed_attention(base) as works:
        assert not works
        assert base.config._attn_implementation == "sdpa"


def test_a_packed_run_uses_it_and_restores_the_model(place):
    host, seen = place.host(), []
    model = host.loaded_model().model
    place.train(
        host, job=watched_job(lambda job, event: seen.append(model.config._attn_implementation)), max_steps=2
    )
    assert packed_attention.ATTENTION_NAME in seen
    assert model.config._attn_implementation == "sdpa"
    seen.clear()
    job = watched_job(lambda job, event: seen.append(model.config._attn_implementation))
    place.train(host, name="b", job=job, max_steps=2, packing="off")
    assert packed_attention.ATTENTION_NAME not in seen
