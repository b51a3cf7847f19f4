"""Void Trainer's manual, option by option: what there is here, or what the program says instead."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sqlite3
from importlib.metadata import version

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training import trainer
from training_pro.hosts.standalone import LOADING_OPTIONS, StandaloneHost
from training_pro.settings import other_names, presets
from training_pro.settings.parsing import training_settings
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.architectures import read_log, save_model

COMPUTE_TYPES = {"float32": torch.float32, "float16": torch.float16, "8bit": torch.int8, "4bit": torch.uint8}
NO_FOLDER = presets.GOALS_FILE.with_name("none")
SIZES = ("S", "M", "L", "XL")
OPTIMIZERS = {
    "AdamW": ("adamw_torch", [*(f"{size}_NS" for size in SIZES), "MS_1", "MS_2"]),
    "Adafactor": ("adafactor", [*(f"{size}_NS" for size in SIZES), "MS_1", "MS_2", "RS"]),
    "AdamW8bit": ("adamw_8bit", [f"{size}_NS" for size in SIZES]),
}
OPTIMIZER_CONFIGS = [(f"{kind}_{end}", ours) for kind, (ours, ends) in OPTIMIZERS.items() for end in ends]
LORA_CONFIGS = [
    (f"Lora_{bits}bit_{size}_{models}", f"lora-{bits}bit-{ours}")
    for bits in (8, 4)
    for models in ("Llama-OPT-GPTNeo", "GPTNeoX")
    for size, ours in zip(SIZES, ("xl", "l", "m", "s"), strict=True)
]


def refusal(**values):
    with pytest.raises(SettingsError) as refused:
        training_settings({"name": "a", "data": ["a.txt"], **values})
    return str(refused.value)


@pytest.mark.parametrize("compute_type", COMPUTE_TYPES)
def test_compute_type_is_the_dtype_in_which_a_model_is_trained(place, compute_type):
    assert compute_type in LOADING_OPTIONS
    assert "(--load)" in refusal(compute_type=compute_type)
    host = place.host(compute_type)
    weight = host.loaded_model().model.model.layers[0].self_attn.q_proj.weight
    assert weight.dtype == COMPUTE_TYPES[compute_type]
    assert place.train(host, max_steps=1).outcome == "finished"


def test_float32_costs_almost_double_the_memory_of_float16(place):
    four, two = (PeftEngine().check(place.settings(), place.host(kind)).memory for kind in ("float32", "float16"))
    assert four.weights == 2 * two.weights


@pytest.mark.parametrize("loading", ["auto", "8bit", "4bit"])
@pytest.mark.parametrize("model_type", ["gpt_neo", "gpt_neox", "llama", "opt", "mistral"])
def test_model_type_is_trained_also_with_a_lora_in_8_and_4_bits(place, model_type, loading):
    host = StandaloneHost(place.folders, model=str(save_model(place, model_type)), loading=loading)
    assert place.train(host, max_steps=1).outcome == "finished"


def test_tokenizer_name_and_model_name():
    assert "(--model)" in refusal(model_name="m") and "(--model)" in refusal(model_type="Llama")
    assert "(--tokenizer)" in refusal(tokenizer_name="t")


def test_tokenizer_name_is_the_tokenizer_that_you_want_to_use(place, tiny):
    folder = place.folders.models / "words"
    folder.mkdir(parents=True)
    for file in tiny.glob("tokenizer*"):
        shutil.copy(file, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|im_start|>"}))
    host = StandaloneHost(place.folders, model=str(tiny), tokenizer="words")
    assert host.card().tokenizer.eos_token == "<|im_start|>" != place.host().card().tokenizer.eos_token
    place.train(host, max_steps=1)
    assert read_log(place)["tokenizer"] == "words"


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_of_the_three_optimizers_trains(place, kind):
    ours, _ = OPTIMIZERS[kind]
    if "8bit" in ours and version("bitsandbytes") < "0.50":
        with pytest.raises(SettingsError, match=f"Optimizer: {ours} needs a GPU"):
            place.train(optimizer=ours, max_steps=2)
        return
    place.train(optimizer=ours, max_steps=2)
    weights = load_file(place.lora() / "adapter_model.safetensors")
    assert any(weights[name].any() for name in weights if "lora_B" in name), "a new LoRA has only zeros there"


@pytest.mark.parametrize("config", [config for config, _ in OPTIMIZER_CONFIGS + LORA_CONFIGS])
@pytest.mark.parametrize("key", ["optimizer_config", "lora_config", "optimizer"])
def test_every_config_leads_to_the_presets_for_it_and_not_to_a_single_setting(key, config):
    """'optimizer' alone would lose the rate and the decay, and 'rank' is a number."""
    presets_named = ", ".join(other_names.our_presets(config))
    said = refusal(**{key: config})
    assert f"{config!r} is a preset in Training PRO. Remove this setting, and use --preset" in said
    assert f"{presets_named}." in said and "is called" not in said
    assert "are presets" in refusal(**{"optimizer_config": "my.json"})


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("size", SIZES)
def test_a_predefined_optimizer_config_is_a_preset(kind, size):
    ours = f"{kind.lower()}-{size.lower()}"
    with pytest.raises(SettingsError, match=f"In Training PRO, it is called '{ours}'"):
        presets.find_preset(f"{kind}_{size}_NS", NO_FOLDER)
    assert presets.find_preset(ours, NO_FOLDER).values["optimizer"] == OPTIMIZERS[kind][0]


@pytest.mark.parametrize(
    "config", ["AdamW_MS_1", "AdamW_MS_2", "Adafactor_MS_1", "Adafactor_MS_2", "Adafactor_RS"]
)
def test_an_optimizer_config_without_a_size_names_all_of_ours(config):
    kind = config.split("_")[0].lower()
    with pytest.raises(SettingsError) as refused:
        presets.find_preset(config, NO_FOLDER)
    ours = ", ".join(f"{kind}-{size.lower()}" for size in SIZES)
    hint = f"Choose the preset for the size of your model: {ours}."
    assert str(refused.value) == f"Unknown preset {config!r}. {hint}"


@pytest.mark.parametrize("config", [config for config, _ in OPTIMIZER_CONFIGS + LORA_CONFIGS])
def test_coming_from_lists_every_config(config):
    rows = [line for line in other_names.render_markdown().splitlines() if line.startswith(f"| `{config}` |")]
    assert len(rows) == 1 and "-" in rows[0]


def test_a_custom_json_file_as_the_optimizer_or_lora_config(tmp_path):
    for table, values in (("optimizers", {"optimizer": "adafactor"}), ("loras", {"rank": 8})):
        (tmp_path / f"{table}.json").write_text(json.dumps({f"my-{table}": {"values": values}}))
        assert presets.find_preset(f"my-{table}", tmp_path).values == values
    statement = "A custom JSON file can be the optimizer or LoRA config."
    assert read_page(statement).startswith("Use it with `--preset PATH`")


@pytest.mark.parametrize(("config", "ours"), LORA_CONFIGS)
def test_every_lora_config_is_a_preset(config, ours):
    with pytest.raises(SettingsError, match=f"Unknown preset '{config}'. In Training PRO, it is called '{ours}'."):
        presets.find_preset(config, NO_FOLDER)
    assert presets.find_preset(ours, NO_FOLDER).values["optimizer"].endswith("adamw_8bit")  # as the manual says


@pytest.mark.parametrize("bits", [8, 4])
def test_larger_configs_for_smaller_models(bits):
    rows = [presets.find_preset(f"lora-{bits}bit-{size.lower()}", NO_FOLDER) for size in SIZES]
    ranks = [row.values["rank"] for row in rows]
    assert ranks == sorted(ranks, reverse=True) and len(set(ranks)) == 4
    assert all(f"rank {row.values['rank']}" in row.label for row in rows)
    assert [row.words.split(" (")[0] for row in rows] == [
        "For small models", "For medium models", "For large models", "For very large models",
    ]  # fmt: skip


def test_lora_config_none_is_method_full_which_trains_the_model_itself(place, tiny):
    statement = "Keep the LoRA config None unless the model is in 8 or 4 bits."
    assert "set Method to full" in read_page(statement)
    place.train(place.host("float32"), method="full", learning_rate=1e-3, max_steps=1)
    folder = place.folders.models / "a"
    before, after = load_file(tiny / "model.safetensors"), load_file(folder / "model.safetensors")
    assert not (folder / "adapter_model.safetensors").exists()
    assert any(not before[name].equal(after[name]) for name in before)


@pytest.mark.parametrize("ending", ["csv", "tsv", "db"])
def test_custom_dataset_csv_tsv_db(place, ending):
    name, rows = f"data.{ending}", [(f"What is {n}?", f"It is the number {n}.") for n in range(20)]
    if ending == "db":
        with sqlite3.connect(place.folders.datasets / name) as connection:
            connection.execute("create table chats (question text, answer text)")
            connection.executemany("insert into chats values (?, ?)", rows)
        connection.close()
    else:
        mark = "," if ending == "csv" else "\t"
        place.write(name, "\n".join(mark.join(row) for row in [("question", "answer"), *rows]))
    report = PeftEngine().check(place.settings(data=[name], cutoff="auto"), place.host())
    assert report.problems == () and report.as_json()["examples"] == 20


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("dataset_path", "data"),
        ("dataset_max_line_length", "cutoff"),
        ("num_workers", "workers"),
        ("shuffle", "batching"),
        ("best_loss_saving", "keep_best"),
        ("best_acc_saving", "keep_best"),
        ("checkpoint_save_path", "name"),
        ("shard_checkpoint_size", "shard_size"),
    ],
)
def test_each_other_option_names_ours(theirs, ours):
    assert f"Unknown setting {theirs!r}. In Training PRO, it is called {ours!r}." in refusal(**{theirs: "x"})


@pytest.mark.parametrize("theirs", ["checkpoint_load_path", "shard_checkpoint_loading"])
def test_checkpoint_load_path_and_shard_checkpoint_loading_are_the_path_of_the_model(theirs):
    assert "(--model PATH)" in refusal(**{theirs: "x"})
    rows = [line for line in other_names.render_markdown().splitlines() if f"`{theirs}`" in line]
    assert len(rows) == 1 and rows[0].endswith("| Model | `--model` |")


def test_a_longer_line_and_a_larger_batch_increase_the_memory(place):
    small, long, large = (
        PeftEngine().check(place.settings(**more), place.host()).memory.total
        for more in ({}, {"cutoff": 64}, {"batch_size": 8})
    )
    assert long > small and large > small


@pytest.mark.parametrize("workers", [0, 2])
def test_num_workers_are_the_workers_of_the_data_loader(place, monkeypatch, workers):
    loaders, make = [], trainer.RunTrainer.get_train_dataloader
    monkeypatch.setattr(
        trainer.RunTrainer, "get_train_dataloader", lambda self: loaders.append(make(self)) or loaders[-1]
    )
    place.train(workers=workers, max_steps=1)
    forked = multiprocessing.get_start_method() == "fork"
    assert [loader.num_workers for loader in loaders] == [workers if forked else 0]


def test_a_large_number_of_workers_is_refused():
    assert "Workers: 65 is out of range. Allowed: 0 to 64." in refusal(workers=65)
    assert "0 to 64" in read_page("A large number of workers has unexpected outcomes.")


@pytest.mark.parametrize(("size", "several"), [("200KB", True), ("100MB", False), ("1GB", False)])
def test_shard_checkpoint_size_splits_the_model_which_is_loaded_from_its_folder(place, size, several):
    place.train(method="full", learning_rate=1e-3, max_steps=1, shard_size=size, name="new")
    shards = list((place.folders.models / "new").glob("*.safetensors"))
    assert (len(shards) > 1) == several
    assert all(shard.stat().st_size < 2**10 * 200 for shard in shards) == several
    assert place.train(StandaloneHost(place.folders, model="new"), max_steps=1).outcome == "finished"


@pytest.mark.parametrize("compute_type", ["auto", "8bit", "4bit"])
def test_a_checkpoint_is_loaded_from_the_path_of_its_file_also_in_8_and_4_bits(place, tiny, compute_type):
    folder = place.folders.models / "saved_models"
    folder.mkdir(parents=True)
    for file in tiny.glob("*.json"):
        shutil.copy(file, folder)
    torch.save(load_file(tiny / "model.safetensors"), folder / "pytorch_model.bin")
    host = StandaloneHost(place.folders, model=str(folder / "pytorch_model.bin"), loading=compute_type)
    assert place.train(host, max_steps=1).outcome == "finished"


@pytest.mark.parametrize("compute_type", ["8bit", "4bit"])
def test_in_8_and_4_bits_full_fine_tuning_is_refused(place, compute_type):
    settings, host = {"method": "full", "learning_rate": 1e-4}, place.host(compute_type)
    sentence = f"{compute_type[0]}-bit can't be fully fine-tuned"
    assert any(sentence in problem for problem in PeftEngine().check(place.settings(**settings), host).problems)
    with pytest.raises(SettingsError, match=sentence):
        place.train(host, **settings)


def test_a_custom_dataset_class_is_not_run_and_the_refusal_says_what_to_do():
    assert "Training PRO does not run custom code." in refusal(custom_dataset="MyDataset")
    assert "| `custom_dataset` | Training PRO does not run custom code." in other_names.render_markdown()
