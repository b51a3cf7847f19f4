"""The notes on training: each TrainingArguments parameter, each schedule, and the example run as a preset."""

from __future__ import annotations

import math
import re

import pytest
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Step
from training_pro.engine.checks import optimizer_problems
from training_pro.engine.checks.reporters import reporter_problems
from training_pro.schedulers import SCHEDULES, ScheduleSteps, get_schedule, lr_multipliers
from training_pro.settings import other_names, presets
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.tests.coming_from import read_page, read_section
from transformers import TrainerCallback
from transformers.integrations import integration_utils
from transformers.trainer_utils import SchedulerType

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
WITHOUT_A_SETTING = {
    "gradient_checkpointing_kwargs": "use_reentrant is always false", "save_safetensors": "This is always true",
    "jit_mode_eval": "Models are not traced", "bf16": "the data type that the model is loaded in",
    "fp16": "the data type that the model is loaded in", "fp16_opt_level": "an option of Apex",
    "lr_scheduler_kwargs": "enter points under LR Scheduler", "push_to_hub": "Use the push command",
    "optim_args": "The betas and epsilon of Adam have their own settings",
}  # fmt: skip
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


@pytest.mark.parametrize(("parameter", "reason"), WITHOUT_A_SETTING.items())
def test_a_parameter_without_a_setting_is_refused_with_the_reason(parameter, reason):
    with pytest.raises(SettingsError) as error:
        settings(**{parameter: "x"})
    assert str(error.value).startswith(f"Unknown setting {parameter!r}. ") and reason in str(error.value)


@pytest.mark.parametrize("parameter", [*OURS, *WITHOUT_A_SETTING])
def test_coming_from_says_where_each_parameter_is(parameter):
    titles = ("The training notes on TrainingArguments", "Names that are not settings of Training PRO")
    assert f"`{parameter}`" in "".join(map(read_section, titles))


@pytest.mark.parametrize("reporter", REPORTERS)
def test_supported_platforms_are_refused_only_for_what_they_lack_here(reporter):
    """For a package or a variable."""
    assert settings(report_to=reporter).records.report_to == reporter
    reasons = [problem.text for problem in reporter_problems(settings(report_to=reporter).records.reporters)]
    assert all(text.startswith((f"Report to: {reporter} ", f"Report to: {reporter!r} ")) for text in reasons)


def test_a_platform_that_transformers_does_not_know_is_refused_as_such():
    (unknown,) = reporter_problems(("azureml",))
    assert unknown.text.startswith(
        "Report to: transformers has no reporting integration called 'azureml'. Choose one of azure_ml,"
    )


def test_report_to_all_reports_to_all_installed_integrations_and_none_to_none(place, monkeypatch):
    started = []

    class Recorder(TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            started.append(args.run_name)

    monkeypatch.setattr(integration_utils, "get_available_reporting_integrations", lambda: ["wandb", "trackio"])
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, Recorder)
    place.train(name="b", report_to="none", max_steps=1)
    place.train(report_to="all", max_steps=1)
    assert started == ["a", "a"]


def test_report_to_takes_a_list():
    assert settings(report_to=["tensorboard", "wandb"]).records.reporters == ("tensorboard", "wandb")


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused", "adafactor"])
def test_optimizers_that_transformers_still_has_take_a_step(place, optimizer):
    assert place.train(optimizer=optimizer, max_steps=1, save_each_epoch=False).outcome == "finished"
    weights = load_file(place.lora() / "adapter_model.safetensors")
    assert all(float(weight.norm()) > 0 for name, weight in weights.items() if "lora_B" in name)


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
    """gamma ** floor(t / N), with 0.5 and 1."""
    assert rates("step_decay") == pytest.approx([0.5 ** (step // 10) for step in range(100)])


@pytest.mark.parametrize(("gamma", "every"), [(0.1, 2), (0.5, 3)])
def test_step_decay_by_gamma_every_n_epochs_is_entered_as_points(gamma, every):
    levels = range(-(-10 // every))
    points = " ".join(f"{n * every}e:{gamma**n:g} {(n + 1) * every}e:{gamma**n:g}" for n in levels)
    asked = settings(schedule=points).learning.schedule
    values = lr_multipliers(get_schedule(asked).phases(ScheduleSteps(100, 10)), 100)
    assert values == pytest.approx([gamma ** (step // 10 // every) for step in range(100)])
    assert "enter points: 0:1 2e:1 2e:0.1" in read_page("step decay with gamma and N")


def test_exponential_decay():
    """e ** (-k t), with a k of 3 over the run."""
    assert rates("exponential") == pytest.approx([math.exp(-3 * step / 100) for step in range(100)])
    assert "k = 3 over the whole run" in read_page("exponential decay with k")


def test_cosine_annealing_between_the_maximum_and_0():
    """eta_min + (eta_max - eta_min) / 2 * (1 + cos(t pi / T)): the minimum is 0, and T the run, or an epoch."""
    assert rates("cosine") == pytest.approx([0.5 * (1 + math.cos(step * math.pi / 100)) for step in range(100)])
    restarted = [0.5 * (1 + math.cos(step % 10 * math.pi / 10)) for step in range(100)]
    assert rates("cosine_with_restarts") == pytest.approx(restarted)


def test_cosine_annealing_with_eta_min_is_entered_as_points():
    """The points in the refusal are near the curve from 1 to 0.1."""
    with pytest.raises(SettingsError, match="For a minimum above 0, enter points, such as ") as refused:
        settings(schedule="cosine_with_min_lr")
    points = str(refused.value).partition("such as ")[2].removesuffix(".")
    values = lr_multipliers(get_schedule(points).phases(ScheduleSteps(100, 10)), 100)
    exact = [0.1 + 0.45 * (1 + math.cos(step * math.pi / 100)) for step in range(100)]
    assert max(abs(a - b) for a, b in zip(values, exact, strict=True)) < 0.04
    assert "cosine decays to 0 over the run" in read_page("cosine with a minimum rate and a cycle of T")


@pytest.mark.parametrize("name", [kind.value for kind in SchedulerType])
def test_every_scheduler_type_of_transformers_is_one_here_or_answered(name):
    if name in SCHEDULES:
        assert settings(schedule=name).learning.schedule == name
        return
    with pytest.raises(SettingsError) as refused:
        settings(schedule=name)
    assert re.search(
        r"is called 'constant' in Training PRO|is not a valid value in Training PRO\. .*\bcosine\b",
        str(refused.value),
    )
    assert f"| `schedule` | `{name}` |" in read_section("Values that are different in Training PRO")


def test_learning_rate_warmup():
    values = rates("constant", warmup=5)
    assert values[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0]) and set(values[5:]) == {1.0}


def test_one_cycle_rises_and_falls():
    values = rates("one_cycle")
    top = values.index(max(values))
    assert values[0] < 0.1 and 20 < top < 40 and values[-1] < 0.01
    assert values[:top] == sorted(values[:top]) and values[top:] == sorted(values[top:], reverse=True)


@pytest.mark.parametrize("value", [-1, "-1"])
def test_max_steps_minus_1_is_called_0(value):
    with pytest.raises(SettingsError, match=f"Max steps: {value!r} is called '0' in Training PRO"):
        settings(max_steps=value)
    assert SETTINGS["max_steps"].default == 0


@pytest.mark.parametrize(
    ("key", "strategy", "answer"),
    [
        ("eval_every", "no", "Set eval_share to 0"), ("eval_every", "steps", "Enter the number of steps."),
        ("eval_every", "epoch", "is called '0' in Training PRO"),
        ("save_every", "no", "set save_each_epoch to false"),
        ("save_every", "steps", "Enter the number of steps."),
        ("save_every", "epoch", "Set save_each_epoch to true."),
        ("logging_steps", "no", "Set report_to to none."), ("logging_steps", "epoch", "a share of the run"),
        ("logging_steps", "steps", "Enter the number of steps."),
    ],
)  # fmt: skip
def test_the_values_of_each_strategy_are_answered(key, strategy, answer):
    with pytest.raises(SettingsError) as refused:
        settings(**{key: strategy})
    assert answer in str(refused.value)
    assert f"| `{key}` | `{strategy}` |" in read_section("Values that are different in Training PRO")


DEFAULTS = {
    "weight_decay": 0, "max_grad_norm": 1.0, "accumulation": 1, "compile": False, "adam_beta1": 0.9,
    "adam_beta2": 0.999, "adam_epsilon": 1e-8, "workers": 0, "optimizer": "adamw_torch", "max_steps": 0,
    "batching": "shuffled",
}  # fmt: skip
OWN_DEFAULTS = {
    "learning_rate": 5e-5, "schedule": "linear", "epochs": 3, "batch_size": 8, "logging_steps": 500,
    "save_every": 500, "report_to": "all", "warmup_steps": 0,
}  # fmt: skip
"""Values of the notes where Training PRO has others."""


def test_the_defaults_of_the_notes_and_those_that_are_different_here():
    assert {key: SETTINGS[key].default for key in DEFAULTS} == DEFAULTS
    assert [key for key, value in OWN_DEFAULTS.items() if SETTINGS[key].default == value] == []
    assert "its own defaults" in read_page("defaults of TrainingArguments")


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


def test_the_example_run_reports_where_you_ask_for_it(tmp_path):
    """The notes report to wandb under the name of the output; neither is part of the preset."""
    values = presets.find_preset("instruction-tuning", tmp_path).values
    assert not {"report_to", "run_name"} & values.keys()
    asked = settings(**values, report_to="wandb", run_name="mine").records
    assert (asked.reporters, asked.run_name) == (("wandb",), "mine")
    assert "does not report to any service" in read_page("report_to=wandb in the example run")


def test_the_example_run_trains(place, tmp_path):
    """With the plain optimizer, since the 8-bit one needs a GPU; its name is checked above."""
    values = {**presets.find_preset("instruction-tuning", tmp_path).values, "optimizer": "adamw_torch"}
    assert place.train(**values).outcome == "finished"
