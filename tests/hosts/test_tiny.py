"""The tiny model: a normal transformers folder, the same bytes each time, and no trace elsewhere."""

from __future__ import annotations

import os

import pytest
import torch
from training_pro.core.errors import ModelError
from training_pro.hosts.tiny import BOS, EOS, PAD, TRAINING_TEXT, make_tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = "The cat sat on the mat. Il était une fois. 猫がマットに座った。\n" * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_text_gives_the_same_bytes(folder, tmp_path):
    torch.manual_seed(99)
    assert contents(make_tiny(tmp_path / "again", TRAINING_TEXT)) == contents(folder)
    assert contents(make_tiny(tmp_path / "other", TEXT))["tokenizer.json"] != contents(folder)["tokenizer.json"]


def test_it_loads_as_any_model_does_and_is_tiny(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.model_type == "llama"
    assert model.dtype == torch.float32
    assert model.config.vocab_size == len(tokenizer) == 512
    assert sum(len(data) for data in contents(folder).values()) < 1_000_000
    assert torch.isfinite(model(**tokenizer(TRAINING_TEXT[:200], return_tensors="pt")).logits).all()


def test_it_ends_and_pads_with_tokens_of_its_own(folder, tokenizer):
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (BOS, EOS, PAD)
    config = AutoModelForCausalLM.from_pretrained(folder).generation_config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )


@pytest.mark.parametrize("text", [TRAINING_TEXT, TEXT, "  two blanks, a tab\t, 😀, \n\n\n, العربية", ""])
def test_any_text_comes_back_as_it_was(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_a_bos_is_put_before_a_text_or_not_as_asked(tokenizer, tmp_path):
    assert tokenizer("hi")["input_ids"][0] == tokenizer.bos_token_id
    without = AutoTokenizer.from_pretrained(make_tiny(tmp_path / "without", adds_bos=False))
    assert without("hi")["input_ids"] == tokenizer("hi")["input_ids"][1:]


def test_it_talks_in_chatml(tokenizer):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    said = tokenizer.apply_chat_template(chat, tokenize=False)
    assert said == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    asked = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(said, add_special_tokens=False)["input_ids"]
    assert ids.count(tokenizer.eos_token_id) == 2


def test_the_callers_random_numbers_go_on_as_if_nothing_had_been(tmp_path):
    torch.manual_seed(1)
    undisturbed = torch.rand(3)
    torch.manual_seed(1)
    make_tiny(tmp_path / "tiny")
    assert torch.equal(torch.rand(3), undisturbed)


def test_one_that_is_there_stays_as_it_is(tmp_path):
    folder = make_tiny(tmp_path / "tiny")
    before = contents(folder)
    assert make_tiny(folder, TEXT) == folder
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_an_empty_folder_is_filled_and_another_is_left_alone(tmp_path):
    (tmp_path / "empty").mkdir()
    make_tiny(tmp_path / "empty")
    assert (tmp_path / "empty" / "model.safetensors").is_file()
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "today.txt").write_text("rain")
    with pytest.raises(ModelError, match="contains other files"):
        make_tiny(tmp_path / "diary")
    assert contents(tmp_path / "diary") == {"today.txt": b"rain"}


def test_what_a_virus_scanner_holds_of_the_rest_takes_nothing_from_the_model(tmp_path, monkeypatch):
    def held(path, **_):
        raise PermissionError(13, "The process cannot access the file", str(path))

    monkeypatch.setattr(os, "rmdir", held)
    folder = make_tiny(tmp_path / "tiny")
    assert (folder / "model.safetensors").is_file()
