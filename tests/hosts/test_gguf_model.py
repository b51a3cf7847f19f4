"""A GGUF file as the model: unpacked, it trains like any other; what can't be is refused in a sentence."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from training_pro.commands.options import load_gguf
from training_pro.core.engine import GgufRequest, MergeRequest
from training_pro.core.errors import ModelError
from training_pro.core.jobs import Job
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.hosts.gguf_positions import complete_config
from training_pro.hosts.standalone import StandaloneHost
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

gguf = pytest.importorskip("gguf")
Q4 = gguf.GGMLQuantizationType.Q4_1


def write_gguf(tiny, file, *, architecture="llama", parts=1, scaling=None, divisors=None, pre=""):
    """Write the tiny model the way that llama.cpp converts it, with 4-bit weights; return those, dequantized."""
    config, tokens = json.loads((tiny / "config.json").read_text()), AutoTokenizer.from_pretrained(tiny)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(file), architecture)
    figures = {
        "block_count": config["num_hidden_layers"], "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"], "feed_forward_length": config["intermediate_size"],
        "head_count": heads, "head_count_kv": kv_heads, "layer_norm_rms_eps": config["rms_norm_eps"],
        "rope_freq_base": config["rope_parameters"]["rope_theta"], "vocab_size": config["vocab_size"],
        "bos_token_id": tokens.bos_token_id, "eos_token_id": tokens.eos_token_id,
        "pad_token_id": tokens.pad_token_id, "name": "Tiny",
    }  # fmt: skip
    for name, value in figures.items():
        getattr(writer, f"add_{name}")(value)
    for key, value in (scaling or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(
            f"{architecture}.rope.scaling.{key}", value
        )
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(divisors, np.float32))
    bpe = json.loads(tokens.backend_tokenizer.to_str())
    words = sorted(tokens.get_vocab(), key=tokens.get_vocab().get)
    writer.add_tokenizer_model("gpt2")
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_types([3 if word in tokens.all_special_tokens else 1 for word in words])
    writer.add_token_merges([" ".join(pair) for pair in bpe["model"]["merges"]])
    names, expected = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"]), {}
    weights = load_file(tiny / "model.safetensors")
    for number, (name, weight) in enumerate(weights.items()):
        rows = {"q_proj": heads, "k_proj": kv_heads}.get(name.split(".")[-2], 0)
        if rows:  # llama.cpp pairs the two halves of a head
            weight = weight.reshape(rows, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        packed = gguf.quants.quantize(np.ascontiguousarray(weight), Q4) if weight.ndim == 2 else weight
        full = gguf.quants.dequantize(packed, Q4) if weight.ndim == 2 else weight
        if rows:
            full = full.reshape(rows, -1, 2, full.shape[1]).swapaxes(1, 2).reshape(full.shape)
        expected[name] = torch.from_numpy(full.copy())
        if number < len(weights) / parts:
            own = names.get_name(name, try_suffixes=(".weight",))
            writer.add_tensor(own, packed, raw_dtype=Q4 if weight.ndim == 2 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def test_a_gguf_file_is_unpacked_and_trains_like_any_model(place, tiny):
    place.folders.models.mkdir(parents=True)
    expected = write_gguf(tiny, place.folders.models / "packed.gguf")
    host = StandaloneHost(place.folders, model="packed.gguf", loading="bfloat16")
    model, tokenizer = host.loaded_model().model, AutoTokenizer.from_pretrained(tiny)
    state = model.state_dict()
    assert all(torch.equal(state[name], weight.to(model.dtype)) for name, weight in expected.items())
    own = host.card().tokenizer
    assert [own.bos_token, own.eos_token] == [tokenizer.bos_token, tokenizer.eos_token]
    end = place.train(host)
    assert end.outcome == "finished", end.text
    assert PeftEngine().export_gguf(GgufRequest("a"), host).is_file()  # the LoRA names the file as its base
    out = place.folders.models / "merged"
    assert PeftEngine().merge(MergeRequest("a", str(out)), host, Job("model", "a test")).outcome == "finished"
    merged = AutoModelForCausalLM.from_pretrained(out, dtype=model.dtype)
    place.attach_lora(host, "a")
    ids = torch.arange(4, 24)[None]
    with torch.no_grad():
        assert torch.allclose(host.loaded_model().model(ids).logits, merged(ids).logits, atol=0.05)


@pytest.mark.parametrize(("pre", "adds_bos"), [("llama-bpe", True), ("qwen2", False)])
def test_bos_is_added_where_llama_cpp_adds_it_without_a_word_in_the_header(place, tiny, pre, adds_bos):
    place.folders.models.mkdir(parents=True)
    write_gguf(tiny, place.folders.models / "file.gguf", pre=pre)
    tokenizer = StandaloneHost(place.folders, model="file.gguf").card().tokenizer
    assert (make_working_tokenizer(tokenizer).bos == tokenizer.bos_token_id) == adds_bos


def llama3_divisors(tiny, factor):
    """What llama.cpp's converter writes for Llama 3.1 and later (`conversion/llama.py`)."""
    config = json.loads((tiny / "config.json").read_text())
    half, theta = config["head_dim"] // 2, config["rope_parameters"]["rope_theta"]
    lengths = [2 * math.pi * theta ** (number / half) for number in range(half)]
    smooth = [min(1.0, max(0.0, (8192 / length - 1) / 3)) for length in lengths]
    return [1 / ((1 - share) / factor + share) for share in smooth]


@pytest.mark.parametrize("loading", ["auto", "float32"])
@pytest.mark.parametrize("kind", ["llama3", "linear"])
def test_positions_are_scaled_as_in_llama_cpp(place, tiny, kind, loading):
    place.folders.models.mkdir(parents=True)
    divisors = llama3_divisors(tiny, 32.0) if kind == "llama3" else None
    scaling = {"type": "linear", "factor": 4.0} if kind == "linear" else None
    write_gguf(tiny, place.folders.models / "scaled.gguf", divisors=divisors, scaling=scaling)
    host = StandaloneHost(place.folders, model="scaled.gguf", loading=loading, load_gguf=load_gguf)
    model, plain = host.loaded_model().model, AutoModelForCausalLM.from_pretrained(tiny)
    expected = plain.model.rotary_emb.inv_freq / torch.tensor(divisors or 4.0)
    assert torch.allclose(model.model.rotary_emb.inv_freq, expected, rtol=1e-4)
    assert model.config.rope_parameters["rope_type"] == kind  # so that a merged model has it, too


@pytest.mark.parametrize("architecture", ["starcoder2", "stablelm"])
def test_the_base_of_the_positions_is_that_of_the_file(tmp_path, architecture):
    config, header = AutoConfig.for_model(architecture), {"general.architecture": architecture}
    complete_config(config, tmp_path, {**header, f"{architecture}.rope.freq_base": 1e6}, {})
    assert config.rope_parameters["rope_theta"] == 1e6


def test_positions_that_are_scaled_in_another_way_are_refused(place, tiny):
    place.folders.models.mkdir(parents=True)
    ways = {"yarn": {"scaling": {"type": "yarn", "factor": 4.0}}, "rope_freqs": {"divisors": [1.0, 5.0, 2.0, 9.0]}}
    for name, options in ways.items():
        write_gguf(tiny, place.folders.models / f"{name}.gguf", **options)
        with pytest.raises(
            ModelError, match=rf"scales positions in a way .* \({name}\).*[Uu]se the original model"
        ):
            StandaloneHost(place.folders, model=f"{name}.gguf").card()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("half a header", "can't be read as a model: its header is damaged or incomplete. Download it"),
        ("no rows", "Download it again, or use the original model, Tiny (a folder with .safetensors files)."),
        ("new kind", "architecture newfangled is not supported yet. Use the original model, Tiny"),
        ("half read", "in GGUF files of the architecture gemma4 is read. Use the original model, Tiny (a folder"),
        ("first part", "of its weights are missing, such as model.layers.1."),
    ],
)
def test_a_gguf_file_that_cannot_be_unpacked_is_refused_in_a_sentence(place, tiny, harm, words):
    place.folders.models.mkdir(parents=True)
    file = place.folders.models / "packed.gguf"
    kinds = {"new kind": {"architecture": "newfangled"}, "half read": {"architecture": "gemma4"}}
    options = {**kinds, "first part": {"parts": 2}}
    write_gguf(tiny, file, **options.get(harm, {}))
    for loading in ("float16", "8bit", "4bit"):
        with pytest.raises(ModelError, match=f"loaded as {loading}, .* auto, float32 or bfloat16"):
            StandaloneHost(place.folders, model="packed.gguf", loading=loading).card()
    data = file.read_bytes()
    cuts = {"half a header": 5000, "no rows": len(data) - 100}
    file.write_bytes(data[: cuts.get(harm)])
    with pytest.raises(ModelError) as refusal:
        StandaloneHost(place.folders, model="packed.gguf").loaded_model()
    assert words in str(refusal.value) and "\n" not in str(refusal.value)
