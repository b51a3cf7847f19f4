"""What a GGUF file's head and a card say of the model that they belong to."""

import os
import struct
import sys

import pytest
from training_pro.core import gguf_header

REPOSITORY = "general.base_model.0.repo_url"


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return text(key) + struct.pack("<If", 6, value)


def written(path, pairs):
    head = b"GGUF" + struct.pack("<IQQ", 3, 7, len(pairs))
    path.write_bytes(head + b"".join(pair(*p) for p in pairs.items()) + b"\x00" * 64)
    return path


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"general.base_model.0.name": "A", REPOSITORY: "https://huggingface.co/Hub/A-135M/"}, "Hub/A-135M"),
        ({"general.base_model.0.name": "Llama 3 8B", "general.name": "my quant"}, "Llama 3 8B"),
        ({"general.architecture": "llama"}, ""),
    ],
)
def test_a_repository_goes_before_a_name(tmp_path, pairs, said):
    more = {"llama.rope.freq_base": 10000.0, "tokenizer.ggml.tokens": ["a", "bc", ""]}
    file = written(tmp_path / "m.gguf", more | pairs)
    assert gguf_header.find_base_model(file) == said
    read = gguf_header.read_header(file)
    assert (read["llama.rope.freq_base"], read["tokenizer.ggml.tokens"]) == (10000.0, None)


def test_another_file_says_nothing(tmp_path):
    for data in (b"GGUF\x03\x00\x00\x00", b"PK\x03\x04" + b"\x00" * 60):
        (tmp_path / "m.gguf").write_bytes(data)
        assert gguf_header.find_base_model(tmp_path / "m.gguf") == ""
    assert gguf_header.find_base_model(tmp_path / "not-there.gguf") == ""


START = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
ARRAY = struct.pack("<IQ", 9, 1)
HOSTILE = {
    "a string longer than any file": START + struct.pack("<Q", 2**63 - 1),
    "an array of more numbers than a file can hold": START + text("a") + struct.pack("<IIQ", 9, 12, 2**62),
    "arrays in arrays": START + text("a") + struct.pack("<I", 9) + ARRAY * 5000,
    "endless pairs": b"GGUF" + struct.pack("<IQQ", 3, 1, 2**63),
}


@pytest.mark.skipif(sys.platform == "win32", reason="files are not sparse there")
@pytest.mark.parametrize("head", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_refused(tmp_path, head, monkeypatch):
    """The files are sparse: behind their head stand 20 GB of zeros, which take no space."""
    monkeypatch.setattr(gguf_header, "MAX_VALUES", 40_000)
    file = tmp_path / "m.gguf"
    file.write_bytes(head)
    os.truncate(file, 20_000_000_000)
    assert gguf_header.find_base_model(file) == ""
    with pytest.raises(ValueError, match=r"damaged|unknown value type"):
        gguf_header.read_header(file)
        gguf_header.read_tensors(file)
