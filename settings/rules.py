"""Rules that need only the settings, and the table of settings without effect, from which the form hides them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.findings import Finding, advice, note, problem
from ..schedulers import ScheduleSteps, get_schedule, lr_multipliers
from ..train_utils import plural
from .definitions import FULL_FINETUNE, RANDOM_SEED, SETTINGS, TrainingSettings, section_keys
from .name_rules import NAME_AND_PERCENT

# Limits on what is plausible, not on what is possible: beyond them, Check gives advice.
SPLIT_HINT = "start a run with a validation split (eval_share 0.05)."
MAX_LORA_RATE, MAX_FULL_RATE = 1e-2, 1e-3
MAX_PREFERENCE_RATE, USUAL_PREFERENCE_RATE = 1e-4, 2e-5
USUAL_FIRST_LOSS = 4.0
DROP_FACTOR = 0.9
HOLD_STEPS = 3  # in a row that the smoothed loss must stay below the level before the drop counts
MAX_USUAL_SPLIT = 0.5


def check_settings(settings: TrainingSettings) -> list[Finding]:
    """Return what prevents a run, and what works but probably not as intended."""
    checks = (_check_data, _check_preferences, _check_switches, _check_learning)
    return [finding for check in checks for finding in check(settings)]


def _check_data(settings: TrainingSettings) -> Iterator[Finding]:
    """Dataset, seed, end tokens and validation data."""
    what, aside = settings.what, settings.aside
    if not what.data:
        yield problem("data", "Dataset: choose at least one file, for example story.txt.")
    if RANDOM_SEED in (what.seed, what.data_seed):
        yield note(
            "seed",
            "Seed -1: the run picks its seed when it starts, but 'Check' and 'Test one step' use seed 0. So the "
            "run may use another validation split, and other examples of datasets that you use only in part.",
        )
    if begin := settings.saving.save_on_loss_drop:
        yield note(
            "save_on_loss_drop",
            f"Save when the loss falls below {begin:g}: the first of these checkpoints is saved when the smoothed "
            f"loss is 10% lower, at {DROP_FACTOR * begin:.4g}, and stays there for {HOLD_STEPS} steps.",
        )
    if settings.text.add_eos == "every_block":
        stops = "teaches the model to stop in the middle of a text. 'At each hard cut' is better."
        yield advice("add_eos", f"Add EOS token: 'After every block' {stops}")
    # Accuracy is measured only on validation data, and early stopping compares evaluations.
    has_split = aside.eval_data or aside.eval_share
    if settings.stopping.early_stopping and not has_split:
        needs = "this needs evaluations, but there is no validation split"
        yield problem("early_stopping", f"Early stopping: {needs}. Set it to 0, or {SPLIT_HINT}")
    if settings.saving.keep_best == "accuracy" and not has_split:
        needs = "there is no validation split to measure the accuracy on"
        yield problem("keep_best", f"Keep the best, by accuracy: {needs}. Choose another measure, or {SPLIT_HINT}")
    # Without the share and the slash: 'book/:50' is the folder 'book'.
    shares = {name: NAME_AND_PERCENT.fullmatch(name.strip()) for name in (*what.data, *aside.eval_data)}
    names = {name: (share["name"] if share else name).strip().rstrip("/\\") for name, share in shares.items()}
    learned = {names[name] for name in what.data}
    for name in (name for name in aside.eval_data if names[name] in learned):
        yield problem(
            "eval_data",
            f"Evaluation dataset: {name} is also in the training data. Remove it from either of them, or use a "
            "validation split instead.",
        )
    if aside.eval_share > MAX_USUAL_SPLIT:
        yield advice(
            "eval_share",
            f"Validation split {aside.eval_share:g}: the run trains on only {1 - aside.eval_share:.0%} of the "
            f"dataset. If {aside.eval_share:g} is the part to train on, enter {1 - aside.eval_share:.4g}.",
        )


def _check_preferences(settings: TrainingSettings) -> Iterator[Finding]:
    """What an objective that learns from preferences needs, and its usual learning rate."""
    preferences, rate = settings.preferences, settings.learning.learning_rate
    name = SETTINGS["objective"].choices[preferences.objective]
    if not preferences.compares:
        return
    if preferences.needs_reference and settings.lora.whole_model:
        without = "compares the model with itself without the LoRA, and full fine-tuning trains no LoRA"
        yield problem("objective", f"Objective {name}: it {without}. Train a LoRA, or choose ORPO or SimPO.")
    if settings.rows.too_long == "split":
        yield problem("too_long", f"Rows over the cutoff: with {name}, a row can't be split. Drop or truncate it.")
    if settings.has_pairs:
        joined = "joins neighboring examples, and an example is already a pair of replies"
        yield problem("switch_pairs", f"Pair phase: it {joined}. Turn it off, or set Objective to Next token.")
    if settings.steps.batching == "not_known":
        yield problem(
            "batching", "Batch order: what is not known yet is measured of next tokens only. Choose another."
        )
    if rate > MAX_PREFERENCE_RATE:
        high = f"{rate:g} is high for {name}, which usually needs a tenth of the rate for next tokens"
        yield advice("learning_rate", f"Learning Rate {high}. Try {USUAL_PREFERENCE_RATE:g}.")


def _check_switches(settings: TrainingSettings) -> Iterator[Finding]:
    """The phases of hybrid batching: each in its place, and an even batch for pairs."""
    s, size = settings.switching, settings.steps.batch_size
    if settings.steps.batching != "length_then_order":
        return
    # A batch consists of whole pairs, and a pair counts as two examples.
    if s.switch_pairs and size % 2:
        even = f"the batch size must be even, but it is {size}. Use {size + 1}, or turn the pair phase off."
        yield problem("batch_size", f"Pair phase: each batch consists of pairs, so {even}")
    if s.switch_after != "loss":
        if s.switch_pairs and s.second_switch_at <= s.switch_at:
            when = "before" if s.second_switch_at < s.switch_at else "at the same time as"
            first = f"this is {when} the first switch ({s.switch_at}). Use {s.switch_at + 1} or more."
            yield problem("second_switch_at", f"Second switch at {s.second_switch_at}: {first}")
        return
    if s.switch_pairs and s.second_switch_loss_high >= s.switch_loss_high:
        yield problem(
            "second_switch_loss_high",
            f"Second switch at loss: the upper bound {s.second_switch_loss_high:g} is not below that of the first "
            f"switch ({s.switch_loss_high:g}), so both would happen at the same time. Use a lower value.",
        )
    bands = [("Switch", "switch_loss_low", s.switch_loss_low, s.switch_loss_high)]
    second = ("Second switch", "second_switch_loss_low", s.second_switch_loss_low, s.second_switch_loss_high)
    for name, key, low, high in [*bands, *[second] * s.switch_pairs]:
        if low > high:
            yield problem(
                key, f"{name} at loss: the lower bound {low:g} is above the upper bound {high:g}. Swap them."
            )


def _check_learning(settings: TrainingSettings) -> Iterator[Finding]:
    """Strength of the LoRA, learning rate, stopping and optimizer."""
    lora, rate, optimizer = settings.lora, settings.learning.learning_rate, settings.learning.optimizer
    if lora.strength > 4:
        yield advice(
            "alpha",
            f"The LoRA scaling {lora.strength:.3g} (alpha {lora.effective_alpha:g}, rank {lora.rank}), which "
            f"multiplies the LoRA's effect, is high. Try alpha {round(lora.effective_alpha / lora.strength)}.",
        )
    # A stronger LoRA changes the model more with each step, so that it diverges at a lower rate.
    lora_rate = MAX_LORA_RATE / max(1.0, lora.strength)
    max_rate, usual_rate = (MAX_FULL_RATE, 1e-5) if lora.whole_model else (lora_rate, 2e-4)
    if rate > max_rate:
        usual = f"the usual value ({usual_rate:g}), so training may diverge. Try {usual_rate:g}."
        yield advice("learning_rate", f"Learning Rate {rate:g} is far above {usual}")
    elif rate * lora.lora_plus > max_rate:
        yield advice(
            "learning_rate",
            f"LoRA+ {lora.lora_plus:g} raises the rate of the LoRA's B matrices to {rate * lora.lora_plus:g}, far "
            f"above the usual value ({usual_rate:g}), so training may diverge. Try a Learning Rate of "
            f"{max_rate / lora.lora_plus / 2:.0e}.",
        )
    first_losses = {"next_token": USUAL_FIRST_LOSS, "dpo": 0.69, "kto": 0.5}  # a preference run begins undecided
    if settings.stopping.stop_at_loss >= first_losses.get(settings.preferences.objective, USUAL_FIRST_LOSS):
        yield advice(
            "stop_at_loss",
            f"Stop at loss {settings.stopping.stop_at_loss:g}: many models start near or below this loss, and "
            "then the run ends within its first steps. Use a lower value, or 0 to turn this off.",
        )
    # Adam stores a mean and a variance for each weight; in 8 bits, each takes a byte instead of four.
    has_two_states = "adam" in optimizer and not any(suffix in optimizer for suffix in ("8bit", "4bit"))
    if lora.train_head and has_two_states:
        yield advice(
            "optimizer",
            "Train Head: for each weight of the embeddings and the output layer, the optimizer stores two "
            "additional values. An 8-bit optimizer (adamw_8bit) needs a quarter of that memory, or half if the "
            "model is loaded in 16 bits.",
        )


# What a row may ask beside the settings: the kinds of the data (text, rows, chats; empty: not known yet), and the
# device.
KINDS, ON_CPU = "data kinds", "on a CPU"
TEXT_KEYS = (
    *("chunking", "block_ends", "overlap", "dementor_repeats", "hard_cut", "min_chars"),
    *("drop_boilerplate", "join_lines"),
)
CHAT_KEYS = tuple(key for key in section_keys("rows") if key.startswith("chat_"))
SWITCH_KEYS = section_keys("switching")


@dataclass(frozen=True)
class NoEffect:
    """Settings without effect in runs where `holds`, because of `why`; Check names those not at their defaults."""

    keys: tuple[str, ...]
    why: str
    holds: Callable[[Mapping[str, Any]], bool]
    in_form: bool = False  # not hidden by the form, because they may still serve there
    neutral: Any = None  # the value that asks for nothing, if that is not the default


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
    NoEffect(CHAT_KEYS, "the dataset has no chats", lambda run: "chats" not in run[KINDS], in_form=True),
    NoEffect(TEXT_KEYS, "the dataset has no raw text", lambda run: run[KINDS] and "text" not in run[KINDS]),
    NoEffect(("split_exchanges", "train_on", "train_only_after", "label_smoothing", "neftune_noise"),
             "the objective compares whole replies", lambda run: run["objective"] != "next_token"),
    NoEffect(("train_on",), "'Train only after' overrides it", lambda run: run["train_only_after"], in_form=True),
    NoEffect(("overlap",), "DEMENTOR windows already overlap", lambda run: run["chunking"] == "dementor",
             neutral=False),
    NoEffect(("dementor_repeats",), "Chunking is not DEMENTOR", lambda run: run["chunking"] != "dementor"),
    NoEffect(("preferences", "beta", "preference_smoothing", "chosen_weight"), "Objective is Next token",
             lambda run: run["objective"] == "next_token"),
    NoEffect(("preference_smoothing",), "this objective doesn't use it",
             lambda run: run["objective"] not in ("dpo", "simpo")),
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
    NoEffect(("rank", "alpha", "dropout", "targets", "head_rate", "test_at_end"),
             "full fine-tuning trains no LoRA", lambda run: run["method"] == FULL_FINETUNE, in_form=True),
    NoEffect(("head_rate",), "Train Head is off and Modules to save is empty",
             lambda run: not run["train_head"] and run["modules_to_save"] == "none"),
    NoEffect(("shard_size",), "this run saves a LoRA, which is one file",
             lambda run: run["method"] != FULL_FINETUNE, in_form=True),
    NoEffect(("keep_checkpoints",), "no rule saves checkpoints",
             lambda run: run["keep_best"] == "no"
             and _has_none_of("save_every", "save_on_loss_drop", "save_each_epoch")(run), in_form=True),
    NoEffect(("stop_how",), "no rule stops the run early",
             _has_none_of("stop_at_loss", "stop_at_epoch", "early_stopping"), in_form=True),
    NoEffect(("sample_prompts", "sample_length", "sample_temperature"),
             "'Sample every' is never and you have to ask for samples",
             lambda run: run["sample_every"] == "never", in_form=True),
    NoEffect(("run_name",), "Report to is None", lambda run: run["report_to"] == "none"),
    NoEffect(("logging_first_step",), "'Log every' is auto", lambda run: run["logging_steps"] == "auto"),
    NoEffect(("tf32",), "it only affects float32 models on NVIDIA GPUs", lambda run: run[ON_CPU], in_form=True),
)  # fmt: skip
