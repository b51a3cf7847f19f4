"""A GGUF file as the model with its blocks kept: what it computes and trains is what the unpacked one does."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from training_pro.commands.options import load_gguf
from training_pro.core import gguf_header
from training_pro.core.engine import MergeRequest
from training_pro.core.errors import DataError, ModelError, SettingsError
from training_pro.core.jobs import Advice, Job, Note
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.tests.engine.watching import stopping_at, texts
from transformers import AutoConfig, AutoModelForCausalLM

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers.integrations.gguf.dequant", reason="this transformers unpacks with numpy only")
from transformers.integrations.gguf.dequant import GGML_BLOCK  # noqa: E402
from transformers.modeling_gguf_pytorch_utils import (  # noqa: E402
    GGUF_TO_TRANSFORMERS_MAPPING,
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

Kind = gguf.GGMLQuantizationType
HIDDEN, VOCABULARY = 256, 512
# Where the fp16 scales stand in a block of random bytes; elsewhere any byte is valid.
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2)}
KINDS = tuple(Kind(number).name for number in GGML_BLOCK)
# Architectures as files name them, with what they need beside VALUES.
ARCHITECTURES = {
    **{
        name: {}
        for name in ("llama", "qwen2", "qwen3", "stablelm", "starcoder2", "nemotron", "gemma2", "gemma3", "gpt2")
    },
    **{name: {"expert_count": 4, "expert_used_count": 2} for name in ("qwen2moe", "qwen3moe")},
    "phi3": {"vocab_size": 32064},  # its padding token has the number 32000 in any file
    "bloom": {"attention.head_count": 4},
    "minimax-m2": {"expert_count": 4, "expert_used_count": 2, "rope.dimension_count": 32},
    "falcon": {"attention.head_count_kv": 1},
    "mamba": {"ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.time_step_rank": 16, "ssm.inner_size": 2 * HIDDEN},
    "lfm2": {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3},
}
VALUES = {
    "context_length": 128, "block_count": 2, "embedding_length": HIDDEN, "feed_forward_length": 2 * HIDDEN,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 64,
    "rope.dimension_count": 64, "rope.freq_base": 10000.0, "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.layer_norm_epsilon": 1e-5, "attention.sliding_window": 64, "vocab_size": VOCABULARY,
}  # fmt: skip


def long_but(*short, of):
    """All of them as parameters; those that are not named run with the long tests only."""
    return [pytest.param(name, marks=() if name in short else pytest.mark.long) for name in of]


def random_blocks(kind, shape, draw):
    """Blocks of random bytes with scales that give weights of the usual size."""
    elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (math.prod(shape) // elements, block_bytes), dtype=np.uint8)
    if kind == Kind.IQ1_M:
        blocks[:, 49:56:2] &= 0x0F  # its scale is spread over four nibbles
        blocks[:, 55] |= 0x20
    for scale in (0.01, 0.0):  # once to see how large the weights become
        for start in () if kind == Kind.IQ1_M else SCALES.get(kind.name, (0,)):
            scale = scale or 0.01 * 0.03 / gguf.quants.dequantize(blocks, kind).std()
            blocks[:, start : start + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def write_random(file, architecture, kind="Q4_K", parts=1):
    """Write a small random model; names and shapes are those that transformers expects."""
    draw = np.random.default_rng(7)
    known = GGUF_TO_TRANSFORMERS_MAPPING["config"]
    aliases = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "minimax-m2": "minimax_m2"}
    keys = {**VALUES, **ARCHITECTURES[architecture]}
    written = {
        key: keys[key]
        for key in {*known[aliases.get(architecture, architecture)], *ARCHITECTURES[architecture]} & keys.keys()
    }

    def write(path, tensors, number=0):
        writer = gguf.GGUFWriter(str(path), architecture)
        writer.add_name("Random")
        for key, value in written.items() if number == 0 else ():
            add = (
                writer.add_array
                if isinstance(value, list)
                else writer.add_float32
                if isinstance(value, float)
                else writer.add_uint32
            )
            add(f"{architecture}.{key}", value)
        if number == 0:
            writer.add_token_list([str(token) for token in range(VOCABULARY)])
        for name, (values, raw) in tensors.items():
            writer.add_tensor(name, values, raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    # transformers reads from the tensors that there are whether the head is tied and norms and biases exist.
    tied = architecture in ("gpt2", "gemma2", "gemma3", "bloom", "falcon", "mamba", "lfm2")
    some = {
        name: (np.zeros(32, np.float32), None)
        for name in ("blk.0.ffn_norm.weight", *([] if tied else ["output.weight"]))
    }
    write(file, some)
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    state, tensors = model.state_dict(), {}
    for name, own in get_gguf_hf_weights_map(model, processor).items():
        shape = list(state[own].shape)
        if tied and name == "output.weight":
            continue
        if architecture == "gpt2" and own.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and len(shape) == 2:
            shape.reverse()
        if name.endswith("_exps"):  # a parameter of its own, which has no suffix in transformers
            shape[1] //= 1 if "down" in name else 2
            name += ".weight"
        shape = [side for side in shape if side != 1] or [1]
        if len(shape) > 1 and shape[-1] % gguf.GGML_QUANT_SIZES[Kind[kind]][0] == 0 and name.endswith(".weight"):
            tensors[name] = random_blocks(Kind[kind], shape, draw), Kind[kind]
        else:
            values = draw.normal(1 if "norm" in name else 0, 0.03, shape).astype(np.float32)
            tensors[name] = -abs(values) - 0.5 if name.endswith("ssm_a") else values, None
    if parts == 1:
        write(file, tensors)
        return file
    file.unlink()
    for number in range(parts):
        part = {name: tensors[name] for name in list(tensors)[number::parts]}
        write(file.with_name(f"{file.stem}-{number + 1:05}-of-{parts:05}.gguf"), part, number)
    return file.with_name(f"{file.stem}-00001-of-{parts:05}.gguf")


def load(place, tiny, file, loading="auto"):
    host = StandaloneHost(
        place.folders, model=str(file), loading=loading, tokenizer=str(tiny), load_gguf=load_gguf
    )
    return host, host.loaded_model().model


def loss_and_gradients(model, **options):
    """The loss of a batch with a random LoRA on all linear layers, and the gradients of its weights."""
    model.requires_grad_(False)
    targets = [
        name for name, layer in model.named_modules()
        if type(layer).__name__ in ("Linear", "FalconLinear", "Conv1D", "PackedLinear")
        and not name.endswith(("lm_head", "out_proj" if "Mamba" in type(model).__name__ else "lm_head", "gate"))
    ]  # fmt: skip
    torch.manual_seed(3)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=targets, init_lora_weights=False, **options))
    torch.manual_seed(4)
    for weight in (w for _, w in sorted(model.named_parameters()) if w.requires_grad):
        torch.nn.init.normal_(weight, std=0.05)
    ids = torch.randint(4, VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(5))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: w.grad for name, w in model.named_parameters() if w.grad is not None}


def check_same(place, tiny, file, **options):
    (_, packed), (_, plain) = load(place, tiny, file), load(place, tiny, file, "float32")
    kept = sum(w.numel() for w in packed.parameters() if w.dtype == torch.uint8)
    assert kept, "nothing is packed"
    loss, gradients = loss_and_gradients(packed, **options)
    expected, others = loss_and_gradients(plain, **options)
    assert loss == pytest.approx(expected, rel=1e-5) and gradients.keys() == others.keys() and len(others) >= 8
    for name, gradient in gradients.items():
        assert (gradient - others[name]).norm() <= 1e-5 * others[name].norm(), name


@pytest.mark.parametrize("architecture", long_but("llama", "gpt2", "gemma3", "qwen3moe", of=ARCHITECTURES))
def test_a_packed_model_of_each_architecture_computes_and_learns_like_the_unpacked_one(
    place, tiny, tmp_path, architecture
):
    check_same(place, tiny, write_random(tmp_path / "packed.gguf", architecture))


@pytest.mark.parametrize("kind", long_but("Q6_K", "IQ4_XS", of=KINDS))
def test_a_packed_model_of_each_type_computes_and_learns_like_the_unpacked_one(place, tiny, tmp_path, kind):
    check_same(place, tiny, write_random(tmp_path / "packed.gguf", "llama", kind))


def test_dora_on_packed_layers_is_exact(place, tiny, tmp_path):
    check_same(place, tiny, write_random(tmp_path / "packed.gguf", "llama"), use_dora=True)


@pytest.mark.parametrize("epochs", [1, pytest.param(5, marks=pytest.mark.long)])
def test_a_run_on_packed_layers_ends_like_one_on_the_unpacked_model(place, tiny, tmp_path, epochs):
    """Four or twenty steps with everything that a run does, in one go, in two parts, and on the unpacked model."""
    file = write_random(tmp_path / "packed.gguf", "llama")
    job = Job("training", "a test")
    more = {
        "epochs": epochs,
        "gradient_checkpointing": "on",
        "packing": "on",
        "sample_every": 4 * epochs,
        "sample_length": 16,
        "recall_passages": 2,
    }
    host, _ = load(place, tiny, file)
    assert host.model_status().precision == "GGUF Q4_K"
    assert place.train(host, job=job, name="a", **more).outcome == "finished"
    place.train(load(place, tiny, file, "float32")[0], name="plain", **more)
    place.train(load(place, tiny, file)[0], name="parts", job=stopping_at(3 * epochs), **more)
    place.train(load(place, tiny, file)[0], name="parts", resume="newest", **more)
    assert place.weights("parts") == place.weights("a")
    packed, plain = (load_file(place.lora(name) / "adapter_model.safetensors") for name in ("a", "plain"))
    assert packed.keys() == plain.keys()
    for name, weight in packed.items():
        assert (weight - plain[name]).norm() <= 1e-4 * plain[name].norm(), name
    log = json.loads((place.lora() / "training_log.json").read_text())
    assert (
        log["current_steps"] == 4 * epochs
        and log["packing"] == "on"
        and log["loss_from"] == "supervised rows only"
    )
    assert (log["base_gguf"], log["base_sha256"]) == (file.name, hashlib.sha256(file.read_bytes()).hexdigest())
    fields = gguf.GGUFReader(place.lora() / "a.gguf").fields
    assert fields["adapter.type"].contents() == "lora" and fields["general.architecture"].contents() == "llama"
    assert f"The LoRA for llama.cpp is in {place.lora() / 'a.gguf'}" in texts(job, Note)
    place.attach_lora(host, "a")
    assert place.answer(host)
    with pytest.raises(ModelError, match=r"GGUF Q4_K.* Load the model in bfloat16 \(--load bfloat16\)"):
        PeftEngine().merge(MergeRequest("a", str(tmp_path / "merged")), host, Job("model", "a test"))


def test_what_cannot_be_trained_on_packed_layers_or_saved_as_gguf_is_said(place, tiny, tmp_path):
    file = write_random(tmp_path / "packed.gguf", "llama")
    host, job = load(place, tiny, file)[0], Job("training", "a test")
    (told,) = (text for text in PeftEngine().check(place.settings(dora=True), host).advice if "DoRA" in text)
    assert "llama.cpp can't use such a LoRA" in told
    place.train(host, job=job, name="dora", dora=True, max_steps=1)
    (advice,) = (text for text in texts(job, Advice) if text.startswith("There is no dora.gguf."))
    assert "it was trained with DoRA, which llama.cpp does not support" in advice
    assert not (place.lora("dora") / "dora.gguf").exists()
    for changes in ({"train_head": True}, {"method": "full"}):
        with pytest.raises((SettingsError, DataError), match=r"[Ll]oad (it|the model) "):
            place.train(host, name="b", **changes)
        assert PeftEngine().check(place.settings(name="b", **changes), host).verdict == "not ready"


def test_a_file_in_parts_is_one_model(place, tiny):
    place.folders.models.mkdir(parents=True)
    whole = write_random(place.folders.models / "whole.gguf", "qwen2")
    first = write_random(place.folders.models / "many.gguf", "qwen2", parts=3)
    host, model = load(place, tiny, first.name)
    assert host.models() == [first.name, whole.name]
    assert host.size_on_disk(first.name) > whole.stat().st_size > first.stat().st_size
    ids = torch.arange(4, 24)[None]
    logits = load(place, tiny, whole.name)[1](ids).logits
    assert not model.config.tie_word_embeddings and torch.equal(model(ids).logits, logits)
    unpacked = load(place, tiny, first.name, "float32")[1]
    assert torch.allclose(unpacked(ids).logits, logits, atol=1e-4)
    first.with_name("many-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelError, match=r"many-00002-of-00003\.gguf is missing"):
        load(place, tiny, first.name)


def test_the_card_knows_the_size_of_packed_weights(place, tiny, tmp_path):
    file = write_random(tmp_path / "packed.gguf", "llama")
    host, model = load(place, tiny, file)
    sizes = {id(w): (w.numel(), w.dtype) for w in model.parameters()}.values()
    packed = host.card().packed
    assert packed.blocks == sum(count for count, dtype in sizes if dtype == torch.uint8)
    assert packed.plain == sum(count for count, dtype in sizes if dtype == torch.float32)
    assert packed.largest == 2 * HIDDEN * HIDDEN
    assert GGML_BLOCK.keys() == gguf_header.PACKED_TYPES
    plain = load(place, tiny, file, "float32")[0]
    needs = [PeftEngine().check(place.settings(), each).memory.weights for each in (host, plain)]
    assert needs[0] == packed.blocks + 4 * packed.plain < needs[1] / 5


def test_types_without_torch_code_are_unpacked_when_the_model_is_loaded(place, tiny, tmp_path):
    file = write_random(tmp_path / "packed.gguf", "llama", "Q5_1")
    host, model = load(place, tiny, file)
    assert host.card().packed is None and {w.dtype for w in model.parameters()} == {torch.float32}
