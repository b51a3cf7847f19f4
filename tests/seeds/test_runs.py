"""What the guides and manuals say of a whole run: evaluating, saving, resuming, logging, seeds and workers."""

from __future__ import annotations

import pytest
import torch
from training_pro.core.jobs import EvaluationDone
from training_pro.settings import presets
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.coming_from import read_page
from training_pro.tests.seeds.conftest import run_events, settings

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
DEFAULTS = {
    "weight_decay": 0, "max_grad_norm": 1.0, "accumulation": 1, "compile": False, "adam_beta1": 0.9,
    "adam_beta2": 0.999, "adam_epsilon": 1e-8, "workers": 0, "optimizer": "adamw_torch", "max_steps": 0,
    "batching": "shuffled",
}  # fmt: skip
DIFFERENT_DEFAULTS = {
    "learning_rate": 5e-5, "schedule": "linear", "epochs": 3, "batch_size": 8, "logging_steps": 500,
    "save_every": 500, "report_to": "all", "warmup_steps": 0,
}  # fmt: skip
EXAMPLE_RUN = {
    "epochs": 2, "save_each_epoch": True, "batch_size": 4, "compile": False, "accumulation": 1,
    "gradient_checkpointing": "on", "tf32": False, "max_grad_norm": 0.3, "learning_rate": 5e-5,
    "optimizer": "adamw_8bit", "schedule": "constant", "warmup_steps": 0.03, "seed": 42, "batching": "shuffled",
    "logging_steps": 10, "max_steps": 0,
}  # fmt: skip


@pytest.mark.parametrize("asked", [FULL_SCRIPT, LORA_SCRIPT, QLORA_SCRIPT], ids=["full", "LoRA", "QLoRA"])
def test_the_values_of_the_scripts_are_settings(asked):
    flat = settings(**asked).values()
    expected = {**asked, "targets": asked["targets"].split(",")} if "targets" in asked else asked
    assert {key: flat[key] for key in expected} == expected
    assert settings(**{key: str(value) for key, value in asked.items()}).values() == flat, "a command line"


def test_the_defaults_of_the_notes_and_those_that_are_different_here():
    assert {key: SETTINGS[key].default for key in DEFAULTS} == DEFAULTS
    assert [key for key, value in DIFFERENT_DEFAULTS.items() if SETTINGS[key].default == value] == []
    assert "its own defaults" in read_page("defaults of TrainingArguments")


@pytest.mark.long
def test_the_example_run_is_a_preset_which_trains_and_reports_where_you_ask_for_it(place, tmp_path):
    """With the plain optimizer, since the 8-bit one needs a GPU."""
    preset = presets.find_preset("instruction-tuning", tmp_path).values
    flat = settings(**preset).values()
    assert {key: flat[key] for key in EXAMPLE_RUN} == EXAMPLE_RUN
    assert not {"report_to", "run_name"} & preset.keys()
    asked = settings(**preset, report_to="wandb", run_name="mine").records
    assert (asked.report_to, asked.run_name) == ("wandb", "mine")
    assert "does not report to any service" in read_page("report_to=wandb in the example run")
    assert place.train(**{**preset, "optimizer": "adamw_torch"}).outcome == "finished"


@pytest.mark.long
def test_an_evaluation_batch_that_takes_too_much_memory_is_split_in_halves(place):
    host, sizes = place.host(), []

    def fits_two(module, inputs):
        if not torch.is_grad_enabled() and len(inputs[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(inputs[0]))

    host.loaded_model().model.get_input_embeddings().register_forward_pre_hook(fits_two)
    asked = {"eval_share": 0.25, "eval_batch_size": 4, "max_steps": 1, "recall_passages": 0, "packing": "off"}
    assert run_events(place, host, kind=EvaluationDone, **asked)
    assert 2 in sizes
