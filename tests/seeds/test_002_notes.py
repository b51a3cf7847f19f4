"""The notes on training: each TrainingArguments parameter, each schedule, and the example run as a preset."""

from __future__ import annotations

from itertools import pairwise

import pytest
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.core.jobs.events import Step
from training_pro.core.jobs.job import Job
from training_pro.engine.checks.optimizers import optimizer_problems
from training_pro.schedulers import SCHEDULES, ScheduleSteps, lr_multipliers
from training_pro.settings import other_names, presets
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings

OURS = {
    "output_dir": "name", "gradient_accumulation_steps": "accumulation", "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm", "gradient_checkpointing": "gradient_checkpointing",
    "torch_compile": "compile", "tf32": "tf32", "lr_scheduler_type": "schedule", "warmup_ratio": "warmup_steps",
    "warmup_steps": "warmup_steps", "learning_rate": "learning_rate", "adam_beta1": "adam_beta1",
    "adam_beta2": "adam_beta2", "adam_epsilon": "adam_epsilon", "num_train_epochs": "epochs",
    "max_steps": "max_steps", "evaluation_strategy": "eval_every", "per_device_train_batch_size": "batch_size",
    "logging_strategy": "logging_steps", "logging_steps": "logging_steps", "save_strategy": "save_every",
    "save_steps": "save_every", "dataloader_num_workers": "workers", "run_name": "run_name", "optim": "optimizer",
    "group_by_length": "batching", "report_to": "report_to", "seed": "seed",
}  # fmt: skip
WITHOUT_A_SETTING = (
    *("gradient_checkpointing_kwargs", "save_safetensors", "jit_mode_eval", "bf16", "fp16", "fp16_opt_level"),
    *("lr_scheduler_kwargs", "optim_args", "push_to_hub"),
)
REPORTERS = (
    *("azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "mlflow", "neptune"),
    *("tensorboard", "wandb", "all", "none"),
)


def settings(**values):
    return training_settings({"name": "a", "data": ["story.txt"], **values})


def rates(schedule, warmup=0):
    plan = ScheduleSteps(steps=100, steps_per_epoch=10, warmup=warmup)
    return lr_multipliers(SCHEDULES[schedule].phases(plan), 100)


@pytest.mark.parametrize(("parameter", "key"), OURS.items())
def test_each_parameter_has_a_setting(parameter, key):
    assert (parameter if parameter in SETTINGS else other_names.our_key(parameter)) == key


@pytest.mark.parametrize("parameter", WITHOUT_A_SETTING)
def test_a_parameter_without_a_setting_is_refused_with_the_reason(parameter):
    with pytest.raises(SettingsError) as error:
        settings(**{parameter: "x"})
    assert str(error.value) == f"Unknown setting {parameter!r}. {other_names.why_not_here(parameter)}"


@pytest.mark.parametrize("reporter", REPORTERS)
def test_supported_platforms(reporter):
    assert settings(report_to=reporter).records.report_to == reporter


def test_report_to_takes_a_list():
    assert settings(report_to=["tensorboard", "wandb"]).records.reporters == ("tensorboard", "wandb")


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused", "adafactor"])
def test_optimizers_that_transformers_still_has(optimizer):
    assert list(optimizer_problems(optimizer, "cpu")) == []


@pytest.mark.parametrize("optimizer", ["adamw_hf", "adamw_apex_fused", "adamw_anyprecision"])
def test_optimizers_that_are_gone_or_need_a_package_are_refused(optimizer):
    (problem,) = optimizer_problems(optimizer, "cuda")
    assert problem.text.startswith("Optimizer: ")


@pytest.mark.parametrize("decay", [1e-2, 1e-4, 1e-5, 1e-6])
def test_weight_decay_from_1e_6_to_1e_2(decay):
    assert settings(weight_decay=decay).learning.weight_decay == decay


def test_weight_decay_spares_biases_and_norms(place):
    for name, decay in (("a", 0.0), ("b", 0.5)):
        place.train(name=name, method="full", learning_rate=1e-3, max_steps=1, weight_decay=decay)
    without, decayed = (load_file(place.folders.models / name / "model.safetensors") for name in "ab")
    spared = {key for key, weight in without.items() if weight.equal(decayed[key])}
    assert spared == {key for key in without if "norm" in key}


def test_max_steps_overrides_the_epochs_and_reiterates_the_data(place):
    job = Job("training", "a test")
    place.train(job=job, epochs=1, max_steps=9)
    steps = [event for event in job.log.since(0) if isinstance(event, Step)]
    assert (steps[-1].step, steps[-1].epoch) == (9, 2.25)


def test_a_part_of_the_last_epoch_is_trained(place):
    job = Job("training", "a test")
    place.train(job=job, epochs=1.5)
    assert [event.step for event in job.log.since(0) if isinstance(event, Step)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("norm", [0.3, 1.0, 5.0, 10.0])
def test_max_gradient_norms(norm):
    assert settings(max_grad_norm=norm).learning.max_grad_norm == norm


def test_fixed_learning_rate():
    assert set(rates("constant")) == {1.0}


def test_step_decay_is_reduced_by_a_factor_after_each_epoch():
    assert [rates("step_decay")[step] for step in (0, 10, 20, 30)] == pytest.approx([1, 0.5, 0.25, 0.125])


def test_exponential_decay():
    values = rates("exponential")
    ratios = [later / earlier for earlier, later in pairwise(values)]
    assert max(ratios) == pytest.approx(min(ratios)) and ratios[0] < 1


def test_cosine_annealing_with_restarts_and_without():
    assert rates("cosine")[50] == pytest.approx(0.5, abs=0.02)
    assert rates("cosine_with_restarts")[10] == pytest.approx(1)


def test_learning_rate_warmup():
    values = rates("constant", warmup=5)
    assert values[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0]) and set(values[5:]) == {1.0}


def test_one_cycle_rises_and_falls():
    values = rates("one_cycle")
    top = values.index(max(values))
    assert values[0] < 0.1 and 20 < top < 40 and values[-1] < 0.01
    assert values[:top] == sorted(values[:top]) and values[top:] == sorted(values[top:], reverse=True)


def test_the_example_run_is_a_preset(tmp_path):
    preset = presets.find_preset("instruction-tuning", tmp_path)
    flat = settings(**preset.values).values()
    expected = {
        "epochs": 2, "save_each_epoch": True, "batch_size": 4, "compile": False, "accumulation": 1,
        "gradient_checkpointing": "on", "tf32": False, "max_grad_norm": 0.3, "learning_rate": 5e-5,
        "optimizer": "adamw_8bit", "schedule": "constant", "warmup_steps": 0.03, "seed": 42,
        "batching": "shuffled", "logging_steps": 10, "max_steps": 0,
    }  # fmt: skip
    assert {key: flat[key] for key in expected} == expected


def test_the_example_run_trains(place, tmp_path):
    """With the plain optimizer, since the 8-bit one needs a GPU; its name is checked above."""
    values = {**presets.find_preset("instruction-tuning", tmp_path).values, "optimizer": "adamw_torch"}
    assert place.train(**values).outcome == "finished"
