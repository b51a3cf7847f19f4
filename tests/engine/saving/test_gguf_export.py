"""A LoRA as a GGUF file, read back: under llama.cpp's names, in its order of rows, as strong as PEFT has it."""

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
from training_pro.core.engine import GgufLora
from training_pro.core.errors import ModelError, SavingError
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.saving import gguf_export
from training_pro.tests.engine.architectures import made, with_lora
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
WAYS = [
    {"lora_alpha": 12},
    {"lora_alpha": 12, "use_rslora": True, "rank_pattern": {"o_proj": 8}},
    {
        "lora_alpha": 12,
        "alpha_pattern": {"0.mlp.down_proj": 0, "1.mlp.down_proj": 3, "v_proj": 5},
        "rank_pattern": {"q_proj": 2},
    },
]


def kept(place, model, name="a", **more):
    """The LoRA of a model on disk, and of the model its config alone."""
    folder = place.folders.models / model.config.model_type
    model.config.save_pretrained(folder)
    one = with_lora(model, **more)
    one.peft_config["default"].base_model_name_or_path = f"/elsewhere/{folder.name}"
    one.save_pretrained(place.lora(name), save_embedding_layers=False)
    return one


def convert(place, lora="a", **more):
    return PeftEngine().gguf(GgufLora(str(lora), **more), place.host())


def read(file):
    """What llama.cpp adds to each tensor: by the file's alpha, and the rank of each."""
    reader = GGUFReader(file)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    alpha = float(reader.get_field("adapter.lora.alpha").contents())
    names = {name.rpartition(".")[0] for name in tensors}
    assert {f"{name}.{half}" for name in names for half in ("lora_a", "lora_b")} == tensors.keys()
    halves = {name: (tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]) for name in names}
    return reader, {name: alpha / len(down) * up @ down for name, (down, up) in halves.items()}


def deltas(model):
    """What PEFT adds to each layer, its rows being what the layer gives."""
    for name, layer in model.get_base_model().named_modules():
        if isinstance(layer, LoraLayer):
            delta = layer.get_delta_weight("default").detach().numpy()
            yield name, delta.T if type(layer.get_base_layer()).__name__ == "Conv1D" else delta


def wanted(architecture, layer, delta):
    """The same rows where llama.cpp has them, counted out one by one."""
    size, other = len(delta), np.empty_like(delta)
    if architecture == "llama" and layer.endswith(("q_proj", "k_proj")):
        head = size // (HEADS if layer.endswith("q_proj") else KEY_HEADS)
        for row in range(size):
            half, pair = divmod(row % head, head // 2)
            other[row - row % head + 2 * pair + half] = delta[row]
        return other
    if architecture == "gptneox" and layer.endswith("query_key_value"):
        head = size // HEADS // 3
        for row in range(size):
            which, place = divmod(row % (3 * head), head)
            other[which * size // 3 + row // (3 * head) * head + place] = delta[row]
        return other
    return delta


def fits(file, model, kind):
    """Every layer, with nothing left over."""
    reader, found = read(file)
    architecture = reader.get_field("general.architecture").contents()
    assert architecture == ARCHITECTURES[kind]
    known = gguf.get_tensor_name_map(
        next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), 2
    )
    ours = {f"{known.get_name(layer)}.weight": (layer, delta) for layer, delta in deltas(model)}
    assert found.keys() == ours.keys()
    for name, (layer, delta) in ours.items():
        assert np.allclose(found[name], wanted(architecture, layer, delta), atol=1e-6, rtol=1e-5), name
    assert max(float(np.abs(delta).max()) for _, delta in ours.values()) > 0.01
    return set(found)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_each_layer_under_its_name_in_its_order(place, kind):
    model = kept(place, made(kind), lora_alpha=12)
    found = fits(convert(place), model, kind)
    assert {f"{name}.weight" for name in NAMES.get(kind, LLAMA_LIKE).values()} <= found
    assert len(found) == 2 * len(NAMES.get(kind, LLAMA_LIKE))


@pytest.mark.parametrize("more", WAYS)
def test_as_strong_as_with_peft(place, more):
    model = kept(place, made("llama"), **more)
    fits(convert(place), model, "llama")


def test_layers_of_an_old_falcon_share_one_key(place):
    """Its rows are those that ask, then one key and one value: as llama.cpp has them."""
    model = kept(place, made("falcon", multi_query=True))
    _, found = read(convert(place))
    ours = dict(deltas(model))["transformer.h.1.self_attention.query_key_value"]
    assert np.allclose(found["blk.1.attn_qkv.weight"], ours, atol=1e-6)


def test_layers_of_a_newer_falcon_lie_by_their_keys(place):
    model = kept(place, made("falcon", new_decoder_architecture=True, num_kv_heads=2))
    _, found = read(convert(place))
    ours = dict(deltas(model))["transformer.h.1.self_attention.query_key_value"]
    head = len(ours) // 8  # two keys, each with two that ask, and with a value
    parts = [ours[number * head : (number + 1) * head] for number in (0, 1, 4, 5, 2, 6, 3, 7)]
    assert np.allclose(found["blk.1.attn_qkv.weight"], np.concatenate(parts), atol=1e-6)


def described(kind, **more):
    """A random model that the other tests do not have."""
    values = {**LLAMA_LIKE_SIZES, "vocab_size": 64, **more}
    return AutoModelForCausalLM.from_config(getattr(transformers, kind)(**values))


def test_values_of_linear_attention_lie_one_by_one(place):
    """Two keys with two values each: in transformers the values of a key side by side."""
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4}
    model = described(
        "Qwen3_5TextConfig", **linear, linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"]
    )
    model = kept(place, model)
    reader, found = read(convert(place))
    assert reader.get_field("general.architecture").contents() == "qwen35"
    ours = {name.removeprefix("model.layers.0.linear_attn."): delta for name, delta in deltas(model)}
    order = np.concatenate([np.arange(8) + 8 * value for value in (0, 2, 1, 3)])
    assert np.allclose(found["blk.0.attn_gate.weight"], ours["in_proj_z"][order], atol=1e-6)
    assert np.allclose(found["blk.0.ssm_alpha.weight"], ours["in_proj_a"][[0, 2, 1, 3]], atol=1e-6)
    assert np.allclose(found["blk.0.ssm_beta.weight"], ours["in_proj_b"][[0, 2, 1, 3]], atol=1e-6)
    assert np.allclose(found["blk.0.ssm_out.weight"], ours["out_proj"][:, order], atol=1e-6)
    behind = np.concatenate([np.arange(16), 16 + order])  # what asks and the keys stay
    assert np.allclose(found["blk.0.attn_qkv.weight"], ours["in_proj_qkv"][behind], atol=1e-6)
    assert np.allclose(found["blk.1.attn_q.weight"], ours["model.layers.1.self_attn.q_proj"], atol=1e-6)


def test_a_layer_on_which_llama_cpp_passes_a_lora_over(place):
    more = {
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64,
        "global_head_dim": 8,
        "head_dim": 8,
    }
    kept(place, described("Gemma4TextConfig", **more))
    said = refused(SavingError, place)
    assert "llama.cpp's gemma4 has no place for model.per_layer_model_projection. " in said


def test_what_stands_in_the_file(place):
    kept(place, made("llama"), lora_alpha=12, use_rslora=True)
    reader, _ = read(convert(place))
    said = {key: field.contents() for key, field in reader.fields.items() if "." in key and "GGUF" not in key}
    assert said == {
        "general.architecture": "llama",
        "general.type": "adapter",
        "general.name": "a",
        "general.base_model.count": 1,
        "general.base_model.0.name": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": 24.0,  # 12 / sqrt(4), which llama.cpp makes of 24 / 4
    }


def test_in_the_text_part_of_a_model_that_also_sees(place):
    kept(place, made("gemma3"))
    folder = place.folders.models / "gemma3_text"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))
    weights = load_file(place.lora() / "adapter_model.safetensors")
    sees = {name.replace("model.layers", "model.language_model.layers"): t for name, t in weights.items()}
    save_file(sees, place.lora() / "adapter_model.safetensors")
    reader, found = read(convert(place))
    assert reader.get_field("general.architecture").contents() == "gemma3"
    assert "blk.1.attn_q.weight" in found


def test_for_the_very_file_that_it_is_used_with(place, tmp_path):
    """Newer files of some models have another name for what is the same in transformers."""
    kept(place, made("llama"), lora_alpha=12)
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
    by_config = read(convert(place))[1]
    reader, by_file = read(convert(place, model=str(file), out=str(tmp_path / "b.gguf")))
    assert reader.get_field("general.architecture").contents() == "granite"
    assert reader.get_field("general.base_model.0.name").contents() == "Some Granite"
    assert by_file.keys() == by_config.keys()
    assert all(np.array_equal(by_file[name], by_config[name]) for name in by_file)


def refused(kind, place, **more):
    with pytest.raises(kind) as error:
        convert(place, **more)
    assert list(place.folders.user_data.rglob("*.gguf*")) == []
    return str(error.value)


def head_only(place, *, tied):
    """A LoRA on the head, and on nothing else."""
    model = made("llama", tied=tied)
    model.config.save_pretrained(place.folders.models / "llama")
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["lm_head"], init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(place.lora())  # which writes the model's own head beside it


def test_a_head_that_is_the_embeddings_is_no_tensor_there(place):
    head_only(place, tied=True)
    said = refused(SavingError, place, model="llama")
    assert said.startswith("The LoRA 'a' cannot be written as GGUF: llama.cpp's llama has no place for lm_head. ")
    assert said.endswith("the merged model with llama.cpp. Or train one on q-k-v-o alone.")
    head_only(place, tied=False)
    assert read(convert(place, model="llama"))[1].keys() == {"output.weight"}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"use_dora": True}, "it was trained with DoRA, which llama.cpp does not know"),
        (
            {"modules_to_save": ["lm_head"]},
            "it holds more than a LoRA on layers, as Train Head makes it (lm",
        ),
        ({"lora_bias": True}, "it has biases, for which the format has no place"),
    ],
)
def test_what_is_more_than_a_lora(place, more, reason):
    kept(place, made("llama", tied=False), **more)
    said = refused(SavingError, place)
    assert said.startswith(f"The LoRA 'a' cannot be written as GGUF: {reason}")
    assert "Bake it in instead (merge)" in said


def test_experts_of_their_own(place):
    model = made("mixtral")
    model.config.save_pretrained(place.folders.models / "mixtral")
    targets = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj"]}
    get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, **targets)).save_pretrained(place.lora())
    said = refused(SavingError, place, model="mixtral")
    assert "it sits on experts, which llama.cpp keeps in one tensor (" in said
    assert said.endswith("Or train one on q-k-v-o alone.")
    attention = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(made("mixtral"), attention).save_pretrained(place.lora("b"))
    assert read(convert(place, "b", model="mixtral"))[1].keys() == {"blk.0.attn_q.weight", "blk.1.attn_q.weight"}


def test_models_that_are_not_known(place):
    kept(place, made("opt"))
    said = refused(ModelError, place)
    assert said.startswith("opt is of the architecture 'opt', for which no LoRA can be written as GGUF here.")
    shutil.rmtree(place.folders.models / "opt")
    said = refused(ModelError, place)
    assert said.startswith("'/elsewhere/opt', the model that it was made on, is not found")
    assert "Name it (--model)" in said
    assert refused(ModelError, place, model="b").startswith("There is no model 'b': neither in ")
    broken = place.folders.models / "broken.gguf"
    broken.parent.mkdir(exist_ok=True)
    broken.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"broken\.gguf cannot be read as a GGUF file"):
        convert(place, model="broken.gguf")


def test_without_a_package_that_knows_it(place, monkeypatch):
    kept(place, made("llama"))
    older = {number: name for number, name in gguf.MODEL_ARCH_NAMES.items() if name != "llama"}
    monkeypatch.setattr(gguf, "MODEL_ARCH_NAMES", older)
    assert refused(ModelError, place).startswith("The package gguf here is too old for llama (llama). Get a newer")
    monkeypatch.setattr(gguf_export, "find_spec", lambda name: None)
    assert refused(ModelError, place).endswith("Install it with: pip install gguf")


def test_a_model_of_other_sizes(place):
    kept(place, made("llama"))
    config = place.folders.models / "llama" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_key_value_heads": 3}))
    said = refused(SavingError, place)
    assert said.startswith("The LoRA does not fit on llama: model.layers.0.self_attn.k_proj has 16 rows, which")


def test_half_a_lora(place):
    kept(place, made("llama"))
    file = place.lora() / "adapter_model.safetensors"
    weights = load_file(file)
    weights.pop(next(iter(weights)))
    save_file(weights, file)
    assert "holds no whole LoRA" in refused(SavingError, place)
    file.write_bytes(b"no weights")
    assert refused(SavingError, place).startswith(f"{file} cannot be read: ")
    (place.lora() / "adapter_config.json").unlink()
    assert "holds no LoRA (adapter_config.json is missing" in refused(SavingError, place, model="llama")


def test_only_our_own_is_written_over_and_nothing_half(place, tmp_path, monkeypatch):
    """A LoRA that was trained further leaves an old one behind."""
    kept(place, made("llama"))
    first = convert(place)
    before = first.read_bytes()
    assert first == place.lora() / "a.gguf"
    first.write_bytes(b"of the LoRA as it was before")
    assert convert(place).read_bytes() == before
    with pytest.raises(SavingError, match=r"is there already\. Delete it, or give another name"):
        convert(place, out=str(first))
    assert first.read_bytes() == before

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fail)
    with pytest.raises(SavingError, match=r"b\.gguf cannot be written: the disk is full"):
        convert(place, out=str(tmp_path / "b.gguf"))
    assert list(tmp_path.glob("b.gguf*")) == []


def test_an_old_bin_in_half_precision(place):
    kept(place, made("llama"))
    first = read(convert(place))[1]
    (place.lora() / "a.gguf").unlink()
    file = place.lora() / "adapter_model.safetensors"
    torch.save({name: t.bfloat16() for name, t in load_file(file).items()}, place.lora() / "adapter_model.bin")
    file.unlink()
    then = read(convert(place))[1]
    assert all(np.allclose(then[name], first[name], atol=2e-2, rtol=2e-2) for name in first)


def test_the_command_names_the_file(with_lora, capsys):
    """Of a run of our own, without the model's weights."""
    where = ["--user-data", str(with_lora.folders.user_data)]
    assert main(["gguf", *where, "--lora", "a"]) == 0
    told = capsys.readouterr()
    assert told.out == f"{with_lora.lora() / 'a.gguf'}\n"
    assert f"--lora {with_lora.lora() / 'a.gguf'}" in told.err
    assert main(["gguf", *where, "--lora", "a/checkpoint-4-epoch-1"]) == 0
    assert capsys.readouterr().out == f"{with_lora.lora() / 'a-checkpoint-4-epoch-1.gguf'}\n"
    reader, found = read(with_lora.lora() / "a-checkpoint-4-epoch-1.gguf")
    assert reader.get_field("general.name").contents() == "a-checkpoint-4-epoch-1"
    assert len(found) == 14
    assert main(["gguf", *where, "--lora", "a", "--out", str(with_lora.lora() / "a.gguf")]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["gguf", *where, "--lora", "b"]) == 1
    assert "There is no LoRA 'b'" in capsys.readouterr().err
