"""The tiny model: a normal transformers folder, the same bytes each time, and no trace elsewhere."""

from __future__ import annotations

import pytest
import torch
from training_pro.hosts.tiny import BOS, EOS, PAD, TRAINING_TEXT, make_tiny
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return AutoTokenizer.from_pretrained(tiny)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_text_gives_the_same_bytes_and_the_callers_random_numbers_go_on(tiny, tmp_path):
    torch.manual_seed(1)
    undisturbed = torch.rand(3)
    torch.manual_seed(1)
    again = make_tiny(tmp_path / "again")
    assert torch.equal(torch.rand(3), undisturbed)
    assert contents(again) == contents(tiny)
    (again / "config.json").write_text("{}")
    assert make_tiny(again) == again and (again / "config.json").read_text() == "{}", "one that is there stays"
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_it_loads_as_any_model_does_and_ends_and_pads_with_tokens_of_its_own(tiny, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(tiny)
    assert (model.config.model_type, model.dtype) == ("llama", torch.float32)
    assert model.config.vocab_size == len(tokenizer) == 512
    assert sum(len(data) for data in contents(tiny).values()) < 1_000_000
    assert torch.isfinite(model(**tokenizer(TRAINING_TEXT[:200], return_tensors="pt")).logits).all()
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (BOS, EOS, PAD)
    own = model.generation_config
    theirs = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert (own.bos_token_id, own.eos_token_id, own.pad_token_id) == theirs
