"""A model on one card, or spread over two as accelerate does it: what is asked of it is where it has to be.

Without a card, and so without learning: tests/engine/cards.py.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from training_pro.core.engine import Question
from training_pro.core.jobs.job import Job
from training_pro.data.examples.examples import Example
from training_pro.engine.compute.capabilities import tried
from training_pro.engine.compute.collator import OWNERS, batched
from training_pro.engine.compute.layer_patches import fewer_passes, loras_in_fewer_passes
from training_pro.engine.compute.loss import Rows, SupervisedOnly, WholeHead
from training_pro.engine.compute.loss_by_dataset import LossesApart
from training_pro.engine.compute.neftune import noisy
from training_pro.engine.compute.packed_attention import text_by_text
from training_pro.engine.inference import eval_loop
from training_pro.engine.inference.generation import generated
from training_pro.engine.lora.adapter import injected, lora_config
from training_pro.engine.lora.dtypes import in_its_type
from training_pro.engine.lora.targets import resolved
from training_pro.engine.training import trainer
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import graph
from training_pro.tests.engine.cards import OnCard, cards, on_cards
from transformers import LlamaConfig, LlamaForCausalLM

FIRST, SECOND = "cuda:0", "cuda:1"
WORDS = 96
EVERY = np.concatenate([[False], np.ones(8, bool)])
TWO_TEXTS = [Example(np.arange(9), EVERY, None, 0), Example(np.arange(50, 57), EVERY[:7], None, 1)]
PARTS = {f"model.{part}" for part in ("embed_tokens", "rotary_emb", "layers.0", "layers.1", "norm")} | {"lm_head"}
CASES = [
    ("float32", "one card", False),
    ("bfloat16", "one card", True),
    ("float16", "one card", False),
    ("float32", "two cards, tied", True),
    ("float16", "two cards, tied", False),
    ("float32", "two cards", False),
    ("bfloat16", "two cards", True),
]
"""The type, where it lies, whether its head is trained too."""


def made(kind, *, tied):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=WORDS,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).to(getattr(torch, kind)).eval()


def spread(model, over):
    """Onto the first card, or its second layer and what comes after it onto another, as accelerate hooks it up."""
    at_the_end = ("model.layers.1", "model.norm", *([] if over.endswith("tied") else ["lm_head"]))

    def where(name):
        own = name.removeprefix("base_model.model.")
        return SECOND if over != "one card" and own.startswith(at_the_end) else FIRST

    on_cards(model, where)
    base = model.get_base_model()
    for name, module in base.named_modules() if over != "one card" else ():
        if not name or name in PARTS:
            hook = AlignDevicesHook(torch.device(where(name)), io_same_device=not name)
            add_hook_to_module(module, hook)


def asked(**more):
    return training_settings({"name": "a", "data": ["story.txt"], "rank": 4, **more})


@pytest.fixture(params=CASES, ids=map(str, CASES))
def case(request):
    return request.param


@pytest.fixture
def over(case):
    return case[1]


@pytest.fixture
def settings(case):
    return asked(train_head=case[2])


@pytest.fixture
def model(case, monkeypatch, over, settings):
    base = made(case[0], tied=over.endswith("tied"))
    with injected(base, lora_config(settings.lora, base, resolved("all-linear", base))) as with_lora:
        loras_in_fewer_passes(with_lora)
        spread(with_lora, over)
        with cards(monkeypatch), fewer_passes(base), text_by_text(base) as works:
            assert works
            yield with_lora


def test_its_loss_is_found_where_its_head_is_and_texts_may_share_a_row(model, settings, over):
    ways = tried(model, settings)
    assert isinstance(ways.loss, SupervisedOnly), ways.why_not_usual_loss
    assert ways.packed, ways.why_not_packed
    ids = torch.arange(18, device=FIRST).reshape(2, 9)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with in_its_type(model):
        found, right = (way(model, inputs, ids).losses for way in (ways.loss, WholeHead()))
    assert found.device == torch.device(SECOND if over == "two cards" else FIRST)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(right.tolist(), rel=3e-2)


@pytest.mark.parametrize("packing", ["auto", "off"])
def test_what_goes_along_with_a_step_is_where_its_losses_are(model, settings, packing):
    """Noise on what is read, losses of data sets apart, an evaluation, an answer."""
    ways = tried(model, asked(packing=packing, train_head=settings.lora.train_head))
    with in_its_type(model):
        sums = eval_loop.Pass(model, ways, eval_loop.AtOnce(), lambda: False).sums(TWO_TEXTS, [0, 1], 2)
    assert sums.tokens.tolist() == [8, 6]
    batch = batched(TWO_TEXTS, in_one_row=ways.packed)
    there = {name: value.to(FIRST) for name, value in batch.items() if isinstance(value, torch.Tensor)}
    owners, labels = there.pop(OWNERS), there.pop("labels")
    with in_its_type(model), noisy(model.get_input_embeddings(), 1e-3, owners, there):
        rows = ways.loss(model, there, labels)
    by_source = LossesApart(SimpleNamespace(several=True, names=["one", "two"], of=lambda examples: [0, 1]))
    by_source.add(rows, owners, TWO_TEXTS)
    assert list(by_source.taken().values()) == pytest.approx(sums.losses / sums.tokens, rel=3e-2)
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=1)
    question = Question("", max_tokens=3, temperature=0.7)
    found = generated(model, torch.arange(3)[None], question, tokenizer, Job("answer", "a test"))
    assert found.shape[1] > 3


def test_the_loss_of_a_step_is_where_the_trainer_adds_it_up(place, monkeypatch):
    """HF refuses one of another device: 'Calculated loss must be on the original device'."""
    compute, found = trainer.RunTrainer.compute_loss, []

    def on_a_card(model, inputs, labels):
        losses = OnCard(torch.ones(4), torch.device(SECOND))
        return Rows(losses, torch.zeros(4), torch.zeros(4, 2, dtype=torch.long))

    def computed(self, *args, **more):
        self._ways = replace(self._ways, loss=on_a_card)
        with cards(monkeypatch):
            found.append(compute(self, *args, **more))
        raise ValueError("enough")

    monkeypatch.setattr(trainer.RunTrainer, "compute_loss", computed)
    with pytest.raises(ValueError, match="enough"):
        place.train(max_steps=1)
    assert [one.device.type for one in found] == ["cpu"]


def test_of_two_cards_one_trains_with_batches_as_large_as_asked_for(place, monkeypatch):
    """The Trainer multiplies its batches by the number of cards that it finds."""
    place.train(name="one", batch_size=2)

    class OfTwoCards(trainer.TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            self._n_gpu = 2

    monkeypatch.setattr(trainer, "TrainingArguments", OfTwoCards)
    place.train(name="two", batch_size=2)
    one, two = ([{**entry, "seconds": 0} for entry in graph(place, name)] for name in ("one", "two"))
    assert one == two
