"""Each name in the guides, the notes, the manuals and the request leads to a setting, a preset, or an answer."""

from __future__ import annotations

import json
import re

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import other_names, presets
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.coming_from import PAGE, read_page, read_section
from training_pro.tests.seeds.conftest import refusal, settings

OURS = {
    "data": "train_file dataset input_file dataset_path", "eval_data": "eval_file", "format": "dataset_format",
    "name": "output_dir checkpoint_save_path", "run_name": "run_name", "report_to": "report_to",
    "optimizer": "optim", "seed": "seed", "data_seed": "data_seed", "logging_first_step": "logging_first_step",
    "logging_steps": "logging_steps logging_strategy", "workers": "dataloader_num_workers num_workers",
    "batch_size": "per_device_train_batch_size", "eval_batch_size": "per_device_eval_batch_size",
    "eval_every": "evaluation_strategy eval_steps", "save_every": "save_strategy save_steps",
    "keep_checkpoints": "save_total_limit", "keep_best": "best_loss_saving best_acc_saving",
    "accumulation": "gradient_accumulation_steps", "learning_rate": "learning_rate",
    "schedule": "lr_scheduler_type", "warmup_steps": "warmup_steps warmup_ratio", "epochs": "num_train_epochs",
    "gradient_checkpointing": "gradient_checkpointing", "attention": "use_xformers", "max_steps": "max_steps",
    "train_on": "train_on_source", "source_max_len": "source_max_len source_max_length",
    "target_max_len": "target_max_len", "eval_share": "split_ratio", "shard_size": "shard_checkpoint_size",
    "cutoff": "max_length dataset_max_line_length", "bias": "bias", "modules_to_save": "modules_to_save",
    "alpha": "alpha lora_alpha", "layers_to_transform": "layers_to_transform", "rank": "r lora_rank",
    "targets": "lora_target_modules", "weight_decay": "weight_decay", "max_grad_norm": "max_grad_norm",
    "compile": "torch_compile", "tf32": "tf32", "batching": "group_by_length shuffle",
    "adam_beta1": "adam_beta1", "adam_beta2": "adam_beta2", "adam_epsilon": "adam_epsilon",
}  # fmt: skip
NAMES = {theirs: ours for ours, names in OURS.items() for theirs in names.split()}
INSTEAD = {
    "model_name_or_path": "command line (--model)", "do_train": "Use the Start button or the train command",
    "do_eval": "a validation split or an evaluation dataset", "ddp_find_unused_parameters": "always false",
    "fp16": "the data type that the model is loaded in", "bf16": "the data type that the model is loaded in",
    "bits": "16, 8 or 4 bits when you load the model", "max_memory_MB": "use --max-memory",
    "fp16_full_eval": "the same data type as the run", "do_mmlu_eval": "the perplexity and recall commands",
    "use_lora": "Method is lora by default", "model_load_delay_per_rank": "the model is loaded only once",
    "tokenizer_path": "train on the command line (--tokenizer)", "output_file": "You don't need to tokenize",
    "gradient_checkpointing_kwargs": "use_reentrant is always false", "save_safetensors": "This is always true",
    "jit_mode_eval": "Models are not traced", "fp16_opt_level": "an option of Apex",
    "lr_scheduler_kwargs": "enter points under LR Scheduler", "push_to_hub": "Use the push command",
    "optim_args": "The betas and epsilon of Adam have their own settings",
    "layers_pattern": "Layers to transform finds the numbered layers of any model",
    "compute_type": "(--load)", "model_name": "(--model)", "model_type": "(--model)",
    "tokenizer_name": "(--tokenizer)", "checkpoint_load_path": "(--model PATH)",
    "shard_checkpoint_loading": "(--model PATH)", "custom_dataset": "Training PRO does not run custom code.",
}  # fmt: skip
FLAGS = {"input_file": "--input-file", "max_length": "--max-length"}
VALUES = [
    ("schedule", "constant_with_warmup", "constant"), ("gradient_checkpointing", "true", "on"),
    ("gradient_checkpointing", True, "on"), ("gradient_checkpointing", "false", "off"),
    ("train_on", "True", "everything"), ("train_on", False, "replies"), ("attention", "true", "sdpa"),
    ("format", "input-output", "auto"),
]  # fmt: skip
STRATEGIES = {
    "eval_every": {
        "no": "Set eval_share to 0", "steps": "Enter the number of steps.",
        "epoch": "is called '0' in Training PRO",
    },
    "save_every": {
        "no": "set save_each_epoch to false", "steps": "Enter the number of steps.",
        "epoch": "Set save_each_epoch to true.",
    },
    "logging_steps": {
        "no": "Set report_to to none.", "steps": "Enter the number of steps.", "epoch": "a share of the run",
    },
}  # fmt: skip
REQUEST = {
    "Hybrid Training Approach": "batching", "length-based batching": "batching",
    "sequential feeding": "batching", "Epoch-Based Transition": "switch_after",
    "Step-Based Transition": "switch_after", "Loss Threshold for Transition": "switch_after",
    "number of training steps": "switch_at", "Transition Phase": "switch_pairs",
    "secondary transition": "second_switch_at",
}  # fmt: skip
SIZES = ("s", "m", "l", "xl")
KINDS = {"AdamW": "adamw_torch", "Adafactor": "adafactor", "AdamW8bit": "adamw_8bit"}
CONFIGS = {f"{kind}_{size.upper()}_NS": f"{kind.lower()}-{size}" for kind in KINDS for size in SIZES} | {
    f"Lora_{bits}bit_{theirs.upper()}_{models}": f"lora-{bits}bit-{ours}"
    for bits in (8, 4)
    for models in ("Llama-OPT-GPTNeo", "GPTNeoX")
    for theirs, ours in zip(SIZES, reversed(SIZES), strict=True)
}
WITHOUT_A_SIZE = ("AdamW_MS_1", "AdamW_MS_2", "Adafactor_MS_1", "Adafactor_MS_2", "Adafactor_RS")
NO_FOLDER = presets.GOALS_FILE.with_name("none")
DIFFERENT_VALUES = read_section("Values that are different in Training PRO")


def test_each_name_of_the_guide_the_notes_and_void_trainer_has_a_setting():
    assert {theirs: theirs if theirs in SETTINGS else other_names.our_key(theirs) for theirs in NAMES} == NAMES
    for theirs in NAMES.keys() - SETTINGS.keys():
        assert f"In Training PRO, it is called {NAMES[theirs]!r}." in refusal(**{theirs: "1"})


@pytest.mark.parametrize(("theirs", "instead"), INSTEAD.items())
def test_a_name_without_a_setting_is_refused_with_what_is_done_instead(theirs, instead):
    said = refusal(**{theirs: "true"})
    assert said.startswith(f"Unknown setting {theirs!r}. ") and instead in said


def test_coming_from_says_where_each_name_is():
    assert [name for name in (*NAMES, *INSTEAD) if f"`{FLAGS.get(name, name)}`" not in PAGE] == []
    assert "| `custom_dataset` | Training PRO does not run custom code." in PAGE
    for name in ("checkpoint_load_path", "shard_checkpoint_loading"):
        (row,) = [line for line in PAGE.splitlines() if f"`{name}`" in line]
        assert row.endswith("| Model | `--model` |")


@pytest.mark.parametrize(("key", "value", "ours"), VALUES)
def test_a_value_that_is_different_here_is_refused_with_ours(key, value, ours):
    assert f"{value!r} is called {ours!r} in Training PRO" in refusal(**{key: value})
    assert settings(**{key: ours}).values()[key] == ours
    assert f"| `{key}` | `{str(value).lower()}` | `{ours}` |" in DIFFERENT_VALUES


@pytest.mark.parametrize("key", STRATEGIES)
def test_the_values_of_each_strategy_are_answered(key):
    for strategy, answer in STRATEGIES[key].items():
        assert answer in refusal(**{key: strategy})
        assert f"| `{key}` | `{strategy}` |" in DIFFERENT_VALUES


def test_max_steps_minus_1_is_called_0():
    for value in (-1, "-1"):
        assert f"Max steps: {value!r} is called '0' in Training PRO" in refusal(max_steps=value)
    assert SETTINGS["max_steps"].default == 0


@pytest.mark.parametrize(("theirs", "ours"), REQUEST.items())
def test_the_words_of_the_request_lead_to_the_settings(theirs, ours):
    section = PAGE.split("## The feature request for hybrid training")[1].split("\n## ")[0]
    (row,) = [line for line in section.splitlines() if f"`{theirs}`" in line]
    assert row.endswith(f"| {SETTINGS[ours].label} | `{ours}` |")
    assert ours in [named.key for named in other_names.find_settings(theirs)[:3]]


def test_custom_syntax_leads_to_the_embeddings_and_the_output_layer():
    (found, *_) = other_names.find_settings("custom syntax")
    assert found.key == "targets"
    assert all(name in SETTINGS["targets"].help for name in ("embed_tokens", "lm_head", "syntax"))


@pytest.mark.parametrize(("config", "ours"), CONFIGS.items())
def test_every_config_is_a_preset_and_no_single_setting(config, ours):
    """'optimizer' alone would lose the rate and the decay, and 'rank' is a number."""
    for key in ("optimizer_config", "lora_config", "optimizer"):
        said = refusal(**{key: config})
        assert f"{config!r} is a preset in Training PRO. Remove this setting, and use --preset" in said
        assert ours in said and "is called" not in said
    with pytest.raises(SettingsError, match=f"Unknown preset '{config}'. In Training PRO, it is called '{ours}'"):
        presets.find_preset(config, NO_FOLDER)
    kind = config.split("_")[0]
    optimizer = presets.find_preset(ours, NO_FOLDER).values["optimizer"]
    assert optimizer == KINDS.get(kind, optimizer) and (kind in KINDS or optimizer.endswith("adamw_8bit"))


@pytest.mark.parametrize("config", WITHOUT_A_SIZE)
def test_an_optimizer_config_without_a_size_names_all_of_ours(config):
    ours = ", ".join(f"{config.split('_')[0].lower()}-{size}" for size in SIZES)
    with pytest.raises(SettingsError) as refused:
        presets.find_preset(config, NO_FOLDER)
    hint = f"Choose the preset for the size of your model: {ours}."
    assert str(refused.value) == f"Unknown preset {config!r}. {hint}"
    assert f"{ours}." in refusal(optimizer=config)


def test_coming_from_lists_every_config():
    for config in (*CONFIGS, *WITHOUT_A_SIZE):
        assert len(re.findall(rf"^\| `{config}` \|.*-", PAGE, re.M)) == 1


@pytest.mark.parametrize("bits", [8, 4])
def test_larger_configs_for_smaller_models(bits):
    rows = [presets.find_preset(f"lora-{bits}bit-{size}", NO_FOLDER) for size in SIZES]
    ranks = [row.values["rank"] for row in rows]
    assert ranks == sorted(set(ranks), reverse=True) and len(ranks) == 4
    assert all(f"rank {row.values['rank']}" in row.label for row in rows)
    words = [row.words.split(" (")[0] for row in rows]
    assert words == [f"For {size} models" for size in ("small", "medium", "large", "very large")]


def test_a_custom_json_file_as_the_optimizer_or_lora_config(tmp_path):
    for table, values in (("optimizers", {"optimizer": "adafactor"}), ("loras", {"rank": 8})):
        (tmp_path / f"{table}.json").write_text(json.dumps({f"my-{table}": {"values": values}}))
        assert presets.find_preset(f"my-{table}", tmp_path).values == values
    statement = "A custom JSON file can be the optimizer or LoRA config."
    assert read_page(statement).startswith("Use it with `--preset PATH`")
    assert "are presets" in refusal(optimizer_config="my.json")
