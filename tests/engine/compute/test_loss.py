"""The loss against PyTorch's cross-entropy of all logits, and packing, as `probe_model` chooses both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from training_pro.core.errors import SettingsError
from training_pro.core.host import unwrap_peft
from training_pro.core.jobs import Job, Note
from training_pro.engine.compute import make_objective, probe_model
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import (
    CONFIGS,
    PACKABLE,
    add_random_lora,
    loss_and_gradients,
    make_model,
    max_relative_error,
    packed_batch,
    padded_batch,
    random_examples,
    read_graph,
    read_log,
)


def probe(model, packing="auto", smoothing=0.0):
    values = {"name": "a", "data": ["x.txt"], "packing": packing, "label_smoothing": smoothing}
    return probe_model(model, training_settings(values))


def chunked_loss(model, smoothing=0.0):
    found = probe(model, smoothing=smoothing)
    assert found.chunked_loss_refusal == ""
    return found.loss


def full_loss(model, smoothing=0.0):
    base = unwrap_peft(model)
    own, base.get_output_embeddings = base.get_output_embeddings, lambda: None
    found = probe(model, smoothing=smoothing)
    base.get_output_embeddings = own
    assert found.chunked_loss_refusal == "this model does not say which layer is its output layer"
    return found.loss


def through(loss_fn, model, batch):
    return loss_fn(model, {name: tensor for name, tensor in batch.items() if name != "labels"}, batch["labels"])


def reference_loss(model, rows, smoothing=0.0):
    """The mean over all predicted tokens, one example at a time."""
    total, count = 0.0, 0
    for row in rows:
        ids = torch.as_tensor(row.ids, dtype=torch.long)[None]
        logits = model(input_ids=ids).logits[0, :-1].float()
        total = total + F.cross_entropy(logits, ids[0, 1:], reduction="sum", label_smoothing=smoothing)
        count += ids.shape[1] - 1
    return total / count


def assert_as_alone(model, loss_fn, rows, batch, smoothing=0.0):
    """Loss and gradients of a batch are those of each example alone."""
    alone = [row for row in rows if len(row.ids) > 1]
    expected = loss_and_gradients(model, lambda: reference_loss(model, alone, smoothing))
    actual = loss_and_gradients(model, lambda: through(loss_fn, model, batch)[0].mean())
    assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert max_relative_error(actual["gradients"], expected["gradients"]) < 1e-5
    return actual["gradients"]


@pytest.mark.parametrize("name", CONFIGS)
def test_padded_or_packed_each_example_has_the_loss_and_gradients_it_has_alone(name):
    model, rows = add_random_lora(make_model(name)), random_examples(9, 17, 1, 5)
    for smoothing in (0.0, 0.1):
        assert_as_alone(model, chunked_loss(model, smoothing), rows, padded_batch(rows), smoothing)
        assert_as_alone(model, full_loss(model, smoothing), rows, padded_batch(rows), smoothing)
    is_eager = model.config._attn_implementation == "eager"  # whose memory grows with the square of a packed row
    assert probe(model).packed is (name in PACKABLE and not is_eager)
    if name in PACKABLE:
        assert_as_alone(model, chunked_loss(model), rows, packed_batch(rows))


@pytest.mark.parametrize("choose", [chunked_loss, full_loss])
def test_token_losses_have_owners_and_hits(choose):
    model, rows = make_model("llama"), random_examples(4, 2)
    ids = torch.tensor([[5]])
    for _ in range(6):
        ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    ids[0, 4] = (ids[0, 4] + 1) % model.config.vocab_size
    hits = (model(input_ids=ids).logits[0, :-1].argmax(-1) == ids[0, 1:]).tolist()
    assert hits[:4] == [True, True, True, False]
    for requires_grad in (True, False):
        model.requires_grad_(requires_grad)
        objective = make_objective(replace(probe(model, packing="off"), loss=choose(model)), None)
        assert objective(model, objective.collate(rows)).owners.tolist() == [0, 0, 0, 1]
        assert through(choose(model), model, {"input_ids": ids, "labels": ids})[1].tolist() == hits


def test_only_supervised_positions_go_through_the_head_whose_forward_is_restored():
    model = make_model("llama").requires_grad_(False)
    loss_fn, seen = chunked_loss(model), []
    model.lm_head.forward = own = model.lm_head.forward  # as accelerate does for several GPUs
    model.lm_head.register_forward_hook(lambda module, given, made: seen.append(made.shape))
    batch = padded_batch(random_examples(6, 6))
    batch["labels"][:, :5] = -100
    assert len(through(loss_fn, model, batch)[0]) == 2
    assert seen == [(2, 6, 1)]  # one column in place of the logits
    with pytest.raises(IndexError):
        through(loss_fn, model, batch | {"input_ids": torch.tensor([[9999, 1]])})
    assert vars(model.lm_head)["forward"] is own
    del model.lm_head.forward
    through(loss_fn, model, batch)
    assert "forward" not in vars(model.lm_head)


CHANGES = "this model changes the logits after its output layer"


@pytest.mark.parametrize(
    ("dtype", "factor", "reason"),
    [("float32", 1 + 1e-6, ""), ("float32", 1.01, CHANGES), ("bfloat16", 1.01, ""), ("bfloat16", 1.3, CHANGES)],
)
def test_a_model_that_changes_its_logits_computes_all_of_them(dtype, factor, reason):
    model = make_model("llama").to(getattr(torch, dtype))
    plain = type(model).forward

    def changed(**given):
        output = plain(model, **given)
        output.logits = output.logits.float() * factor
        return output

    model.forward = changed
    assert probe(model).chunked_loss_refusal == reason


@pytest.mark.parametrize("name", ["llama", "gemma2"])  # gemma2 caps its logits
def test_a_head_that_is_trained_itself_gets_its_gradient(name):
    model, rows = make_model(name, tie_word_embeddings=False).requires_grad_(True), random_examples(9, 5)
    assert "lm_head.weight" in assert_as_alone(model, chunked_loss(model), rows, padded_batch(rows))


@pytest.mark.parametrize(
    ("name", "dtype", "most"),
    [
        ("llama", "float32", 1e-5),
        ("gemma2", "float32", 1e-5),
        ("llama", "bfloat16", 0.01),
        ("llama", "float16", 0.01),
    ],
)
def test_more_rows_than_go_through_the_head_at_once_keep_their_gradient_to_its_small_parts(name, dtype, most):
    """With this vocabulary, 2784 rows go through it at a time."""
    model = make_model(name, vocab_size=3000).to(getattr(torch, dtype)).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 2801, 32, generator=generator).to(model.dtype).requires_grad_()
    labels = torch.randint(0, 3000, (1, 2801), generator=generator)
    loss_fn = chunked_loss(model)
    losses, _ = loss_fn(lambda rows, use_cache: model.lm_head(rows), {"rows": rows}, labels)
    losses.sum().backward()
    exact = rows.detach().double().requires_grad_()
    logits = exact[0, :-1] @ model.lm_head.weight.double().T
    logits = 3 * torch.tanh(logits / 3) if name == "gemma2" else logits
    expected = F.cross_entropy(logits, labels[0, 1:], reduction="none")
    expected.sum().backward()
    assert torch.allclose(losses.double(), expected, rtol=most)
    assert float((rows.grad.double() - exact.grad).norm() / exact.grad.norm()) < most


def test_a_model_that_uses_its_output_layer_twice_gets_the_loss_of_all_logits():
    model = make_model("llama")
    forward = model.forward
    model.forward = lambda **inputs: (
        model.lm_head(torch.zeros(1, 1, model.config.hidden_size)),
        forward(**inputs),
    )[1]
    found = probe(model, smoothing=0.1)
    assert found.chunked_loss_refusal == "this model uses its output layer in an unusual way (ValueError)"
    assert (found.loss.head, found.loss.smoothing) == (None, 0.1)


@pytest.mark.parametrize("packing", ["off", "on"])
def test_only_batch_times_accumulation_matters(place, packing):
    options = {"batching": "sequential", "label_smoothing": 0.1, "packing": packing, "max_steps": 2}
    curves = []
    for size in (8, 4, 2, 1):
        place.train(name=f"run-{size}", batch_size=size, accumulation=8 // size, **options)
        curves.append([(e["loss"], e["gradient_norm"]) for e in read_graph(place, f"run-{size}")])
    for curve in curves[1:]:
        assert np.allclose(curve, curves[0], rtol=1e-5)


MIXES = "in this model, packed examples can see each other"


@pytest.mark.parametrize("mix", [lambda out: 0.02 * out.cumsum(1), lambda out: 1e-3 * out.mean(1, keepdim=True)])
def test_a_model_that_mixes_much_or_little_is_detected(mix):
    model = make_model("llama")
    model.model.layers[1].register_forward_hook(lambda module, given, out: out + mix(out))
    assert probe(model).packing_refusal.startswith(MIXES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_not_mistaken_for_mixing(dtype):
    assert probe(make_model("llama").to(dtype)).packed
    assert not probe(make_model("opt").to(dtype)).packed


def test_packing_is_refused_with_the_reason_and_packing_off_is_not_probed():
    with pytest.raises(SettingsError, match=r"can't be used, because in this model, .* Choose auto or off"):
        probe(make_model("opt"), "on")
    result = probe(make_model("opt"), "off")
    assert (result.packed, result.packing_refusal, list(result.notes())) == (False, "", [])
    model = make_model("llama")
    own = model.forward
    model.forward = lambda input_ids=None, attention_mask=None, use_cache=None: own(input_ids, attention_mask)
    assert probe(model).packing_refusal == "this model does not accept position IDs (TypeError)"


def test_dropout_and_modes_do_not_matter_and_are_restored():
    model = add_random_lora(make_model("gpt2"), lora_dropout=0.5).train()
    model.base_model.model.transformer.drop.p = 0.5
    model.base_model.model.transformer.h[1].eval()
    before = [m.training for m in model.modules()]
    assert probe(model).packed
    assert [m.training for m in model.modules()] == before


def test_packed_padded_and_from_all_logits_a_run_learns_the_same_and_logs_its_way(place):
    curves, notes = [], []
    for name, packing in (("padded", "off"), ("packed", "on"), ("whole", "off")):
        host, job = place.host(), Job("training", "a test")
        if name == "whole":
            host.loaded_model().model.get_output_embeddings = lambda: None
        place.train(host, job=job, name=name, packing=packing, accumulation=2, targets="q-k-v-o")
        curves.append([(e["loss"], e["gradient_norm"], e["tokens"]) for e in read_graph(place, name)])
        notes.append(" ".join(event.text for event in job.log.since(0) if isinstance(event, Note)))
        assert read_log(place, name)["packing"] == packing
        assert read_log(place, name)["loss_from"].startswith("from all logits" if name == "whole" else "superv")
    assert np.allclose(curves[1:], curves[:1], rtol=1e-4)
    assert ["Packing is on" in text for text in notes] == [False, True, False]
    assert ["computed from all logits" in text for text in notes] == [False, False, True]
