"""When a setting has no effect, and why: one table, which Check and the form read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.findings import Finding, note
from ..schedulers import ScheduleSteps, get_schedule, lr_multipliers
from ..train_utils import plural
from .definitions import FULL_FINETUNE, SETTINGS, section_keys

TEXT_KEYS = (
    *("chunking", "block_ends", "overlap", "dementor_repeats", "hard_cut", "min_chars"),
    *("drop_boilerplate", "join_lines"),
)
SWITCH_KEYS = section_keys("switching")


@dataclass(frozen=True)
class Situation:
    """All settings of a run, with the kinds of its data ("text", "rows"; empty: not known yet) and its device."""

    values: Mapping[str, Any]
    kinds: Collection[str] = ()
    on_cpu: bool = False

    @staticmethod
    def of_form(values: Mapping[str, Any], kinds: Collection[str]) -> Situation:
        """The situation of a form in which some values may be half-typed: these count as their defaults."""
        return Situation({key: _read_or_default(key, values) for key in SETTINGS}, kinds)

    def __getitem__(self, key: str) -> Any:
        value = self.values[key]
        return tuple(value) if isinstance(value, list) else value


def _read_or_default(key: str, values: Mapping[str, Any]) -> Any:
    try:
        return SETTINGS[key].read(values[key])
    except (KeyError, ValueError):
        return SETTINGS[key].default


@dataclass(frozen=True)
class NoEffect:
    """Settings without effect while `holds`, because of `why`.

    The form hides them, unless they are `in_form` because the user may still need them there. Check names those
    that ask for something: that differ from their defaults, or from `neutral`.
    """

    keys: tuple[str, ...]
    holds: Callable[[Situation], bool]
    why: str
    in_form: bool = False
    neutral: Any = None


def without_effect(situation: Situation, *, in_form: bool = False) -> set[str]:
    """The keys of the settings without effect; with `in_form`, only of those that the form hides."""
    rules = [rule for rule in TABLE if not (in_form and rule.in_form) and rule.holds(situation)]
    return {key for rule in rules for key in rule.keys}


def unused_settings(situation: Situation) -> Iterator[Finding]:
    """Name the settings that ask for something and have no effect."""
    named: set[str] = set()
    for rule in (rule for rule in TABLE if rule.holds(situation)):
        neutral = {key: SETTINGS[key].default if rule.neutral is None else rule.neutral for key in rule.keys}
        keys = [key for key in rule.keys if situation[key] != neutral[key] and key not in named]
        if keys:
            labels = ", ".join(SETTINGS[key].label for key in keys)
            has = plural(len(keys), "this has", "these have")
            yield note(keys[0], f"{labels}: {has} no effect because {rule.why}.")
        named |= set(keys)


def _ignores_warmup(situation: Situation) -> bool:
    schedule = get_schedule(situation["schedule"])
    with_warmup, without = (schedule.phases(ScheduleSteps(100, 50, warmup)) for warmup in (10, 0))
    return lr_multipliers(with_warmup, 100) == lr_multipliers(without, 100)


def _has_no_eval_data(situation: Situation) -> bool:
    return not situation["eval_data"] and not situation["eval_share"]


def _is_hybrid(situation: Situation) -> bool:
    return bool(situation["batching"] == "length_then_order")


def _never_stops(situation: Situation) -> bool:
    return not any(situation[key] for key in ("stop_at_loss", "stop_at_epoch", "early_stopping"))


def _saves_nothing(situation: Situation) -> bool:
    return not any(situation[key] for key in ("save_every", "save_on_loss_drop", "save_each_epoch"))


TABLE: tuple[NoEffect, ...] = (
    NoEffect(section_keys("rows"), lambda s: "rows" not in s.kinds, "the dataset has no rows"),
    NoEffect(TEXT_KEYS, lambda s: "rows" in s.kinds and "text" not in s.kinds, "the dataset has no raw text"),
    NoEffect(
        ("train_on",), lambda s: bool(s["train_only_after"]), "'Train only after' overrides it", in_form=True
    ),
    NoEffect(
        ("overlap",), lambda s: s["chunking"] == "dementor", "DEMENTOR windows already overlap", neutral=False
    ),
    NoEffect(("dementor_repeats",), lambda s: s["chunking"] != "dementor", "Chunking is not DEMENTOR"),
    NoEffect(("eval_every", "eval_batch_size"), _has_no_eval_data, "there is no validation split", in_form=True),
    NoEffect(("epochs",), lambda s: s["max_steps"] > 0, "'Max steps' sets the length of the run"),
    NoEffect(SWITCH_KEYS, lambda s: not _is_hybrid(s), "Batch order is not Hybrid"),
    NoEffect(
        tuple(key for key in SWITCH_KEYS if key.startswith("second_")),
        lambda s: not s["switch_pairs"],
        "there is no pair phase",
    ),
    NoEffect(
        tuple(key for key in SWITCH_KEYS if key.endswith("_at")),
        lambda s: s["switch_after"] == "loss",
        "the batch order switches by the loss",
    ),
    NoEffect(
        tuple(key for key in SWITCH_KEYS if "_loss_" in key),
        lambda s: s["switch_after"] != "loss",
        "the batch order does not switch by the loss",
    ),
    NoEffect(("warmup_steps",), _ignores_warmup, "this LR Scheduler has no warmup", in_form=True),
    NoEffect(
        ("adam_beta1", "adam_beta2"),
        lambda s: not any(name in s["optimizer"] for name in ("adam", "ademamix", "lion")),
        "this optimizer has no betas",
    ),
    NoEffect(
        ("adam_epsilon",),
        lambda s: not any(name in s["optimizer"] for name in ("adam", "ademamix")),
        "this optimizer does not use it",
    ),
    NoEffect(
        ("rank", "alpha", "dropout", "targets", "head_rate"),
        lambda s: s["method"] == FULL_FINETUNE,
        "full fine-tuning trains all weights instead of a LoRA",
        in_form=True,
    ),
    NoEffect(
        ("head_rate",),
        lambda s: not s["train_head"] and s["modules_to_save"] == "none",
        "Train Head is off and Modules to save is empty",
    ),
    NoEffect(
        ("shard_size",),
        lambda s: s["method"] != FULL_FINETUNE,
        "this run saves a LoRA, which is one file",
        in_form=True,
    ),
    NoEffect(("keep_checkpoints",), _saves_nothing, "no rule saves checkpoints", in_form=True),
    NoEffect(("stop_how",), _never_stops, "no rule stops the run early", in_form=True),
    NoEffect(
        ("sample_prompts", "sample_length", "sample_temperature"),
        lambda s: s["sample_every"] == "never",
        "'Sample every' is never and you have to ask for samples",
        in_form=True,
    ),
    NoEffect(("run_name",), lambda s: s["report_to"] == "none", "Report to is None"),
    NoEffect(("logging_first_step",), lambda s: s["logging_steps"] == "auto", "'Log every' is auto"),
    NoEffect(("tf32",), lambda s: s.on_cpu, "it only affects float32 models on NVIDIA GPUs", in_form=True),
)
