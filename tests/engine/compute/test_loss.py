"""The loss of supervised rows, way by way, against PyTorch's own cross-entropy of all logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from training_pro.engine.compute import loss
from training_pro.engine.compute.collator import batched
from training_pro.tests.engine.architectures import (
    CONFIGS,
    KEEPS_APART,
    examples,
    gradients,
    graph,
    made,
    relative,
    with_lora,
)
from training_pro.tests.engine.batches import packed, padded


def by_the_book(model, rows, smoothing=0.0):
    """One example after the other through the whole model; the mean over all predicted tokens."""
    total, count = 0.0, 0
    for row in rows:
        ids = torch.as_tensor(row.ids, dtype=torch.long)[None]
        logits = model(input_ids=ids).logits[0, :-1].float()
        total = total + F.cross_entropy(logits, ids[0, 1:], reduction="sum", label_smoothing=smoothing)
        count += ids.shape[1] - 1
    return total / count


def through(way, model, batch):
    inputs = {k: v for k, v in batch.items() if k in ("input_ids", "attention_mask", "position_ids")}
    return way(model, inputs, batch["labels"])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", CONFIGS)
def test_padded_rows_have_the_loss_and_gradients_of_each_alone(name, smoothing):
    model, rows = with_lora(made(name)), examples(9, 17, 1, 5)
    batch = padded(rows)
    right = gradients(model, lambda: by_the_book(model, [r for r in rows if len(r.ids) > 1], smoothing))
    head = loss._head(model)
    assert head.fixed
    for way in (loss.SupervisedOnly(head, smoothing), loss.WholeHead(smoothing)):
        found = gradients(model, lambda way=way: through(way, model, batch).losses.mean())
        assert found["loss"] == pytest.approx(right["loss"], rel=1e-5)
        assert relative(found["gradients"], right["gradients"]) < 1e-5


@pytest.mark.parametrize("name", KEEPS_APART)
def test_packed_rows_have_the_loss_and_gradients_of_each_alone(name):
    model, rows = with_lora(made(name)), examples(9, 17, 1, 5)
    right = gradients(model, lambda: by_the_book(model, [r for r in rows if len(r.ids) > 1]))
    way = loss.SupervisedOnly(loss._head(model))
    found = gradients(model, lambda: through(way, model, packed(rows)).losses.mean())
    assert found["loss"] == pytest.approx(right["loss"], rel=1e-5)
    assert relative(found["gradients"], right["gradients"]) < 1e-5


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_more_rows_than_go_through_the_head_at_once(name, monkeypatch):
    model, rows = with_lora(made(name)), examples(9, 17, 5)
    whole = gradients(model, lambda: through(loss.WholeHead(), model, padded(rows)).losses.mean())
    monkeypatch.setattr(loss, "rows_at_once", lambda vocabulary, on_card: 3)
    way = loss.SupervisedOnly(loss._head(model))
    parts = gradients(model, lambda: through(way, model, padded(rows)).losses.mean())
    assert relative(parts["gradients"], whole["gradients"]) < 1e-5


@pytest.mark.parametrize("way", ["supervised", "whole"])
def test_rows_know_their_places_their_owners_and_what_was_hit(way):
    model, rows = made("llama"), examples(4, 2)
    found = through(
        loss.SupervisedOnly(loss._head(model)) if way == "supervised" else loss.WholeHead(), model, padded(rows)
    )
    assert found.places.tolist() == [[0, 1], [0, 2], [0, 3], [1, 1]]
    assert found.of_owners(batched(rows, in_one_row=False)["owners"]).tolist() == [0, 0, 0, 1]
    in_one_row = batched(rows, in_one_row=True)["owners"]
    assert in_one_row.tolist() == [[0, 0, 0, 0, 1, 1]]
    logits = model(input_ids=torch.as_tensor(rows[0].ids, dtype=torch.long)[None]).logits[0, :-1]
    assert found.hits[:3].tolist() == [
        int(a) == int(b) for a, b in zip(logits.argmax(-1), rows[0].ids[1:], strict=True)
    ]


def test_only_what_is_to_be_learned_goes_through_the_head():
    model, seen = made("llama"), []
    batch = padded(examples(6, 6))
    batch["labels"][:, :5] = -100
    model.lm_head.register_forward_hook(lambda module, given, made: seen.append(given[0].shape))
    found = through(loss.SupervisedOnly(loss._head(model)), model, batch)
    assert len(found.losses) == 2
    assert found.places.tolist() == [[0, 5], [1, 5]]


def test_the_head_is_as_it_was_even_when_the_model_fails():
    model = made("llama")
    model.lm_head.forward = own = model.lm_head.forward
    with pytest.raises(IndexError):
        through(
            loss.SupervisedOnly(loss._head(model)),
            model,
            padded(examples(4)) | {"input_ids": torch.tensor([[9999, 1]])},
        )
    assert vars(model.lm_head)["forward"] is own


def trial(model):
    ids = torch.arange(24).reshape(2, 12)
    labels = ids.clone()
    labels[:, 0] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, labels


def test_the_usual_way_is_chosen_without_a_word():
    model = with_lora(made("gemma2"))
    way, why = loss.chosen(model, *trial(model), 0.0)
    assert (type(way), why) == (loss.SupervisedOnly, "")
    assert way.head.cap == 3.0


def test_a_model_that_does_more_with_its_logits_makes_them_all():
    model = made("llama")
    plain = type(model).forward
    model.forward = lambda **given: _doubled(plain(model, **given))
    way, why = loss.chosen(model, *trial(model), 0.0)
    assert (type(way), why) == (loss.WholeHead, "this model does more with its logits than its head says")


def _doubled(output):
    output.logits = output.logits * 2
    return output


def test_a_head_that_is_trained_itself_gets_its_gradient():
    model = made("llama")
    rows = examples(9, 5)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    way, why = loss.chosen(model, *trial(model), 0.0)
    right = gradients(model, lambda: by_the_book(model, rows))
    found = gradients(model, lambda: through(way, model, padded(rows)).losses.mean())
    assert (why, way.head.fixed) == ("", False)
    assert "lm_head.weight" in found["gradients"]
    assert relative(found["gradients"], right["gradients"]) < 1e-5


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_gradient_keeps_its_small_parts(kind):
    torch.manual_seed(0)
    rows, weight = torch.randn(40, 16).to(kind).requires_grad_(), torch.randn(3000, 16).to(kind)
    targets = torch.randint(0, 3000, (40,))
    losses, _ = loss._InChunks.apply(rows, weight, None, targets, 0.0, None)
    losses.sum().backward()
    exact = rows.detach().double().requires_grad_()
    F.cross_entropy(exact @ weight.double().T, targets, reduction="sum").backward()
    assert float((rows.grad.double() - exact.grad).norm() / exact.grad.norm()) < 0.01


RUNS = [{"batch_size": b, "accumulation": 8 // b} for b in (8, 4, 2, 1)]


@pytest.mark.parametrize("packing", ["off", "on"])
def test_batch_times_accumulation_is_one_and_the_same(place, packing):
    more = {"batching": "sequential", "label_smoothing": 0.1, "packing": packing, "max_steps": 2}
    curves = []
    for number, sizes in enumerate(RUNS):
        place.train(name=f"run-{number}", **sizes, **more)
        curves.append([(e["loss"], e["gradient_norm"]) for e in graph(place, f"run-{number}")])
    for curve in curves[1:]:
        assert np.allclose(curve, curves[0], rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_same_examples_by_length_packed_or_padded_have_the_same_gradients(name):
    """An order only decides who stands in a batch: of the same ones, neither it nor padding changes anything."""
    model, rows = with_lora(made(name)), examples(9, 17, 3, 12)
    way = loss.SupervisedOnly(loss._head(model))
    by_length = sorted(rows, key=lambda row: -len(row.ids))
    batches = [padded(rows), packed(rows), padded(by_length), packed(by_length)]
    found = [gradients(model, lambda b=b: through(way, model, b).losses.mean()) for b in batches]
    for other in found[1:]:
        assert other["loss"] == pytest.approx(found[0]["loss"], rel=1e-5)
        assert relative(other["gradients"], found[0]["gradients"]) < 1e-5
