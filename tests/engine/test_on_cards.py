"""A model on one GPU, or spread over two as by accelerate: every tensor is on the device it has to be on.

Runs on fake GPUs (tests/engine/cards.py), and so without training.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from training_pro.core.engine import AnswerRequest
from training_pro.core.jobs import Job
from training_pro.data.examples import Example
from training_pro.engine.compute import StepSums, add_neftune_noise, collate, probe_model, use_packed_attention
from training_pro.engine.compute.layer_patches import patch_base_layers, patch_lora_layers
from training_pro.engine.compute.loss import ChunkedLoss, FullLogitsLoss, TokenLosses
from training_pro.engine.inference import eval_loop
from training_pro.engine.inference.generation import generate_ids
from training_pro.engine.lora import autocast_model, inject_lora, lora_config
from training_pro.engine.lora.targets import resolve_targets
from training_pro.engine.training import trainer
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import read_graph
from training_pro.tests.engine.cards import FakeGpuTensor, fake_gpus, move_to_fake_gpus
from transformers import LlamaConfig, LlamaForCausalLM

FIRST, SECOND = "cuda:0", "cuda:1"
VOCABULARY = 96
ALL_BUT_FIRST = np.concatenate([[False], np.ones(8, bool)])
TWO_TEXTS = [Example(np.arange(9), ALL_BUT_FIRST, None, 0), Example(np.arange(50, 57), ALL_BUT_FIRST[:7], None, 1)]
HOOKED_MODULES = {f"model.{part}" for part in ("embed_tokens", "rotary_emb", "layers.0", "layers.1", "norm")} | {
    "lm_head"
}
CASES = [
    ("float32", "one card", False),
    ("bfloat16", "one card", True),
    ("float16", "one card", False),
    ("float32", "two cards, tied", True),
    ("float16", "two cards, tied", False),
    ("float32", "two cards", False),
    ("bfloat16", "two cards", True),
]
"""Dtype, placement, and whether the head is trained too."""


def make_llama(dtype, *, tied):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


def spread_over(model, placement):
    """Move the model to the first GPU, or from its second layer on to another, with accelerate's hooks."""
    last_modules = ("model.layers.1", "model.norm", *([] if placement.endswith("tied") else ["lm_head"]))

    def where(name):
        module_name = name.removeprefix("base_model.model.")
        return SECOND if placement != "one card" and module_name.startswith(last_modules) else FIRST

    move_to_fake_gpus(model, where)
    base = model.get_base_model()
    for name, module in base.named_modules() if placement != "one card" else ():
        if not name or name in HOOKED_MODULES:
            hook = AlignDevicesHook(torch.device(where(name)), io_same_device=not name)
            add_hook_to_module(module, hook)


def parse(**more):
    return training_settings({"name": "a", "data": ["story.txt"], "rank": 4, **more})


@pytest.fixture(params=CASES, ids=map(str, CASES))
def case(request):
    return request.param


@pytest.fixture
def over(case):
    return case[1]


@pytest.fixture
def settings(case):
    return parse(train_head=case[2])


@pytest.fixture
def model(case, monkeypatch, over, settings):
    base = make_llama(case[0], tied=over.endswith("tied"))
    with inject_lora(base, lora_config(settings.lora, base, resolve_targets("all-linear", base))) as with_lora:
        patch_lora_layers(with_lora)
        spread_over(with_lora, over)
        with fake_gpus(monkeypatch), patch_base_layers(base), use_packed_attention(base) as works:
            assert works
            yield with_lora


def test_the_loss_is_on_the_device_of_the_head_and_packing_works(model, settings, over):
    capabilities = probe_model(model, settings)
    assert isinstance(capabilities.loss, ChunkedLoss), capabilities.chunked_loss_refusal
    assert capabilities.packed, capabilities.packing_refusal
    ids = torch.arange(18, device=FIRST).reshape(2, 9)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with autocast_model(model):
        losses, expected = (loss(model, inputs, ids).losses for loss in (capabilities.loss, FullLogitsLoss()))
    assert losses.device == torch.device(SECOND if over == "two cards" else FIRST)
    assert losses.dtype == torch.float32
    assert losses.tolist() == pytest.approx(expected.tolist(), rel=3e-2)


@pytest.mark.parametrize("packing", ["auto", "off"])
def test_everything_else_in_a_step_is_on_the_device_of_its_losses(model, settings, packing):
    """NEFTune noise, losses by dataset, an evaluation, an answer."""
    capabilities = probe_model(model, parse(packing=packing, train_head=settings.lora.train_head))
    with autocast_model(model):
        sums = eval_loop.EvalLoop(model, capabilities, eval_loop.BatchLimit(), lambda: False).sums(
            TWO_TEXTS, [0, 1], 2
        )
    assert sums.tokens.tolist() == [8, 6]
    batch = collate(TWO_TEXTS, in_one_row=capabilities.packed).to(FIRST)
    with autocast_model(model), add_neftune_noise(model.get_input_embeddings(), 1e-3, batch):
        rows = capabilities.loss(model, batch.inputs, batch.labels)
    step_sums = StepSums(SimpleNamespace(has_several=True, names=["one", "two"], of=lambda examples: [0, 1]))
    step_sums.add(batch, rows)
    tokens, by_source = step_sums.take()
    assert tokens == 16
    assert list(by_source.values()) == pytest.approx(sums.losses / sums.tokens, rel=3e-2)
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=1)
    question = AnswerRequest("", max_tokens=3, temperature=0.7)
    ids = generate_ids(model, torch.arange(3)[None], question, tokenizer, Job("answer", "a test"))
    assert ids.shape[1] > 3


def test_the_loss_of_a_step_is_on_the_device_where_the_trainer_sums_it(place, monkeypatch):
    """HF refuses a loss on another device: 'Calculated loss must be on the original device'."""
    compute, results = trainer.RunTrainer.compute_loss, []

    def on_a_card(model, inputs, labels):
        losses = FakeGpuTensor(torch.ones(4), torch.device(SECOND))
        return TokenLosses(losses, torch.zeros(4), torch.zeros(4, 2, dtype=torch.long))

    def compute_and_stop(self, *args, **more):
        self._capabilities = replace(self._capabilities, loss=on_a_card)
        with fake_gpus(monkeypatch):
            results.append(compute(self, *args, **more))
        raise ValueError("enough")

    monkeypatch.setattr(trainer.RunTrainer, "compute_loss", compute_and_stop)
    with pytest.raises(ValueError, match="enough"):
        place.train(max_steps=1)
    assert [result.device.type for result in results] == ["cpu"]


def test_with_two_gpus_the_batch_size_is_the_requested_one(place, monkeypatch):
    """The Trainer multiplies its batch size by the number of GPUs that it finds."""
    place.train(name="one", batch_size=2)

    class TwoGpuArguments(trainer._Arguments):
        def __post_init__(self):
            super().__post_init__()
            self._n_gpu = 2

    monkeypatch.setattr(trainer, "_Arguments", TwoGpuArguments)
    place.train(name="two", batch_size=2)
    first, second = ([{**entry, "seconds": 0} for entry in read_graph(place, name)] for name in ("one", "two"))
    assert first == second
