"""A LoRA exported as GGUF and read back: llama.cpp's names, its order of rows, PEFT's strength."""

from __future__ import annotations

import json
import shutil

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGUFReader
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from training_pro.commands.main import main
from training_pro.core.engine import GgufRequest
from training_pro.core.errors import ModelError, SavingError
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.saving import gguf_export
from training_pro.tests.engine.architectures import add_random_lora, make_model
from transformers import AutoModelForCausalLM

LLAMA_LIKE = {
    "model.layers.1.self_attn.q_proj": "blk.1.attn_q",
    "model.layers.1.self_attn.k_proj": "blk.1.attn_k",
    "model.layers.1.self_attn.v_proj": "blk.1.attn_v",
    "model.layers.1.self_attn.o_proj": "blk.1.attn_output",
    "model.layers.1.mlp.gate_proj": "blk.1.ffn_gate",
    "model.layers.1.mlp.up_proj": "blk.1.ffn_up",
    "model.layers.1.mlp.down_proj": "blk.1.ffn_down",
}
NAMES = {
    "phi3": {
        "model.layers.1.self_attn.qkv_proj": "blk.1.attn_qkv",
        "model.layers.1.self_attn.o_proj": "blk.1.attn_output",
        "model.layers.1.mlp.gate_up_proj": "blk.1.ffn_up",
        "model.layers.1.mlp.down_proj": "blk.1.ffn_down",
    },
    "gpt2": {
        "transformer.h.1.attn.c_attn": "blk.1.attn_qkv",
        "transformer.h.1.attn.c_proj": "blk.1.attn_output",
        "transformer.h.1.mlp.c_fc": "blk.1.ffn_up",
        "transformer.h.1.mlp.c_proj": "blk.1.ffn_down",
    },
    "gpt_neox": {
        "gpt_neox.layers.1.attention.query_key_value": "blk.1.attn_qkv",
        "gpt_neox.layers.1.attention.dense": "blk.1.attn_output",
        "gpt_neox.layers.1.mlp.dense_h_to_4h": "blk.1.ffn_up",
        "gpt_neox.layers.1.mlp.dense_4h_to_h": "blk.1.ffn_down",
    },
}
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
}
HEADS, KEY_HEADS = 4, 2
LLAMA_LIKE_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "intermediate_size": 64,
}
OPTIONS = [
    {"lora_alpha": 12},
    {"lora_alpha": 12, "use_rslora": True, "rank_pattern": {"o_proj": 8}},
    {
        "lora_alpha": 12,
        "alpha_pattern": {"0.mlp.down_proj": 0, "1.mlp.down_proj": 3, "v_proj": 5},
        "rank_pattern": {"q_proj": 2},
    },
]


def save_random_lora(place, model, name="a", **options):
    """Save a random LoRA of the model, and the model's config without weights."""
    folder = place.folders.models / model.config.model_type
    model.config.save_pretrained(folder)
    peft_model = add_random_lora(model, **options)
    peft_model.peft_config["default"].base_model_name_or_path = f"/elsewhere/{folder.name}"
    peft_model.save_pretrained(place.lora(name), save_embedding_layers=False)
    return peft_model


def convert(place, lora="a", **options):
    return PeftEngine().export_gguf(GgufRequest(str(lora), **options), place.host())


def read_deltas(file):
    """Deltas as llama.cpp computes them: alpha of the file by the rank of each tensor."""
    reader = GGUFReader(file)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    alpha = float(reader.get_field("adapter.lora.alpha").contents())
    names = {name.rpartition(".")[0] for name in tensors}
    assert {f"{name}.{half}" for name in names for half in ("lora_a", "lora_b")} == tensors.keys()
    halves = {name: (tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]) for name in names}
    return reader, {name: alpha / len(down) * up @ down for name, (down, up) in halves.items()}


def deltas(model):
    """PEFT's delta of each layer, with one row per output."""
    for name, layer in model.get_base_model().named_modules():
        if isinstance(layer, LoraLayer):
            delta = layer.get_delta_weight("default").detach().numpy()
            yield name, delta.T if type(layer.get_base_layer()).__name__ == "Conv1D" else delta


def expected_rows(architecture, layer, delta):
    """The rows in llama.cpp's order, moved one by one."""
    size, reordered = len(delta), np.empty_like(delta)
    if architecture == "llama" and layer.endswith(("q_proj", "k_proj")):
        head = size // (HEADS if layer.endswith("q_proj") else KEY_HEADS)
        for row in range(size):
            half, pair = divmod(row % head, head // 2)
            reordered[row - row % head + 2 * pair + half] = delta[row]
        return reordered
    if architecture == "gptneox" and layer.endswith("query_key_value"):
        head = size // HEADS // 3
        for row in range(size):
            part, offset = divmod(row % (3 * head), head)
            reordered[part * size // 3 + row // (3 * head) * head + offset] = delta[row]
        return reordered
    return delta


def assert_exported(file, model, kind):
    """Compare all layers of the file with the model; return the tensor names."""
    reader, exported = read_deltas(file)
    architecture = reader.get_field("general.architecture").contents()
    assert architecture == ARCHITECTURES[kind]
    name_map = gguf.get_tensor_name_map(
        next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), 2
    )
    expected = {f"{name_map.get_name(layer)}.weight": (layer, delta) for layer, delta in deltas(model)}
    assert exported.keys() == expected.keys()
    for name, (layer, delta) in expected.items():
        assert np.allclose(exported[name], expected_rows(architecture, layer, delta), atol=1e-6, rtol=1e-5), name
    assert max(float(np.abs(delta).max()) for _, delta in expected.values()) > 0.01
    return set(exported)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_each_layer_has_its_name_and_row_order(place, kind):
    model = save_random_lora(place, make_model(kind), lora_alpha=12)
    names = assert_exported(convert(place), model, kind)
    assert {f"{name}.weight" for name in NAMES.get(kind, LLAMA_LIKE).values()} <= names
    assert len(names) == 2 * len(NAMES.get(kind, LLAMA_LIKE))


@pytest.mark.parametrize("options", OPTIONS)
def test_the_strength_is_that_of_peft(place, options):
    model = save_random_lora(place, make_model("llama"), **options)
    assert_exported(convert(place), model, "llama")


def test_falcon_with_one_shared_key(place):
    """Its rows are the queries, one key and one value, as in llama.cpp."""
    model = save_random_lora(place, make_model("falcon", multi_query=True))
    _, exported = read_deltas(convert(place))
    expected = dict(deltas(model))["transformer.h.1.self_attention.query_key_value"]
    assert np.allclose(exported["blk.1.attn_qkv.weight"], expected, atol=1e-6)


def test_falcon_with_rows_grouped_by_key(place):
    model = save_random_lora(place, make_model("falcon", new_decoder_architecture=True, num_kv_heads=2))
    _, exported = read_deltas(convert(place))
    expected = dict(deltas(model))["transformer.h.1.self_attention.query_key_value"]
    head = len(expected) // 8  # two keys, each with two queries and a value
    parts = [expected[number * head : (number + 1) * head] for number in (0, 1, 4, 5, 2, 6, 3, 7)]
    assert np.allclose(exported["blk.1.attn_qkv.weight"], np.concatenate(parts), atol=1e-6)


def random_model(kind, **options):
    """A random model of a config that the other tests do not use."""
    values = {**LLAMA_LIKE_SIZES, "vocab_size": 64, **options}
    return AutoModelForCausalLM.from_config(getattr(transformers, kind)(**values))


def test_linear_attention_with_reordered_values(place):
    """Two keys with two values each; transformers keeps the values of a key next to each other."""
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4}
    model = random_model(
        "Qwen3_5TextConfig", **linear, linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"]
    )
    model = save_random_lora(place, model)
    reader, exported = read_deltas(convert(place))
    assert reader.get_field("general.architecture").contents() == "qwen35"
    expected = {name.removeprefix("model.layers.0.linear_attn."): delta for name, delta in deltas(model)}
    order = np.concatenate([np.arange(8) + 8 * value for value in (0, 2, 1, 3)])
    assert np.allclose(exported["blk.0.attn_gate.weight"], expected["in_proj_z"][order], atol=1e-6)
    assert np.allclose(exported["blk.0.ssm_alpha.weight"], expected["in_proj_a"][[0, 2, 1, 3]], atol=1e-6)
    assert np.allclose(exported["blk.0.ssm_beta.weight"], expected["in_proj_b"][[0, 2, 1, 3]], atol=1e-6)
    assert np.allclose(exported["blk.0.ssm_out.weight"], expected["out_proj"][:, order], atol=1e-6)
    fused_order = np.concatenate([np.arange(16), 16 + order])  # queries and keys stay in place
    assert np.allclose(exported["blk.0.attn_qkv.weight"], expected["in_proj_qkv"][fused_order], atol=1e-6)
    assert np.allclose(exported["blk.1.attn_q.weight"], expected["model.layers.1.self_attn.q_proj"], atol=1e-6)


def test_a_layer_whose_lora_llama_cpp_ignores_is_refused(place):
    sizes = {
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64,
        "global_head_dim": 8,
        "head_dim": 8,
    }
    save_random_lora(place, random_model("Gemma4TextConfig", **sizes))
    message = refusal(SavingError, place)
    assert "in llama.cpp, gemma4 has no separate tensor for model.per_layer_model_projection. " in message


def test_metadata_of_the_file(place):
    save_random_lora(place, make_model("llama"), lora_alpha=12, use_rslora=True)
    reader, _ = read_deltas(convert(place))
    metadata = {key: field.contents() for key, field in reader.fields.items() if "." in key and "GGUF" not in key}
    assert metadata == {
        "general.architecture": "llama",
        "general.type": "adapter",
        "general.name": "a",
        "general.base_model.count": 1,
        "general.base_model.0.name": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": 24.0,  # 24 / 4 in llama.cpp equals 12 / sqrt(4)
    }


def test_the_text_part_of_a_vision_model(place):
    save_random_lora(place, make_model("gemma3"))
    folder = place.folders.models / "gemma3_text"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))
    weights = load_file(place.lora() / "adapter_model.safetensors")
    renamed = {name.replace("model.layers", "model.language_model.layers"): t for name, t in weights.items()}
    save_file(renamed, place.lora() / "adapter_model.safetensors")
    reader, exported = read_deltas(convert(place))
    assert reader.get_field("general.architecture").contents() == "gemma3"
    assert "blk.1.attn_q.weight" in exported


def test_export_for_a_given_gguf_file(place, tmp_path):
    """Newer GGUF files of some models have another architecture name for the same model type."""
    save_random_lora(place, make_model("llama"), lora_alpha=12)
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "granite")
    writer.add_name("Some Granite")
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("output.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    by_config = read_deltas(convert(place))[1]
    reader, by_file = read_deltas(convert(place, model=str(file), out=str(tmp_path / "b.gguf")))
    assert reader.get_field("general.architecture").contents() == "granite"
    assert reader.get_field("general.base_model.0.name").contents() == "Some Granite"
    assert by_file.keys() == by_config.keys()
    assert all(np.array_equal(by_file[name], by_config[name]) for name in by_file)


def refusal(error_type, place, **options):
    with pytest.raises(error_type) as error:
        convert(place, **options)
    assert list(place.folders.user_data.rglob("*.gguf*")) == []
    return str(error.value)


def save_head_lora(place, *, tied):
    """Save a LoRA on the head alone."""
    model = make_model("llama", tied=tied)
    model.config.save_pretrained(place.folders.models / "llama")
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["lm_head"], init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(place.lora())  # this saves the base model's head too


def test_a_lora_on_a_tied_head_is_refused(place):
    save_head_lora(place, tied=True)
    message = refusal(SavingError, place, model="llama")
    assert message.startswith(
        "The LoRA 'a' can't be exported as GGUF: in llama.cpp, llama has no separate tensor for lm_head. "
    )
    assert message.endswith("the merged model with llama.cpp. Or train a LoRA on q-k-v-o only.")
    save_head_lora(place, tied=False)
    assert read_deltas(convert(place, model="llama"))[1].keys() == {"output.weight"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_dora": True}, "it was trained with DoRA, which llama.cpp does not support"),
        (
            {"modules_to_save": ["lm_head"]},
            "it contains weights besides those of the LoRA, for example from Train Head (lm",
        ),
        ({"lora_bias": True}, "it has biases, which the GGUF format does not support"),
    ],
)
def test_more_than_a_plain_lora_is_refused(place, options, reason):
    save_random_lora(place, make_model("llama", tied=False), **options)
    message = refusal(SavingError, place)
    assert message.startswith(f"The LoRA 'a' can't be exported as GGUF: {reason}")
    assert "Merge the LoRA into the model instead" in message


def test_a_lora_on_experts_is_refused(place):
    model = make_model("mixtral")
    model.config.save_pretrained(place.folders.models / "mixtral")
    targets = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj"]}
    get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, **targets)).save_pretrained(place.lora())
    message = refusal(SavingError, place, model="mixtral")
    assert "it changes experts, which llama.cpp stores in one tensor (" in message
    assert message.endswith("Or train a LoRA on q-k-v-o only.")
    attention = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(make_model("mixtral"), attention).save_pretrained(place.lora("b"))
    assert read_deltas(convert(place, "b", model="mixtral"))[1].keys() == {
        "blk.0.attn_q.weight",
        "blk.1.attn_q.weight",
    }


def test_unknown_models_are_refused(place):
    save_random_lora(place, make_model("opt"))
    message = refusal(ModelError, place)
    assert message.startswith("opt has the architecture 'opt', whose LoRAs can't be exported as GGUF.")
    shutil.rmtree(place.folders.models / "opt")
    message = refusal(ModelError, place)
    assert message.startswith("The LoRA's base model, '/elsewhere/opt', was not found")
    assert "Enter the model's folder or its GGUF file (--model)" in message
    assert refusal(ModelError, place, model="b").startswith("There is no model 'b' in ")
    broken = place.folders.models / "broken.gguf"
    broken.parent.mkdir(exist_ok=True)
    broken.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"broken\.gguf can't be read as a GGUF file"):
        convert(place, model="broken.gguf")


def test_a_missing_or_old_gguf_package(place, monkeypatch):
    save_random_lora(place, make_model("llama"))
    older = {number: name for number, name in gguf.MODEL_ARCH_NAMES.items() if name != "llama"}
    monkeypatch.setattr(gguf, "MODEL_ARCH_NAMES", older)
    assert refusal(ModelError, place).startswith(
        "The installed gguf package is too old for llama (llama). Update it"
    )
    monkeypatch.setattr(gguf_export, "find_spec", lambda name: None)
    assert refusal(ModelError, place).endswith("-m pip install gguf")


def test_a_model_with_other_sizes_is_refused(place):
    save_random_lora(place, make_model("llama"))
    config = place.folders.models / "llama" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_key_value_heads": 3}))
    message = refusal(SavingError, place)
    assert message.startswith("The LoRA does not fit llama: the 16 rows of model.layers.0.self_attn.k_proj do")


def test_an_incomplete_lora_is_refused(place):
    save_random_lora(place, make_model("llama"))
    file = place.lora() / "adapter_model.safetensors"
    weights = load_file(file)
    weights.pop(next(iter(weights)))
    save_file(weights, file)
    assert "is not a complete LoRA" in refusal(SavingError, place)
    file.write_bytes(b"no weights")
    assert refusal(SavingError, place).startswith(f"{file} can't be read: ")
    (place.lora() / "adapter_config.json").unlink()
    assert "has no LoRA (adapter_config.json is missing" in refusal(SavingError, place, model="llama")


def test_only_our_own_file_is_overwritten_and_none_is_left_incomplete(place, tmp_path, monkeypatch):
    """After training further, the old file of the LoRA is overwritten."""
    save_random_lora(place, make_model("llama"))
    first = convert(place)
    before = first.read_bytes()
    assert first == place.lora() / "a.gguf"
    first.write_bytes(b"of the LoRA as it was before")
    assert convert(place).read_bytes() == before
    with pytest.raises(SavingError, match=r"already exists\. Delete it, or choose another name"):
        convert(place, out=str(first))
    assert first.read_bytes() == before

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fail)
    with pytest.raises(SavingError, match=r"b\.gguf can't be written: the disk is full"):
        convert(place, out=str(tmp_path / "b.gguf"))
    assert list(tmp_path.glob("b.gguf*")) == []


def test_an_old_bin_file_in_half_precision(place):
    save_random_lora(place, make_model("llama"))
    before = read_deltas(convert(place))[1]
    (place.lora() / "a.gguf").unlink()
    file = place.lora() / "adapter_model.safetensors"
    torch.save({name: t.bfloat16() for name, t in load_file(file).items()}, place.lora() / "adapter_model.bin")
    file.unlink()
    after = read_deltas(convert(place))[1]
    assert all(np.allclose(after[name], before[name], atol=2e-2, rtol=2e-2) for name in before)


def test_the_command_names_the_file(with_lora, capsys):
    """Export a LoRA of a run, without the model's weights."""
    arguments = ["--user-data", str(with_lora.folders.user_data)]
    assert main(["gguf", *arguments, "--lora", "a"]) == 0
    output = capsys.readouterr()
    assert output.out == f"{with_lora.lora() / 'a.gguf'}\n"
    assert f"--lora {with_lora.lora() / 'a.gguf'}" in output.err
    assert main(["gguf", *arguments, "--lora", "a/checkpoint-4-epoch-1"]) == 0
    assert capsys.readouterr().out == f"{with_lora.lora() / 'a-checkpoint-4-epoch-1.gguf'}\n"
    reader, exported = read_deltas(with_lora.lora() / "a-checkpoint-4-epoch-1.gguf")
    assert reader.get_field("general.name").contents() == "a-checkpoint-4-epoch-1"
    assert len(exported) == 14
    assert main(["gguf", *arguments, "--lora", "a", "--out", str(with_lora.lora() / "a.gguf")]) == 1
    assert "already exists" in capsys.readouterr().err
    assert main(["gguf", *arguments, "--lora", "b"]) == 1
    assert "There is no LoRA 'b'" in capsys.readouterr().err
