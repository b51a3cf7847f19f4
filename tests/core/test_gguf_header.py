"""What a GGUF file's head says of the model that it was made from."""

from __future__ import annotations

import struct

import pytest
from training_pro.core.gguf_header import find_base_model, read_header

REPOSITORY = "general.base_model.0.repo_url"


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, bytes):
        return text(key) + struct.pack("<IIQ", 9, 4, len(value) // 4) + value
    return text(key) + struct.pack("<If", 6, value)


def written(path, pairs):
    head = b"GGUF" + struct.pack("<IQQ", 3, 7, len(pairs))
    path.write_bytes(head + b"".join(pair(*p) for p in pairs.items()) + b"\x00" * 64)
    return path


def test_a_repository_goes_before_a_name(tmp_path):
    pairs = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": ["a", "bc", ""],
        "tokenizer.ggml.token_type": struct.pack("<3I", 1, 2, 3),
        "llama.rope.freq_base": 10000.0,
        "general.base_model.0.name": "SmolLM2 135M Instruct",
        REPOSITORY: "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct/",
    }
    file = written(tmp_path / "m.gguf", pairs)
    assert find_base_model(file) == "HuggingFaceTB/SmolLM2-135M-Instruct"
    read = read_header(file)
    assert read["general.architecture"] == "llama"
    assert read["llama.rope.freq_base"] == 10000.0
    assert read["tokenizer.ggml.tokens"] is None


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"general.base_model.0.name": "Llama 3 8B", "general.name": "my quant"}, "Llama 3 8B"),
        ({"general.basename": "Llama-3", "general.name": "my quant"}, "Llama-3"),
        ({"general.name": "my quant"}, "my quant"),
        ({"general.architecture": "llama"}, ""),
    ],
)
def test_what_else_it_may_say(tmp_path, pairs, said):
    assert find_base_model(written(tmp_path / "m.gguf", pairs)) == said


@pytest.mark.parametrize("data", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00", b"PK\x03\x04" + b"\x00" * 60])
def test_another_file_says_nothing(tmp_path, data):
    (tmp_path / "m.gguf").write_bytes(data)
    assert find_base_model(tmp_path / "m.gguf") == ""
    assert find_base_model(tmp_path / "not-there.gguf") == ""
