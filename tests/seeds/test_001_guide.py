"""The novice's guide to LLM training: the flags of its three example scripts, and what it says of them."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
from accelerate.commands import launch
from training_pro.commands import options
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Step
from training_pro.engine.checks import optimizer_problems, reporters
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import PARAMETERS
from training_pro.settings import other_names
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.tests.coming_from import read_page, read_section
from transformers import TrainerCallback
from transformers.integrations import integration_utils

GUIDE_NAMES = "".join(
    map(read_section, ("The Novice's LLM Training Guide", "Names that are not settings of Training PRO"))
)
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
    "max_length": "cutoff",
    "input_file": "data", "bias": "bias", "modules_to_save": "modules_to_save", "alpha": "alpha",
    "layers_to_transform": "layers_to_transform", "r": "rank", "lora_rank": "rank", "lora_alpha": "alpha",
    "lora_target_modules": "targets",
}  # fmt: skip
WITHOUT_A_SETTING = {
    "model_name_or_path": "command line (--model)", "do_train": "Use the Start button or the train command",
    "do_eval": "a validation split or an evaluation dataset", "ddp_find_unused_parameters": "always false",
    "fp16": "the data type that the model is loaded in", "bf16": "the data type that the model is loaded in",
    "bits": "16, 8 or 4 bits when you load the model", "max_memory_MB": "use --max-memory",
    "fp16_full_eval": "the same data type as the run", "do_mmlu_eval": "the perplexity and recall commands",
    "use_lora": "Method is lora by default", "model_load_delay_per_rank": "the model is loaded only once",
    "tokenizer_path": "train on the command line (--tokenizer)", "output_file": "You don't need to tokenize",
}  # fmt: skip
FULL_SCRIPT = {
    "report_to": "wandb", "optimizer": "adamw_torch_fused", "seed": 42, "data_seed": 42,
    "logging_first_step": True, "logging_steps": 1, "workers": 1, "batch_size": 8, "eval_batch_size": 8,
    "eval_every": 128, "save_every": 128, "keep_checkpoints": 2, "accumulation": 8, "learning_rate": 1.0e-5,
    "schedule": "cosine", "warmup_steps": 64, "epochs": 1,
}  # fmt: skip
LORA_SCRIPT = {
    **FULL_SCRIPT, "eval_every": 80, "save_every": 80, "accumulation": 64, "learning_rate": 5.0e-5,
    "schedule": "constant", "warmup_steps": 8, "rank": 128, "alpha": 256, "gradient_checkpointing": "on",
    "targets": "up_proj,down_proj,q_proj,v_proj,k_proj,o_proj,embed_tokens,lm_head", "attention": "sdpa",
}  # fmt: skip
QLORA_SCRIPT = {
    "train_on": "everything", "learning_rate": 0.000075, "warmup_steps": 0, "epochs": 1, "source_max_len": 2500,
    "target_max_len": 2500, "batch_size": 1, "accumulation": 1, "logging_first_step": True, "logging_steps": 1,
    "save_every": 100, "eval_every": 10, "keep_checkpoints": 2, "data_seed": 41, "eval_batch_size": 1,
    "optimizer": "paged_adamw_32bit", "report_to": "wandb", "format": "auto",
}  # fmt: skip
SCRIPTS = {"full fine-tune": FULL_SCRIPT, "LoRA": LORA_SCRIPT, "QLoRA": QLORA_SCRIPT}


def settings(**values):
    return training_settings({"name": "a", "data": ["story.txt"], **values})


@pytest.mark.parametrize(("flag", "key"), OURS.items())
def test_each_flag_has_a_setting(flag, key):
    assert (flag if flag in SETTINGS else other_names.our_key(flag)) == key


@pytest.mark.parametrize(("flag", "instead"), WITHOUT_A_SETTING.items())
def test_a_flag_without_a_setting_is_refused_with_what_is_done_instead(flag, instead):
    with pytest.raises(SettingsError) as error:
        settings(**{flag: "true"})
    assert str(error.value).startswith(f"Unknown setting {flag!r}. ") and instead in str(error.value)


@pytest.mark.parametrize("flag", [flag for flag in (*OURS, *WITHOUT_A_SETTING) if flag != "tokenizer_path"])
def test_coming_from_says_where_each_flag_of_the_guide_is(flag):
    names = {"input_file": "--input-file", "max_length": "--max-length"}
    assert f"`{names.get(flag, flag)}`" in GUIDE_NAMES


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_values_of_the_scripts_are_settings(script):
    asked = SCRIPTS[script]
    flat = settings(**asked).values()
    expected = {**asked, "targets": asked["targets"].split(",")} if "targets" in asked else asked
    assert {key: flat[key] for key in expected} == expected
    as_text = settings(**{key: str(value) for key, value in asked.items()})
    assert as_text.values() == flat, "as on a command line"


@pytest.mark.parametrize(
    ("key", "value", "ours"),
    [
        ("schedule", "constant_with_warmup", "constant"), ("gradient_checkpointing", "true", "on"),
        ("gradient_checkpointing", True, "on"), ("gradient_checkpointing", "false", "off"),
        ("train_on", "True", "everything"), ("train_on", False, "replies"), ("attention", "true", "sdpa"),
        ("format", "input-output", "auto"),
    ],
)  # fmt: skip
def test_a_value_that_is_different_here_is_refused_with_ours(key, value, ours):
    with pytest.raises(SettingsError, match=f"{value!r} is called {ours!r} in Training PRO"):
        settings(**{key: value})
    assert settings(**{key: ours}).values()[key] == ours
    assert f"| `{key}` | `{str(value).lower()}` | `{ours}` |" in read_section(
        "Values that are different in Training PRO"
    )


def test_constant_with_warmup_rises_over_the_warmup_steps_and_stays(place):
    job = Job("training", "a test")
    place.train(job=job, schedule="constant", warmup_steps=3, learning_rate=1e-3, epochs=2)
    rates = [event.learning_rate for event in job.log.since(0) if isinstance(event, Step)]
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, *[1e-3] * 6])


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


@pytest.mark.parametrize("optimizer", ["paged_adamw_32bit", "paged_adamw_8bit"])
def test_paged_optimizers_run_on_a_gpu_and_save_memory(place, optimizer):
    pytest.importorskip("bitsandbytes")
    assert list(optimizer_problems(optimizer, "cuda")) == []
    (on_cpu,) = optimizer_problems(optimizer, "cpu")
    assert "needs a GPU" in on_cpu.text
    paged, plain = (
        PeftEngine().check(place.settings(optimizer=name), place.host()).memory.optimizer
        for name in (optimizer, "adamw_torch")
    )
    assert paged == 0 < plain, "the states of a paged optimizer can be in RAM"


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
    monkeypatch.setattr(reporters, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"wandb is not installed. Install it \(pip install wandb\)"):
        PeftEngine().train(place.settings(report_to="wandb"), place.host(), Job("training", "a test"))


class RecordingReporter(TrainerCallback):
    """Stand-in for the callback of a service, which records the project."""

    projects: list = []

    def on_log(self, args, state, control, **more):
        self.projects.append(os.environ["WANDB_PROJECT"])


@pytest.mark.parametrize(("variable", "project"), [("project-name", "project-name"), (None, "training_pro")])
def test_wandb_project_names_the_project(place, monkeypatch, variable, project):
    monkeypatch.setattr(reporters, "find_spec", lambda name: name)
    monkeypatch.setattr(RecordingReporter, "projects", [])
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "wandb", RecordingReporter)
    if variable:
        monkeypatch.setenv("WANDB_PROJECT", variable)
    else:
        monkeypatch.delenv("WANDB_PROJECT", raising=False)
    place.train(report_to="wandb", max_steps=1)
    assert RecordingReporter.projects == [project]
    assert "uses the project in this variable" in read_page("WANDB_PROJECT")


def test_the_tokenized_data_are_not_in_hf_datasets_cache(place, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    place.train(max_steps=1)
    assert not (tmp_path / "cache").exists() and list(place.folders.prepared_data.iterdir())
    folder = place.folders.prepared_data.relative_to(place.folders.user_data).as_posix()
    assert f"does not use this variable. It stores the tokenized data in {folder} " in read_page(
        "HF_DATASETS_CACHE"
    )


def test_accelerate_launch_starts_the_same_run(place, monkeypatch):
    """In the environment that it gives to the script; its own start takes many seconds."""
    started = []

    def record_start(command, env):
        started.append((command[1:], env))
        return SimpleNamespace(wait=lambda: None, returncode=0)

    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(Popen=record_start))
    words = ["--cpu", "--num_processes", "1", "script.py", "train", "--epochs", "1"]
    launch.launch_command(launch.launch_command_parser().parse_args(words))
    ((command, environment),) = started
    assert command == ["script.py", "train", "--epochs", "1"] and environment["ACCELERATE_USE_CPU"] == "True"
    place.train(max_steps=2)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    place.train(name="launched", max_steps=2)
    assert place.weights("launched") == place.weights()
    assert "accelerate launch script.py train" in read_page("accelerate launch")


def test_a_tokenized_arrow_file_is_refused_with_the_file_to_use(place):
    (place.folders.datasets / "train.arrow").write_bytes(b"ARROW1\0\0" + bytes(range(256)))
    (problem,) = PeftEngine().check(place.settings(data=["train.arrow"]), place.host()).problems
    assert "train.arrow" in problem and "use the .jsonl or .parquet file that it was made from" in problem
    assert "Use the .jsonl file from before tokenization." in read_page("tokenized .arrow files")
