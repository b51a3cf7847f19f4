"""The novice's guide to LLM training: the flags of its three example scripts, and what it says of them."""

from __future__ import annotations

import json

import pytest
from training_pro.commands import options
from training_pro.core.errors import SettingsError
from training_pro.core.jobs.job import Job
from training_pro.engine.checks.optimizers import optimizer_problems
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder.filenames import PARAMETERS
from training_pro.settings import other_names
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings

OURS = {
    "train_file": "data", "eval_file": "eval_data", "output_dir": "name", "report_to": "report_to",
    "optim": "optimizer", "seed": "seed", "data_seed": "data_seed", "logging_first_step": "logging_first_step",
    "logging_steps": "logging_steps", "dataloader_num_workers": "workers",
    "per_device_train_batch_size": "batch_size", "per_device_eval_batch_size": "eval_batch_size",
    "evaluation_strategy": "eval_every", "eval_steps": "eval_every", "save_strategy": "save_every",
    "save_steps": "save_every", "save_total_limit": "keep_checkpoints",
    "gradient_accumulation_steps": "accumulation", "learning_rate": "learning_rate",
    "lr_scheduler_type": "schedule", "warmup_steps": "warmup_steps", "num_train_epochs": "epochs",
    "gradient_checkpointing": "gradient_checkpointing", "use_xformers": "attention", "dataset": "data",
    "dataset_format": "format", "train_on_source": "train_on", "source_max_len": "source_max_len",
    "target_max_len": "target_max_len", "source_max_length": "source_max_len", "split_ratio": "eval_share",
    "input_file": "data", "bias": "bias", "modules_to_save": "modules_to_save", "alpha": "alpha",
    "layers_to_transform": "layers_to_transform", "r": "rank", "lora_rank": "rank", "lora_alpha": "alpha",
    "lora_target_modules": "targets",
}  # fmt: skip
WITHOUT_A_SETTING = (
    *("model_name_or_path", "do_train", "do_eval", "ddp_find_unused_parameters", "fp16", "bf16", "bits"),
    *("max_memory_MB", "fp16_full_eval", "do_mmlu_eval", "use_lora", "model_load_delay_per_rank"),
    *("tokenizer_path", "output_file"),
)


def settings(**values):
    return training_settings({"name": "a", "data": ["story.txt"], **values})


@pytest.mark.parametrize(("flag", "key"), OURS.items())
def test_each_flag_has_a_setting(flag, key):
    assert (flag if flag in SETTINGS else other_names.our_key(flag)) == key


@pytest.mark.parametrize("flag", WITHOUT_A_SETTING)
def test_a_flag_without_a_setting_is_refused_with_what_is_done_instead(flag):
    with pytest.raises(SettingsError) as error:
        settings(**{flag: "true"})
    assert str(error.value) == f"Unknown setting {flag!r}. {other_names.why_not_here(flag)}"


def test_the_values_of_the_first_script_are_settings():
    asked = settings(
        report_to="wandb", optimizer="adamw_torch_fused", seed=42, data_seed=42, logging_first_step="true",
        logging_steps=1, workers=1, batch_size=8, eval_batch_size=8, eval_every=128, save_every=128,
        keep_checkpoints=2, accumulation=8, learning_rate="1.0e-5", schedule="cosine", warmup_steps=64, epochs=1,
    )  # fmt: skip
    assert asked.records.reporters == ("wandb",)


def test_constant_with_warmup_is_called_constant():
    with pytest.raises(SettingsError, match="'constant_with_warmup' is called 'constant' in Training PRO"):
        settings(schedule="constant_with_warmup")
    assert settings(schedule="constant", warmup_steps=8).learning.warmup_steps == 8


def test_set_to_minus_1_for_a_random_number_to_be_used(place):
    place.train(seed=-1, max_steps=1)
    drawn = json.loads((place.lora() / PARAMETERS).read_text(encoding="utf-8"))["seed"]
    assert 0 <= drawn < 2**32
    place.train(name="again", seed=drawn, max_steps=1)
    assert place.weights("again") == place.weights()


def test_setting_a_seed_ensures_that_good_runs_are_reproducible(place):
    for name in ("a", "b"):
        place.train(name=name, seed=41, data_seed=42, max_steps=2)
    assert place.weights("a") == place.weights("b")


def test_you_can_set_the_rank_to_the_models_hidden_size(place):
    """The hidden size is in config.json; above it nothing is gained."""
    hidden = json.loads((place.tiny / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    host, engine = place.host(), PeftEngine()
    assert engine.check(place.settings(rank=hidden), host).problems == ()
    (problem,) = engine.check(place.settings(rank=hidden + 1), host).problems
    assert f"hidden size ({hidden})" in problem
    assert settings(rank=8192).lora.rank == 8192


def test_bits_are_16_8_and_4():
    parser = options.make_parser("train", "")
    options.add_model(parser)
    for loading in ("float16", "bfloat16", "8bit", "4bit"):
        assert parser.parse_args(["--model", "m", "--load", loading]).load == loading


def test_paged_adamw_32bit_is_an_optimizer():
    assert all("no optimizer" not in finding.text for finding in optimizer_problems("paged_adamw_32bit", "cuda"))


def test_sequences_that_exceed_the_maximum_will_be_truncated(place):
    place.write("rows.jsonl", f"{json.dumps({'input': 'one two three ' * 9, 'output': 'four five ' * 9})}\n" * 3)
    asked = {"data": ["rows.jsonl"], "cutoff": "auto"}
    plain = PeftEngine().check(place.settings(**asked), place.host())
    limited = PeftEngine().check(place.settings(source_max_len=12, target_max_len=12, **asked), place.host())
    (rows,) = [source.rows for source in limited.sources]
    assert (rows.long_prompts, rows.long_replies) == (3, 3)
    assert limited.longest < plain.longest


def test_train_on_source_trains_on_the_input_as_well(place):
    place.write("rows.jsonl", f"{json.dumps({'input': 'one two three', 'output': 'four five'})}\n" * 3)
    asked = {"data": ["rows.jsonl"], "cutoff": "auto"}
    trained = {
        part: PeftEngine().check(place.settings(train_on=part, **asked), place.host()).trained_tokens
        for part in ("replies", "everything")
    }
    assert trained["replies"] < trained["everything"]


def test_a_missing_service_is_refused_with_what_to_install(place, monkeypatch):
    from training_pro.engine.checks import reporters

    monkeypatch.setattr(reporters, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"wandb is not installed. Install it \(pip install wandb\)"):
        PeftEngine().train(place.settings(report_to="wandb"), place.host(), Job("training", "a test"))
