"""A LoRA exported as GGUF and read back: llama.cpp's names, its order of rows, PEFT's strength."""

from __future__ import annotations

from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from training_pro.commands.main import main
from training_pro.core.engine import GgufRequest
from training_pro.core.errors import SavingError
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.engine.architectures import add_random_lora, make_model

USUAL = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
FUSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
ARCHITECTURES = {"mistral": "llama", "gpt_neox": "gptneox"}
ARCHITECTURES |= {name: name for name in ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2")}
HEADS, KEY_HEADS = 4, 2
STRENGTHS = [
    {"use_rslora": True, "rank_pattern": {"o_proj": 8}},
    {"alpha_pattern": {"0.mlp.down_proj": 0, "1.mlp.down_proj": 3, "v_proj": 5}, "rank_pattern": {"q_proj": 2}},
]


def save_random_lora(place, model, name="a", **options):
    """Save a random LoRA of the model, and the model's config without weights."""
    folder = place.folders.models / model.config.model_type
    model.config.save_pretrained(folder)
    peft_model = add_random_lora(model, lora_alpha=12, **options)
    peft_model.peft_config["default"].base_model_name_or_path = f"/elsewhere/{folder.name}"
    peft_model.save_pretrained(place.lora(name), save_embedding_layers=False)
    return peft_model


def convert(place, lora="a", **options):
    return PeftEngine().export_gguf(GgufRequest(str(lora), **options), place.host())


def read_deltas(file):
    """Deltas as llama.cpp computes them: alpha of the file by the rank of each tensor."""
    reader = gguf.GGUFReader(file)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    alpha = float(reader.get_field("adapter.lora.alpha").contents())
    names = {name.rpartition(".")[0] for name in tensors}
    assert {f"{name}.{half}" for name in names for half in ("lora_a", "lora_b")} == tensors.keys()
    halves = {name: (tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]) for name in names}
    return reader, {name: alpha / len(down) * up @ down for name, (down, up) in halves.items()}


def field(reader, key):
    return reader.get_field(key).contents()


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


CASES = [*((kind, {}) for kind in ARCHITECTURES), *(("llama", options) for options in STRENGTHS)]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_each_layer_has_its_name_row_order_and_strength(place, kind, options):
    model = save_random_lora(place, make_model(kind), **options)
    reader, exported = read_deltas(convert(place))
    architecture = field(reader, "general.architecture")
    assert architecture == ARCHITECTURES[kind]
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, 2)
    expected = {f"{names.get_name(layer)}.weight": (layer, delta) for layer, delta in deltas(model)}
    layers = FUSED if kind in ("phi3", "gpt2", "gpt_neox") else USUAL
    assert {f"blk.{n}.{layer}.weight" for n in (0, 1) for layer in layers} == exported.keys() == expected.keys()
    for name, (layer, delta) in expected.items():
        assert np.allclose(exported[name], expected_rows(architecture, layer, delta), atol=1e-6, rtol=1e-5), name
    assert max(float(np.abs(delta).max()) for _, delta in expected.values()) > 0.01


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({"multi_query": True}, range(8)),  # queries, one key and one value, as in llama.cpp
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, (0, 1, 4, 5, 2, 6, 3, 7)),
    ],
)
def test_the_rows_of_falcon(place, options, order):
    """With two keys, each has two queries and a value."""
    model = save_random_lora(place, make_model("falcon", **options))
    expected = dict(deltas(model))["transformer.h.1.self_attention.query_key_value"]
    parts = np.split(expected, 8)
    _, exported = read_deltas(convert(place))
    assert np.allclose(exported["blk.1.attn_qkv.weight"], np.concatenate([parts[n] for n in order]), atol=1e-6)


def test_the_metadata_of_the_file(place):
    save_random_lora(place, make_model("llama"), use_rslora=True)
    reader, _ = read_deltas(convert(place))
    metadata = {key: field.contents() for key, field in reader.fields.items() if "." in key and "GGUF" not in key}
    base = {"general.base_model.count": 1, "general.base_model.0.name": "llama", "general.name": "a"}
    kind = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    heads = {"llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KEY_HEADS}
    alpha = {"adapter.lora.alpha": 24.0}  # 24 / 4 in llama.cpp equals 12 / sqrt(4)
    assert metadata == {**base, **kind, **alpha, **heads}


@pytest.mark.parametrize(("architecture", "heads"), [("llama", KEY_HEADS), ("olmo", HEADS)])
def test_a_file_exported_for_another_model_is_exported_again_for_the_one_in_llama_cpp(place, architecture, heads):
    save_random_lora(place, make_model("llama"))
    models, used = [], []
    for name, count in ((architecture, heads), ("llama", HEADS)):
        models.append(place.folders.models / f"{len(models)}.gguf")
        writer = gguf.GGUFWriter(models[-1], name)
        writer.add_block_count(2)
        writer.add_head_count(count)
        writer.add_head_count_kv(count // 2)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    host = place.host()
    for model in models:
        attach = lambda name, file, strength: used.append(file.read_bytes())  # noqa: E731
        host.llama_cpp = lambda: SimpleNamespace(file=model, attach=attach)  # noqa: B023
        place.attach_lora(host, "a")
    assert used[0] != used[1] == convert(place, model=str(models[1])).read_bytes()


def refusal(error_type, place, **options):
    with pytest.raises(error_type) as error:
        convert(place, **options)
    assert list(place.folders.user_data.rglob("a.gguf*")) == []
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("llama", {"use_dora": True}, "it was trained with DoRA, which llama.cpp does not support"),
        ("llama", {"modules_to_save": ["lm_head"]}, "it contains weights besides those of the LoRA, for exam"),
        ("llama", {"target_modules": ["lm_head"]}, "in llama.cpp, llama has no separate tensor for lm_head. "),
        (
            "mixtral",
            {"target_parameters": ["mlp.experts.gate_up_proj"]},
            "it changes experts, which llama.cpp",
        ),
    ],
)
def test_more_than_a_plain_lora_is_refused(place, kind, options, reason):
    model = make_model(kind, tied=options.get("target_modules") == ["lm_head"])
    model.config.save_pretrained(place.folders.models / "model")
    config = LoraConfig(task_type="CAUSAL_LM", r=4, **{"target_modules": ["q_proj"], **options})
    get_peft_model(model, config).save_pretrained(place.lora())
    message = refusal(SavingError, place, model="model")
    assert message.startswith("The LoRA 'a' can't be exported as GGUF: ") and reason in message
    assert "Merge the LoRA into the model instead" in message


def test_only_our_own_file_is_overwritten_and_the_command_names_it(with_lora, capsys):
    """A LoRA of a run is exported without the model's weights; its old file is overwritten."""
    arguments, file = ["--user-data", str(with_lora.folders.user_data), "--lora"], with_lora.lora() / "a.gguf"
    file.write_bytes(b"of the LoRA as it was before")
    assert main(["gguf", *arguments, "a"]) == 0
    output = capsys.readouterr()
    assert output.out == f"{file}\n" and f"--lora {file}" in output.err
    assert main(["gguf", *arguments, "a/checkpoint-4-epoch-1"]) == 0
    of_checkpoint = with_lora.lora() / "a-checkpoint-4-epoch-1.gguf"
    assert capsys.readouterr().out == f"{of_checkpoint}\n"
    reader, exported = read_deltas(of_checkpoint)
    assert field(reader, "general.name") == "a-checkpoint-4-epoch-1" and len(exported) == 14
    before = file.read_bytes()
    for more, message in ((["a", "--out", str(file)], "already exists"), (["b"], "There is no LoRA 'b'")):
        assert main(["gguf", *arguments, *more]) == 1
        assert message in capsys.readouterr().err
    assert file.read_bytes() == before
