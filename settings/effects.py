"""When a setting has no effect, and why: one table, which Check, the log of a run and the form read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.findings import Finding, note
from ..schedulers import ScheduleSteps, get_schedule, lr_multipliers
from ..train_utils import plural
from .definitions import FULL_FINETUNE, SETTINGS, section_keys

KINDS, ON_CPU = "data kinds", "on a CPU"
"""What a rule may ask beside the settings: the kinds of the data (empty: not known yet), and the device."""
TEXT_KEYS = (
    *("chunking", "block_ends", "overlap", "dementor_repeats", "hard_cut", "min_chars"),
    *("drop_boilerplate", "join_lines"),
)
SWITCH_KEYS = section_keys("switching")


@dataclass(frozen=True)
class NoEffect:
    """Settings without effect in runs where `holds`, because of `why`.

    Check names those that ask for something: that differ from their defaults, or from `neutral`. The form hides
    them unless they are `in_form`, because they may still serve there.
    """

    keys: tuple[str, ...]
    why: str
    holds: Callable[[Mapping[str, Any]], bool]
    in_form: bool = False
    neutral: Any = None


def hidden_keys(values: Mapping[str, Any], kinds: Collection[str]) -> set[str]:
    """The keys that a form with these values hides. What is half-typed counts as its default and stays visible."""
    run: dict[str, Any] = {KINDS: kinds, ON_CPU: False}
    invalid = set()
    for key, setting in SETTINGS.items():
        try:
            run[key] = setting.read(values.get(key, setting.default))
        except ValueError:
            run[key] = setting.default
            invalid.add(key)
    return {key for rule in TABLE if not rule.in_form and rule.holds(run) for key in rule.keys} - invalid


def unused_settings(values: Mapping[str, Any], kinds: Collection[str], *, on_cpu: bool) -> Iterator[Finding]:
    """Name the settings of a run that ask for something and have no effect, each once."""
    run = {**values, KINDS: kinds, ON_CPU: on_cpu}
    named: set[str] = set()
    for rule in (rule for rule in TABLE if rule.holds(run)):
        neutral = {key: SETTINGS[key].default if rule.neutral is None else rule.neutral for key in rule.keys}
        if keys := [key for key in rule.keys if key not in named and run[key] != neutral[key]]:
            labels = ", ".join(SETTINGS[key].label for key in keys)
            has = plural(len(keys), "this has", "these have")
            yield note(keys[0], f"{labels}: {has} no effect because {rule.why}.")
        named |= set(rule.keys)


def _ignores_warmup(run: Mapping[str, Any]) -> bool:
    plans = [get_schedule(run["schedule"]).phases(ScheduleSteps(100, 50, warmup)) for warmup in (10, 0)]
    return lr_multipliers(plans[0], 100) == lr_multipliers(plans[1], 100)


def _has_none_of(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda run: not any(run[key] for key in keys)


TABLE = (
    NoEffect(section_keys("rows"), "the dataset has no rows", lambda run: "rows" not in run[KINDS]),
    NoEffect(TEXT_KEYS, "the dataset has no raw text", lambda run: set(run[KINDS]) == {"rows"}),
    NoEffect(("train_on",), "'Train only after' overrides it", lambda run: run["train_only_after"], in_form=True),
    NoEffect(("overlap",), "DEMENTOR windows already overlap", lambda run: run["chunking"] == "dementor",
             neutral=False),
    NoEffect(("dementor_repeats",), "Chunking is not DEMENTOR", lambda run: run["chunking"] != "dementor"),
    NoEffect(("eval_every", "eval_batch_size"), "there is no validation split",
             _has_none_of("eval_data", "eval_share"), in_form=True),
    NoEffect(("epochs",), "'Max steps' sets the length of the run", lambda run: run["max_steps"] > 0),
    NoEffect(SWITCH_KEYS, "Batch order is not Hybrid", lambda run: run["batching"] != "length_then_order"),
    NoEffect(tuple(key for key in SWITCH_KEYS if key.startswith("second_")), "there is no pair phase",
             _has_none_of("switch_pairs")),
    NoEffect(tuple(key for key in SWITCH_KEYS if key.endswith("_at")), "the batch order switches by the loss",
             lambda run: run["switch_after"] == "loss"),
    NoEffect(tuple(key for key in SWITCH_KEYS if "_loss_" in key), "the batch order does not switch by the loss",
             lambda run: run["switch_after"] != "loss"),
    NoEffect(("warmup_steps",), "this LR Scheduler has no warmup", _ignores_warmup, in_form=True),
    NoEffect(("adam_beta1", "adam_beta2"), "this optimizer has no betas",
             lambda run: not any(name in run["optimizer"] for name in ("adam", "ademamix", "lion"))),
    NoEffect(("adam_epsilon",), "this optimizer does not use it",
             lambda run: not any(name in run["optimizer"] for name in ("adam", "ademamix"))),
    NoEffect(("rank", "alpha", "dropout", "targets", "head_rate"), "full fine-tuning trains no LoRA",
             lambda run: run["method"] == FULL_FINETUNE, in_form=True),
    NoEffect(("head_rate",), "Train Head is off and Modules to save is empty",
             lambda run: not run["train_head"] and run["modules_to_save"] == "none"),
    NoEffect(("shard_size",), "this run saves a LoRA, which is one file",
             lambda run: run["method"] != FULL_FINETUNE, in_form=True),
    NoEffect(("keep_checkpoints",), "no rule saves checkpoints",
             _has_none_of("save_every", "save_on_loss_drop", "save_each_epoch"), in_form=True),
    NoEffect(("stop_how",), "no rule stops the run early",
             _has_none_of("stop_at_loss", "stop_at_epoch", "early_stopping"), in_form=True),
    NoEffect(("sample_prompts", "sample_length", "sample_temperature"),
             "'Sample every' is never and you have to ask for samples",
             lambda run: run["sample_every"] == "never", in_form=True),
    NoEffect(("run_name",), "Report to is None", lambda run: run["report_to"] == "none"),
    NoEffect(("logging_first_step",), "'Log every' is auto", lambda run: run["logging_steps"] == "auto"),
    NoEffect(("tf32",), "it only affects float32 models on NVIDIA GPUs", lambda run: run[ON_CPU], in_form=True),
)  # fmt: skip
