"""Loss functions against PyTorch's cross-entropy of all logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from training_pro.engine.compute import collate, loss
from training_pro.tests.engine.architectures import (
    CONFIGS,
    PACKABLE,
    add_random_lora,
    loss_and_gradients,
    make_model,
    max_relative_error,
    random_examples,
    read_graph,
)
from training_pro.tests.engine.batches import packed_batch, padded_batch


def reference_loss(model, rows, smoothing=0.0):
    """Reference: the mean over all predicted tokens, one example at a time."""
    total, count = 0.0, 0
    for row in rows:
        ids = torch.as_tensor(row.ids, dtype=torch.long)[None]
        logits = model(input_ids=ids).logits[0, :-1].float()
        total = total + F.cross_entropy(logits, ids[0, 1:], reduction="sum", label_smoothing=smoothing)
        count += ids.shape[1] - 1
    return total / count


def through(loss_fn, model, batch):
    inputs = {k: v for k, v in batch.items() if k in ("input_ids", "attention_mask", "position_ids")}
    return loss_fn(model, inputs, batch["labels"])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", CONFIGS)
def test_padded_rows_have_the_loss_and_gradients_of_each_alone(name, smoothing):
    model, rows = add_random_lora(make_model(name)), random_examples(9, 17, 1, 5)
    batch = padded_batch(rows)
    expected = loss_and_gradients(
        model, lambda: reference_loss(model, [r for r in rows if len(r.ids) > 1], smoothing)
    )
    head = loss._find_head(model)
    assert head.is_frozen
    for loss_fn in (loss.ChunkedLoss(head, smoothing), loss.FullLogitsLoss(smoothing)):
        actual = loss_and_gradients(model, lambda loss_fn=loss_fn: through(loss_fn, model, batch).losses.mean())
        assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert max_relative_error(actual["gradients"], expected["gradients"]) < 1e-5


@pytest.mark.parametrize("name", PACKABLE)
def test_packed_rows_have_the_loss_and_gradients_of_each_alone(name):
    model, rows = add_random_lora(make_model(name)), random_examples(9, 17, 1, 5)
    expected = loss_and_gradients(model, lambda: reference_loss(model, [r for r in rows if len(r.ids) > 1]))
    loss_fn = loss.ChunkedLoss(loss._find_head(model))
    actual = loss_and_gradients(model, lambda: through(loss_fn, model, packed_batch(rows)).losses.mean())
    assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert max_relative_error(actual["gradients"], expected["gradients"]) < 1e-5


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_more_rows_than_go_through_the_head_at_once(name, monkeypatch):
    model, rows = add_random_lora(make_model(name)), random_examples(9, 17, 5)
    whole = loss_and_gradients(
        model, lambda: through(loss.FullLogitsLoss(), model, padded_batch(rows)).losses.mean()
    )
    monkeypatch.setattr(loss, "head_rows", lambda vocabulary, on_card: 3)
    loss_fn = loss.ChunkedLoss(loss._find_head(model))
    parts = loss_and_gradients(model, lambda: through(loss_fn, model, padded_batch(rows)).losses.mean())
    assert max_relative_error(parts["gradients"], whole["gradients"]) < 1e-5


@pytest.mark.parametrize("loss_fn", ["supervised", "whole"])
def test_token_losses_have_positions_owners_and_hits(loss_fn):
    model, rows = make_model("llama"), random_examples(4, 2)
    losses = through(
        loss.ChunkedLoss(loss._find_head(model)) if loss_fn == "supervised" else loss.FullLogitsLoss(),
        model,
        padded_batch(rows),
    )
    assert losses.positions.tolist() == [[0, 1], [0, 2], [0, 3], [1, 1]]
    assert losses.owners_at_labels(collate(rows, in_one_row=False).owners).tolist() == [0, 0, 0, 1]
    in_one_row = collate(rows, in_one_row=True).owners
    assert in_one_row.tolist() == [[0, 0, 0, 0, 1, 1]]
    logits = model(input_ids=torch.as_tensor(rows[0].ids, dtype=torch.long)[None]).logits[0, :-1]
    assert losses.hits[:3].tolist() == [
        int(a) == int(b) for a, b in zip(logits.argmax(-1), rows[0].ids[1:], strict=True)
    ]


@pytest.mark.parametrize("make", [lambda head: loss.ChunkedLoss(head), lambda head: loss.FullLogitsLoss()])
def test_a_token_that_is_the_most_probable_one_is_a_hit(make):
    model, ids = make_model("llama").requires_grad_(False), torch.tensor([[5]])
    for _ in range(6):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    ids[0, 4] = (ids[0, 4] + 1) % model.config.vocab_size
    expected = (model(input_ids=ids).logits[0, :-1].argmax(-1) == ids[0, 1:]).tolist()
    assert expected[:4] == [True, True, True, False]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert make(loss._find_head(model))(model, inputs, ids.clone()).hits.tolist() == expected


def test_only_supervised_positions_go_through_the_head():
    model, seen = make_model("llama"), []
    batch = padded_batch(random_examples(6, 6))
    batch["labels"][:, :5] = -100
    model.lm_head.register_forward_hook(lambda module, given, made: seen.append(given[0].shape))
    losses = through(loss.ChunkedLoss(loss._find_head(model)), model, batch)
    assert len(losses.losses) == 2
    assert losses.positions.tolist() == [[0, 5], [1, 5]]


def test_the_head_is_restored_even_if_the_model_fails():
    model = make_model("llama")
    model.lm_head.forward = own = model.lm_head.forward
    with pytest.raises(IndexError):
        through(
            loss.ChunkedLoss(loss._find_head(model)),
            model,
            padded_batch(random_examples(4)) | {"input_ids": torch.tensor([[9999, 1]])},
        )
    assert vars(model.lm_head)["forward"] is own


PROBE_TEXTS = torch.arange(24).reshape(2, 12)


def test_the_chunked_loss_is_the_default():
    model = add_random_lora(make_model("gemma2"))
    loss_fn, reason = loss.choose_loss(model, PROBE_TEXTS, 0.0)
    assert (type(loss_fn), reason) == (loss.ChunkedLoss, "")
    assert loss_fn.head.cap == 3.0


def test_a_model_that_changes_its_logits_computes_all_of_them():
    model = make_model("llama")
    plain = type(model).forward
    model.forward = lambda **given: _doubled(plain(model, **given))
    loss_fn, reason = loss.choose_loss(model, PROBE_TEXTS, 0.0)
    assert (type(loss_fn), reason) == (
        loss.FullLogitsLoss,
        "this model changes the logits after its output layer",
    )


@pytest.mark.parametrize(
    ("dtype", "change", "kind"),
    [
        (torch.float32, 1 + 1e-6, loss.ChunkedLoss),
        (torch.float32, 1.01, loss.FullLogitsLoss),
        (torch.bfloat16, 1.0, loss.ChunkedLoss),
        (torch.bfloat16, 1.3, loss.FullLogitsLoss),
    ],
)
def test_half_precision_may_differ_more(dtype, change, kind):
    model = make_model("llama").to(dtype)
    plain = type(model).forward

    def changed(**given):
        output = plain(model, **given)
        output.logits = output.logits.float() * change
        return output

    model.forward = changed
    assert type(loss.choose_loss(model, PROBE_TEXTS, 0.0)[0]) is kind


def _doubled(output):
    output.logits = output.logits * 2
    return output


def test_a_head_that_is_trained_itself_gets_its_gradient():
    model = make_model("llama")
    rows = random_examples(9, 5)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    loss_fn, reason = loss.choose_loss(model, PROBE_TEXTS, 0.0)
    expected = loss_and_gradients(model, lambda: reference_loss(model, rows))
    actual = loss_and_gradients(model, lambda: through(loss_fn, model, padded_batch(rows)).losses.mean())
    assert (reason, loss_fn.head.is_frozen) == ("", False)
    assert "lm_head.weight" in actual["gradients"]
    assert max_relative_error(actual["gradients"], expected["gradients"]) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_gradient_keeps_its_small_parts(dtype):
    torch.manual_seed(0)
    rows, weight = torch.randn(40, 16).to(dtype).requires_grad_(), torch.randn(3000, 16).to(dtype)
    targets = torch.randint(0, 3000, (40,))
    losses, _ = loss._ChunkedCrossEntropy.apply(rows, weight, None, targets, 0.0, None)
    losses.sum().backward()
    exact = rows.detach().double().requires_grad_()
    F.cross_entropy(exact @ weight.double().T, targets, reduction="sum").backward()
    assert float((rows.grad.double() - exact.grad).norm() / exact.grad.norm()) < 0.01


RUNS = [{"batch_size": b, "accumulation": 8 // b} for b in (8, 4, 2, 1)]


@pytest.mark.parametrize("packing", ["off", "on"])
def test_only_batch_times_accumulation_matters(place, packing):
    options = {"batching": "sequential", "label_smoothing": 0.1, "packing": packing, "max_steps": 2}
    curves = []
    for number, sizes in enumerate(RUNS):
        place.train(name=f"run-{number}", **sizes, **options)
        curves.append([(e["loss"], e["gradient_norm"]) for e in read_graph(place, f"run-{number}")])
    for curve in curves[1:]:
        assert np.allclose(curve, curves[0], rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_same_examples_by_length_packed_or_padded_have_the_same_gradients(name):
    """For the same examples, neither their order nor padding changes the gradients."""
    model, rows = add_random_lora(make_model(name)), random_examples(9, 17, 3, 12)
    loss_fn = loss.ChunkedLoss(loss._find_head(model))
    by_length = sorted(rows, key=lambda row: -len(row.ids))
    batches = [padded_batch(rows), packed_batch(rows), padded_batch(by_length), packed_batch(by_length)]
    results = [loss_and_gradients(model, lambda b=b: through(loss_fn, model, b).losses.mean()) for b in batches]
    for other in results[1:]:
        assert other["loss"] == pytest.approx(results[0]["loss"], rel=1e-5)
        assert max_relative_error(other["gradients"], results[0]["gradients"]) < 1e-5
