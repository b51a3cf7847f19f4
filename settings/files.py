"""Settings files: write the settings of a run and read them back, so that the same run can be started again.

Files of other programs are converted, so that a run stays the same. Those of the original Training PRO and of the
webui's own tab may be older than one of their keys: then they get what their program did before it had the key. In
files with the names of PEFT and of optimizers, such as adapter_config.json and the configs of Void Trainer, each
key is converted, asks for nothing that a run does not do anyway, or stays, so that it is refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import SavingError, SettingsError
from ..core.files import descendant, read_small_file, with_retries
from ..core.model_shape import TARGET_CHOICES
from . import other_names
from .definitions import SETTINGS, TrainingSettings

SETTINGS_VERSION = 1

# Keys of the original and of the webui that are only renamed here.
RENAMED_KEYS: Mapping[str, str] = {
    "lora_name": "name",
    "lora_rank": "rank",
    "lora_dropout": "dropout",
    "lora_modulessave": "train_head",
    "cutoff_len": "cutoff",
    "hard_cut_string": "hard_cut",
    "min_chars": "min_chars",
    "add_bos_token": "add_bos",
    "micro_batch_size": "batch_size",
    "epochs": "epochs",
    "neft_noise_alpha": "neftune_noise",
    "train_only_after": "train_only_after",
    "stop_at_loss": "stop_at_loss",
    "stop_at_epoch": "stop_at_epoch",
    "save_steps_under_loss": "save_on_loss_drop",
}
# Keys that are a checkbox there and a choice here: our key, and its values for on and off.
SWITCHES: Mapping[str, tuple[str, str, str]] = {
    "always_override": ("if_exists", "replace", "continue"),
    "sliding_window": ("chunking", "dementor", "blocks"),
    "use_grad_checkpoint": ("gradient_checkpointing", "on", "off"),
    "gradient_checkpointing": ("gradient_checkpointing", "on", "off"),
    "group_by_length": ("batching", "by_length", "shuffled"),
}
PROJECTIONS = ("q", "k", "v", "o", "gate", "down", "up")
# Names that the older tabs offered; all of them are AdamW.
REMOVED_OPTIMIZERS = frozenset({"adamw_hf", "adamw_apex_fused", "adamw_anyprecision"})
# Old files name datasets without an extension. Tried in this order; the last one is used if none exists.
EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    "raw_text_file": ("/", ".txt"),
    "text_dataset": (".json", "/", ".txt", ".json"),
    "datasetJSONL": (".jsonl",),
    "dataset": (".json",),
    "eval_datasetJSONL": (".jsonl",),
    "eval_dataset": (".json",),
}
# Schedules that have the same name here but another curve: what theirs did, and ours with the same effect.
OTHER_CURVES = {
    "polynomial": ("'polynomial' was a linear decay to 0", "linear"),
    "cosine_with_restarts": ("'cosine_with_restarts' did the same as 'cosine'", "cosine"),
    "inverse_sqrt": ("'inverse_sqrt' without warmup hardly lowered the learning rate", "constant"),
}
KNOWN_KEYS = {
    *(*RENAMED_KEYS, *SWITCHES, *EXTENSIONS, "learning_rate", "save_steps", "report_to", "format"),
    *("hybrid_training", "hybrid_text_ratio", "hybrid_data_ratio", "eval_stepsJSONL", "eval_steps"),
    *("precize_slicing_overlap", "stride_length", "add_eos_token", "add_eos_token_type"),
    *("eliminate_long_blocks", "excess_length", "batch_size", "grad_accumulation"),
    *("lr_scheduler_type", "warmup_steps", "warmup_ratio", "optimizer"),
    *("lora_alpha", "lora_RS", "lora_RS_alpha", "training_projection", "all_linear", "higher_rank_limit"),
    *(f"{projection}_proj_en" for projection in PROJECTIONS),
}

# The same for PEFT and optimizers.
RENAMED: Mapping[str, str] = {
    "lr": "learning_rate", "eps": "adam_epsilon", "r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout",
    "target_modules": "targets", "use_rslora": "rslora", "use_dora": "dora",
}  # fmt: skip
BETAS = "betas"
# Keys that only a file of this kind has.
SIGNS = frozenset({*RENAMED, BETAS, "peft_type"})
ABOUT_THE_FILE = (
    *("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version", "megatron_core"),
    *("qalora_group_size", "runtime_config", "fan_in_fan_out"),  # PEFT finds out the last one itself
)
# Values of PEFT and of the optimizers that are those of a run anyway; `eps` is Adafactor's.
AS_HERE: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",), "task_type": ("CAUSAL_LM",), "init_lora_weights": (True,), "correct_bias": (True,),
    "clip_threshold": (1.0,), "decay_rate": (-0.8,), "optim_bits": (8,), "min_8bit_size": (4096,),
    "percentile_clipping": (100,), "block_wise": (True,), "eps": ([1e-30, 1e-3],), "is_paged": (True,),
    "momentum": (0,), "dampening": (0,),
}  # fmt: skip
# The optimizer that has one of these parameters, for files that do not name theirs.
OPTIMIZERS: Sequence[tuple[frozenset[str], str]] = (
    (frozenset({"scale_parameter", "relative_step", "warmup_init", "clip_threshold", "decay_rate"}), "adafactor"),
    (frozenset({"optim_bits", "min_8bit_size", "percentile_clipping", "block_wise", "is_paged"}), "adamw_8bit"),
    (frozenset({"momentum", "dampening", "nesterov"}), "sgd"),
    (frozenset({BETAS, "amsgrad", "correct_bias"}), "adamw_torch"),
)


@dataclass(frozen=True)
class LoadedSettings:
    """The values of a settings file in our keys, with notes on how they were read."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def as_file(settings: TrainingSettings) -> dict[str, Any]:
    """Return the content of training_parameters.json."""
    return {"made_by": "Training PRO", "settings_version": SETTINGS_VERSION, **settings.values()}


def load_settings(path: Path, datasets: Path | None = None) -> LoadedSettings:
    """Read a settings file: ours, or an older tab's, whose datasets are looked up in `datasets`."""
    return convert_values(read_object(path), f"{path.name}: ", datasets=datasets)


def convert_values(
    values: Mapping[str, object], place: str = "", *, datasets: Path | None = None
) -> LoadedSettings:
    """Do the same for values that are already parsed."""
    if (version := values.get("settings_version", SETTINGS_VERSION)) != SETTINGS_VERSION:
        newer = f"{place}a newer version of Training PRO saved these settings (settings version {version})."
        raise SettingsError([f"{newer} Update Training PRO."])
    settings = {key: value for key, value in values.items() if key not in ("made_by", "settings_version")}
    if "micro_batch_size" in values:
        return _convert_older_tab(settings, datasets)
    return LoadedSettings(_convert_library_keys(settings))


def read_object(path: Path, what: str = "a settings file") -> dict[str, Any]:
    """Read a file with a single JSON object; SettingsError says what else is in it."""
    try:
        # Bytes, so that json detects UTF-16: PowerShell writes it with >.
        values = json.loads(with_retries(lambda: read_small_file(path)))
    except OSError as error:
        raise SettingsError([f"{path} can't be read ({error.strerror}). Enter the path of {what}."]) from None
    except (ValueError, RecursionError) as error:
        raise SettingsError([f"{path} is not {what} ({error}). It must be a single JSON object."]) from None
    if not isinstance(values, dict):
        raise SettingsError([f"{path} is not {what}: it does not contain a JSON object, but it must be one."])
    return values


@dataclass(frozen=True)
class _OldFile:
    """The values of an older tab's file by their types; its datasets are looked up in a folder."""

    values: Mapping[str, object]
    datasets: Path | None

    def on(self, key: str, default: bool = False) -> bool:
        return str(self.values.get(key, default)).strip().lower() in ("true", "yes", "1")

    def name(self, key: str) -> str:
        """Return the choice of a menu; its entry 'None' means nothing."""
        value = str(self.values.get(key, "")).strip()
        return "" if value.lower() == "none" else value

    def number(self, key: str) -> float | None:
        """Return a number, even one stored as text, or None."""
        try:
            number = float(self.values[key])  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError):
            return None
        return number if math.isfinite(number) else None

    def dataset(self, *keys: str) -> str:
        """Return the file or folder that the first name in these keys means; a folder ends in /."""
        for key in keys:
            if not (name := self.name(key)):
                continue
            for extension in EXTENSIONS[key]:
                with suppress(SavingError):  # not the name of a dataset
                    stem = (name + extension).removesuffix("/")
                    path = self.datasets and descendant(self.datasets, stem, "Data", follow_links=True)
                    if path and (path.is_dir() if extension == "/" else path.is_file()):
                        return name + extension
            return name + EXTENSIONS[key][-1]
        return ""


def _convert_older_tab(values: Mapping[str, object], datasets: Path | None) -> LoadedSettings:
    """Convert the values of a file of the original Training PRO or of the webui's own tab."""
    old = _OldFile({key: value for key, value in values.items() if value is not None}, datasets)
    # The webui's own tab has no raw text files and no accumulation, and trains rows and layers in another way.
    original = "raw_text_file" in old.values or "grad_accumulation" in old.values
    is_webui = not original and ("all_linear" in old.values or "text_dataset" in old.values)
    new = {ours: old.values[theirs] for theirs, ours in RENAMED_KEYS.items() if theirs in old.values}
    for theirs, (ours, on, off) in SWITCHES.items():
        if theirs in old.values:
            new[ours] = on if old.on(theirs) else off
    notes = _convert_data(old, new, is_webui)
    notes += _convert_steps(old, new, is_webui)
    _convert_lora(old, new, is_webui)
    if unknown := sorted(old.values.keys() - KNOWN_KEYS):
        notes.append(f"These keys are unknown and were ignored: {', '.join(unknown)}.")
    return LoadedSettings(new, tuple(notes))


def _convert_data(old: _OldFile, new: dict[str, Any], is_webui: bool) -> list[str]:
    """Add the datasets and how they are read to `new`; return notes."""
    notes = []
    text, rows = old.dataset("raw_text_file", "text_dataset"), old.dataset("datasetJSONL", "dataset")
    if text and rows and old.on("hybrid_training"):
        new["data"] = []
        for dataset, ratio in ((text, "hybrid_text_ratio"), (rows, "hybrid_data_ratio")):
            per_cent = old.number(ratio)
            if per_cent is None or per_cent >= 100:
                new["data"].append(dataset)
            elif per_cent > 0:
                new["data"].append(f"{dataset}:{max(1, round(per_cent))}")
    elif text or rows:
        new["data"] = [text or rows]
        if text and rows:
            notes.append(
                f"Dataset: {rows!r} is ignored, because the program that saved these settings trained only on "
                f"{text!r}."
            )
    if name := old.name("format"):
        new["format"] = "chat" if name == "Chat Template" else name
    if rows and not is_webui and not old.name("train_only_after"):
        new["train_on"] = "everything"  # the original learned whole rows
    # The evaluation data must be of the kind that is trained on; raw texts had none.
    kinds = [("eval_datasetJSONL", "eval_stepsJSONL"), ("eval_dataset", "eval_steps")]
    if rows:
        kinds = kinds[:1] if old.name("datasetJSONL") else kinds[1:]
    for key, steps in kinds:
        if dataset := old.dataset(key):
            new["eval_data"] = dataset
            if steps in old.values:
                new["eval_every"] = _steps(old, steps)
            break
    if "precize_slicing_overlap" in old.values:
        new["overlap"] = old.values["precize_slicing_overlap"]
    elif "stride_length" in old.values:
        tokens = old.number("stride_length") or 0
        new["overlap"] = tokens > 0
        if tokens:
            notes.append(f"The overlap of {tokens:g} tokens was replaced by overlap blocks of whole sentences.")
    # Before the key existed there was no end token; before its type existed it was put at hard cuts.
    new["add_eos"] = "every_block" if old.name("add_eos_token_type") == "Every Block" else "hard_cut"
    if not old.on("add_eos_token"):
        new["add_eos"] = "never"
    # Before the key existed the original truncated rows that were too long.
    if old.on("eliminate_long_blocks") or old.name("excess_length") == "drop":
        new["too_long"] = "drop_any"
    elif "eliminate_long_blocks" in old.values or "excess_length" in old.values or (rows and not is_webui):
        new["too_long"] = "cut_end"
    return notes


def _convert_steps(old: _OldFile, new: dict[str, Any], is_webui: bool) -> list[str]:
    """Add batches, learning rate, optimizer and saving to `new`; return notes. What is no number stays."""
    notes = []
    new["accumulation"] = _accumulation(old)
    if "learning_rate" in old.values:
        rate = old.number("learning_rate")
        new["learning_rate"] = old.values["learning_rate"] if rate is None else rate
    if "save_steps" in old.values:
        new["save_every"] = _steps(old, "save_steps")
    if "report_to" in old.values:
        new["report_to"] = old.name("report_to") or "none"
    # Before the key existed the schedule was linear; their `constant` had no warmup.
    schedule = old.name("lr_scheduler_type") or ("cosine" if is_webui else "linear")
    warmup = _steps(old, "warmup_steps") or old.number("warmup_ratio") or 0
    new["schedule"] = "constant" if schedule == "constant_with_warmup" else schedule
    new["warmup_steps"] = 0 if schedule == "constant" else warmup
    if isinstance(new["warmup_steps"], float) and 0 < new["warmup_steps"] < 1:
        notes.append("Warmup Steps: a share is at most 100 steps here, and one epoch. For more, enter the steps.")
    if name := old.name("optimizer"):
        new["optimizer"] = "adamw_torch" if name in REMOVED_OPTIMIZERS else name
        if name in REMOVED_OPTIMIZERS:
            notes.append(
                f"Optimizer: {name!r} no longer exists and was replaced by adamw_torch, which does the same."
            )
    if schedule in OTHER_CURVES and not (schedule == "inverse_sqrt" and warmup):
        theirs, same = OTHER_CURVES[schedule]
        notes.append(
            f"LR Scheduler: in the program that saved these settings, {theirs}. For the same effect, use {same!r}."
        )
    return notes


def _convert_lora(old: _OldFile, new: dict[str, Any], is_webui: bool) -> None:
    if "lora_RS" in old.values:
        new["rslora"] = old.on("lora_RS")
    alpha = "lora_RS_alpha" if old.on("lora_RS") and "lora_RS_alpha" in old.values else "lora_alpha"
    if alpha in old.values:
        new["alpha"] = old.values[alpha]
    # Before there was a choice the original trained q and v, the webui's tab all linear layers.
    if choice := old.name("training_projection"):
        new["targets"] = "all-linear" if choice == "all" else choice
    elif old.on("all_linear", default=is_webui):
        new["targets"] = "all-linear"
    else:
        ticked = tuple(projection for projection in PROJECTIONS if old.on(f"{projection}_proj_en"))
        names = {layers: name for name, layers in TARGET_CHOICES.items()}
        new["targets"] = names.get(ticked or ("q", "v")) or [f"{projection}_proj" for projection in ticked]


def _accumulation(old: _OldFile) -> int:
    batch_size, micro_batch_size = old.number("batch_size") or 0, old.number("micro_batch_size") or 0
    if batch_size > 0 and micro_batch_size > 0:
        return max(1, int(batch_size // micro_batch_size))
    return max(1, int(old.number("grad_accumulation") or 1))


def _steps(old: _OldFile, key: str) -> Any:
    """Older tabs count micro-batches as steps. What is no number stays, so that the checks refuse it."""
    micro_batches = old.number(key)
    return old.values.get(key) if micro_batches is None else math.ceil(micro_batches / _accumulation(old))


def _convert_library_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of a file with names of PEFT or of an optimizer; those of others stay unchanged."""
    if SIGNS.isdisjoint(values):
        return dict(values)
    converted: dict[str, Any] = {}
    for key, value in values.items():
        ours = RENAMED.get(key, key)
        is_off = value is False and ours not in SETTINGS
        nothing = (None, {}, [], *[""] * (key not in SETTINGS), *AS_HERE.get(key, ()))
        if key in ABOUT_THE_FILE or is_off or value in nothing:
            continue  # asks for nothing else than what a run does
        if key == BETAS and isinstance(value, list) and len(value) == 2:
            converted["adam_beta1"], converted["adam_beta2"] = value
        elif key == "layers_to_transform":
            converted[key] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        elif key == "optimizer":
            converted[key] = other_names.our_value(key, value) or value
        else:
            converted[key if ours in values else ours] = value  # with both names, theirs stays and is refused
    if "optimizer" not in values and (name := next((o for keys, o in OPTIMIZERS if keys & values.keys()), "")):
        converted["optimizer"] = f"paged_{name}" if values.get("is_paged") else name
    return converted
