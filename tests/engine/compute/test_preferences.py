"""The objectives that compare replies, against their formulas in TRL, from all logits of each reply alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from training_pro.data.examples import Example
from training_pro.engine.compute import make_objective, probe_model
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import (
    VOCABULARY,
    add_random_lora,
    loss_and_gradients,
    make_model,
    max_relative_error,
)

BETAS = {"dpo": 0.1, "ipo": 0.1, "kto": 0.1, "orpo": 0.1, "simpo": 2.0}


def settings_for(name, **more):
    return training_settings({"name": "a", "data": ["x.txt"], "objective": name, **more})


def random_pairs(seed, name, count=4):
    """Pairs of replies of 1 to 9 tokens, or labeled replies, each with another one."""
    rng = np.random.default_rng(seed)

    def example(prompt, contrast=None, desirable=None):
        ids = np.concatenate([prompt, rng.integers(3, VOCABULARY, rng.integers(1, 10))]).astype(np.int32)
        return Example(ids, np.arange(len(ids)) >= len(prompt), None, 0, contrast, desirable)

    prompts = [rng.integers(3, VOCABULARY, rng.integers(1, 6)) for _ in range(count)]
    labels = [None if name != "kto" else n % 3 > 0 for n in range(count)]
    return [example(prompt, example(prompt), label) for prompt, label in zip(prompts, labels, strict=True)]


def log_probs(model, examples):
    """The log probability of each reply, and its tokens."""
    sums = []
    for example in examples:
        ids = torch.tensor(example.ids, dtype=torch.long)
        all_log_probs = model(input_ids=ids[None]).logits[0, :-1].float().log_softmax(-1)
        sums.append(all_log_probs.gather(1, ids[1:, None])[:, 0][torch.tensor(example.loss_mask[1:])].sum())
    return torch.stack(sums), torch.tensor([example.loss_mask[1:].sum() for example in examples])


def formula(name, model, pairs, smoothing=0.0):
    """The mean loss as TRL computes it, with its default beta; SimPO's gamma is half of its beta."""
    beta, gamma = BETAS[name], 1.0
    chosen, chosen_tokens = log_probs(model, pairs)
    rejected, rejected_tokens = log_probs(model, [pair.contrast for pair in pairs])
    with torch.no_grad(), model.disable_adapter():
        chosen_base, _ = log_probs(model, pairs)
        rejected_base, _ = log_probs(model, [pair.contrast for pair in pairs])
    chosen_gain, rejected_gain = chosen - chosen_base, rejected - rejected_base
    if name == "dpo":
        logits = beta * (chosen_gain - rejected_gain)
        losses = -F.logsigmoid(logits) * (1 - smoothing) - F.logsigmoid(-logits) * smoothing
    elif name == "ipo":
        losses = (chosen_gain / chosen_tokens - rejected_gain / rejected_tokens - 1 / (2 * beta)) ** 2
    elif name == "simpo":
        logits = beta * (chosen / chosen_tokens - rejected / rejected_tokens) - gamma
        losses = -F.logsigmoid(logits) * (1 - smoothing) - F.logsigmoid(-logits) * smoothing
    elif name == "orpo":
        means = chosen / chosen_tokens, rejected / rejected_tokens
        odds = [mean - torch.log1p(-torch.exp(mean)) for mean in means]
        losses = -means[0] - beta * F.logsigmoid(odds[0] - odds[1])
    else:
        shift = rejected_gain.mean().detach().clamp(min=0)
        signs = torch.tensor([1.0 if pair.desirable else -1.0 for pair in pairs])
        losses = 1 - torch.sigmoid(beta * signs * (chosen_gain - shift))
    return losses.mean()


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("name", BETAS)
def test_loss_and_gradients_of_ten_random_batches_are_those_of_the_formula(name, packing):
    model = add_random_lora(make_model("llama"))
    smoothing = 0.1 if name in ("dpo", "simpo") else 0.0
    settings = settings_for(name, packing=packing, preference_smoothing=smoothing, label_smoothing=0.1)
    objective = make_objective(probe_model(model, settings), settings, model)
    assert objective.packed is (packing == "on")
    for seed in range(10):
        pairs = random_pairs(seed, name)
        batch = objective.collate(pairs)
        expected = loss_and_gradients(model, lambda: formula(name, model, pairs, smoothing))  # noqa: B023
        actual = loss_and_gradients(model, lambda: objective(model, batch).losses.mean())  # noqa: B023
        assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert max_relative_error(actual["gradients"], expected["gradients"]) < 1e-5
        assert int((objective.counted(batch)[1:] != -100).sum()) == len(pairs) == len(batch)


@pytest.mark.parametrize("name", ["dpo", "ipo", "orpo", "simpo"])
def test_the_parts_of_a_batch_have_the_losses_of_the_whole(name):
    """As after a split for memory. KTO is left out: its shift is that of a part."""
    model, settings = add_random_lora(make_model("llama")), settings_for(name, chosen_weight=0.3)
    objective = make_objective(probe_model(model, settings), settings, model)
    batch = objective.collate(random_pairs(3, name, 5))
    whole = objective(model, batch)
    parts = [objective(model, batch[part]) for part in (slice(0, 2), slice(2, 5))]
    assert torch.cat([part.losses for part in parts]).tolist() == pytest.approx(whole.losses.tolist(), rel=1e-5)
    for figure in objective.figures:
        values = torch.cat([part.figures[figure] for part in parts]).tolist()
        assert values == pytest.approx(whole.figures[figure].tolist(), rel=1e-4, abs=1e-5, nan_ok=True)


def test_the_reference_is_the_model_without_its_lora_in_eval_mode_and_leaves_no_trace():
    model = add_random_lora(make_model("llama"), lora_dropout=0.5).train()
    settings, pairs = settings_for("dpo"), random_pairs(1, "dpo")
    objective = make_objective(probe_model(model, settings), settings, model)
    trained = {name for name, weights in model.named_parameters() if weights.requires_grad}
    batch = objective.collate(pairs)
    torch.manual_seed(4)
    first, after = objective(model, batch), torch.rand(1)
    torch.manual_seed(4)
    objective.loss(model, batch.inputs, batch.labels)
    assert torch.equal(after, torch.rand(1))  # the reference has drawn no random numbers
    assert model.training and {n for n, w in model.named_parameters() if w.requires_grad} == trained
    with torch.no_grad(), model.eval().disable_adapter():
        expected, tokens = log_probs(model, pairs)
    distance = first.figures["chosen"] - first.figures["distance"]
    assert distance.tolist() == pytest.approx((expected / tokens).tolist(), rel=1e-5)


def test_a_model_that_prefers_nothing_follows_half_of_the_preferences():
    model = add_random_lora(make_model("llama"))
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            weights.data.zero_()
    for name in ("dpo", "ipo", "kto"):
        settings = settings_for(name)
        objective = make_objective(probe_model(model, settings), settings)
        losses = objective(model, objective.collate(random_pairs(2, name)))
        assert losses.hits.tolist() == [0.5] * 4 and losses.figures["margin"].tolist() == [0.0] * 4
