"""Conversion of settings files of the original Training PRO and of the webui's own tab.

`_CONVERTERS` maps old keys to functions that yield our keys and values. Values are converted, not only renamed,
so that an old run stays what it was. If a file is older than a key of its program, the converter yields what that
program did before it had the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Exists = Callable[[str], bool]
Pairs = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class LoadedSettings:
    """The values of a settings file in our keys, with notes on how they were read."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def convert_settings(values: Mapping[str, object], exists: Exists = lambda _: False) -> LoadedSettings:
    """Convert the values of an older tab's file; values of our own files are returned unchanged.

    Older files name datasets without a file extension. `exists` says whether a dataset of a name exists; a name
    that ends in / is a folder.
    """
    if "micro_batch_size" not in values:
        return LoadedSettings(dict(values))
    old = _OldFile({k: v for k, v in values.items() if v is not None}, exists)
    converted_values = {key: value for convert in _CONVERTERS.values() for key, value in convert(old)}
    notes = [note for rule in _NOTE_RULES for note in rule(old)]
    return LoadedSettings(converted_values, tuple(notes))


@dataclass(frozen=True)
class _OldFile:
    """Typed access to the values of an older file."""

    values: Mapping[str, object]
    exists: Exists

    def __contains__(self, key: str) -> bool:
        return key in self.values

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

    def number_or_text(self, key: str) -> Any:
        """Return a number, or what stands there instead, so that the checks refuse it."""
        number = self.number(key)
        return self.values.get(key) if number is None else number

    def steps(self, key: str) -> Any:
        """Convert micro-batches, which older tabs call steps, to steps, rounded up.

        A value that is not a number is returned as it is, so that the checks refuse it.
        """
        micro_batches = self.number(key)
        return self.values.get(key) if micro_batches is None else math.ceil(micro_batches / self.accumulation)

    @property
    def accumulation(self) -> int:
        batch_size, micro_batch_size = self.number("batch_size") or 0, self.number("micro_batch_size") or 0
        if batch_size > 0 and micro_batch_size > 0:
            return max(1, int(batch_size // micro_batch_size))
        return max(1, int(self.number("grad_accumulation") or 1))

    @property
    def webui(self) -> bool:
        """Whether the file is of the webui's own tab, which has no raw text files, and not of the original."""
        original = "raw_text_file" in self or "grad_accumulation" in self
        return not original and ("all_linear" in self or "text_dataset" in self)

    @property
    def text(self) -> str:
        return self.dataset("raw_text_file") or self.dataset("text_dataset")

    @property
    def rows(self) -> str:
        return self.dataset("datasetJSONL") or self.dataset("dataset")

    @property
    def hybrid(self) -> bool:
        return bool(self.on("hybrid_training") and self.text and self.rows)

    def dataset(self, key: str) -> str:
        """Return the file or folder that a name without an extension means, or an empty string."""
        name = self.name(key)
        if not name:
            return ""
        candidates = (name + extension for extension in _EXTENSIONS[key] if self.exists(name + extension))
        return next(candidates, name + _EXTENSIONS[key][-1])


# Tried in this order; the last one is used if none exists.
_EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    "raw_text_file": ("/", ".txt"),
    "text_dataset": (".json", "/", ".txt", ".json"),
    "datasetJSONL": (".jsonl",),
    "dataset": (".json",),
    "eval_datasetJSONL": (".jsonl",),
    "eval_dataset": (".json",),
}


def _one_key(old_key: str, new_key: str, value: Callable[[_OldFile, str], Any]) -> Callable[[_OldFile], Pairs]:
    """Converter of a key that decides another one alone."""

    def convert(old: _OldFile) -> Pairs:
        if old_key in old:
            yield new_key, value(old, old_key)

    return convert


def _choice(on: str, off: str) -> Callable[[_OldFile, str], str]:
    return lambda old, key: on if old.on(key) else off


def _data(old: _OldFile) -> Pairs:
    if old.hybrid:
        shares = ((old.text, "hybrid_text_ratio"), (old.rows, "hybrid_data_ratio"))
        yield "data", [name for dataset, ratio in shares if (name := _with_share(dataset, old.number(ratio)))]
    elif old.text or old.rows:
        yield "data", [old.text or old.rows]


def _with_share(dataset: str, per_cent: float | None) -> str:
    """Return the dataset with its share in percent, or an empty string for a share of 0."""
    if per_cent is None or per_cent >= 100:
        return dataset
    return f"{dataset}:{max(1, round(per_cent))}" if per_cent > 0 else ""


def _format(old: _OldFile) -> Pairs:
    if name := old.name("format"):
        yield "format", "chat" if name == "Chat Template" else name


def _eval_data(old: _OldFile) -> Pairs:
    """Use the evaluation data of the kind that is trained on; raw texts had no evaluation data."""
    kinds = [("eval_datasetJSONL", "eval_stepsJSONL"), ("eval_dataset", "eval_steps")]
    if old.rows:
        kinds = [kinds[0] if old.name("datasetJSONL") else kinds[1]]
    for data, steps in kinds:
        if dataset := old.dataset(data):
            yield "eval_data", dataset
            if steps in old:
                yield "eval_every", old.steps(steps)
            return


def _overlap(old: _OldFile) -> Pairs:
    if "precize_slicing_overlap" in old:
        yield "overlap", old.values["precize_slicing_overlap"]
    elif "stride_length" in old:
        yield "overlap", (old.number("stride_length") or 0) > 0


def _end_token(old: _OldFile) -> Pairs:
    """Before the key existed there was no end token; before its type existed it was put at hard cuts."""
    if not old.on("add_eos_token"):
        yield "add_eos", "never"
    else:
        yield "add_eos", "every_block" if old.name("add_eos_token_type") == "Every Block" else "hard_cut"


def _too_long(old: _OldFile) -> Pairs:
    """Before the key existed the original truncated rows that were too long."""
    if old.on("eliminate_long_blocks") or old.name("excess_length") == "drop":
        yield "too_long", "drop_any"
    elif "eliminate_long_blocks" in old or "excess_length" in old or (old.rows and not old.webui):
        yield "too_long", "cut_end"


def _accumulation(old: _OldFile) -> Pairs:
    is_number = "grad_accumulation" not in old or old.number("grad_accumulation") is not None
    yield "accumulation", old.accumulation if is_number else old.values["grad_accumulation"]


def _schedule(old: _OldFile) -> Pairs:
    """Before the key existed the schedule was linear; their `constant` had no warm-up."""
    name = old.name("lr_scheduler_type") or ("cosine" if old.webui else "linear")
    yield "schedule", "constant" if name == "constant_with_warmup" else name
    warmup = old.steps("warmup_steps") or old.number("warmup_ratio") or 0
    yield "warmup_steps", 0 if name == "constant" else warmup


def _optimizer(old: _OldFile) -> Pairs:
    if name := old.name("optimizer"):
        yield "optimizer", "adamw_torch" if name in _REMOVED_OPTIMIZERS else name


def _strength(old: _OldFile) -> Pairs:
    if "lora_RS" in old:
        yield "rslora", old.on("lora_RS")
    alpha_key = "lora_RS_alpha" if old.on("lora_RS") and "lora_RS_alpha" in old else "lora_alpha"
    if alpha_key in old:
        yield "alpha", old.values[alpha_key]


def _targets(old: _OldFile) -> Pairs:
    """Before there was a choice the original trained q and v, the webui's tab all linear layers."""
    if choice := old.name("training_projection"):
        yield "targets", "all-linear" if choice == "all" else choice
    elif old.on("all_linear", default=old.webui):
        yield "targets", "all-linear"
    else:
        projections = tuple(projection for projection in _PROJECTIONS if old.on(f"{projection}_proj_en"))
        yield "targets", _TARGET_NAMES.get(projections) or [f"{projection}_proj" for projection in projections]


_REMOVED_OPTIMIZERS = frozenset({"adamw_hf", "adamw_apex_fused", "adamw_anyprecision"})
_PROJECTIONS = ("q", "k", "v", "o", "gate", "down", "up")
_TARGET_NAMES: Mapping[tuple[str, ...], str] = {
    (): "q-v",
    ("q", "v"): "q-v",
    ("q", "k", "v"): "q-k-v",
    ("q", "k", "v", "o"): "q-k-v-o",
    ("k", "v", "down"): "k-v-down",
}
_RENAMED_KEYS: Mapping[str, str] = {
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
_CONVERTED_KEYS: Mapping[str, tuple[str, Callable[[_OldFile, str], Any]]] = {
    **{old_key: (new_key, lambda old, key: old.values[key]) for old_key, new_key in _RENAMED_KEYS.items()},
    "always_override": ("if_exists", _choice("replace", "continue")),
    "sliding_window": ("chunking", _choice("dementor", "blocks")),
    "learning_rate": ("learning_rate", _OldFile.number_or_text),
    "save_steps": ("save_every", _OldFile.steps),
    "use_grad_checkpoint": ("gradient_checkpointing", _choice("on", "off")),
    "gradient_checkpointing": ("gradient_checkpointing", _choice("on", "off")),
    "group_by_length": ("batching", _choice("by_length", "shuffled")),
    "report_to": ("report_to", lambda old, key: old.name(key) or "none"),
}
_CONVERTERS: Mapping[tuple[str, ...], Callable[[_OldFile], Pairs]] = {
    **{(old_key,): _one_key(old_key, *rule) for old_key, rule in _CONVERTED_KEYS.items()},
    (
        "raw_text_file",
        "text_dataset",
        "datasetJSONL",
        "dataset",
        "hybrid_training",
        "hybrid_text_ratio",
        "hybrid_data_ratio",
    ): _data,
    ("format",): _format,
    ("eval_datasetJSONL", "eval_dataset", "eval_stepsJSONL", "eval_steps"): _eval_data,
    ("precize_slicing_overlap", "stride_length"): _overlap,
    ("add_eos_token", "add_eos_token_type"): _end_token,
    ("eliminate_long_blocks", "excess_length"): _too_long,
    ("batch_size", "grad_accumulation"): _accumulation,
    ("lr_scheduler_type", "warmup_steps", "warmup_ratio"): _schedule,
    ("optimizer",): _optimizer,
    ("lora_alpha", "lora_RS", "lora_RS_alpha"): _strength,
    ("training_projection", "all_linear", *(f"{projection}_proj_en" for projection in _PROJECTIONS)): _targets,
}
_IGNORED_KEYS = frozenset({"higher_rank_limit"})
_KNOWN_KEYS = _IGNORED_KEYS.union(*_CONVERTERS)


def _unused_dataset(old: _OldFile) -> Iterator[str]:
    if old.text and old.rows and not old.hybrid:
        yield (
            f"Dataset: {old.rows!r} is ignored, because the program that saved these settings "
            f"trained only on {old.text!r}."
        )


def _overlap_in_tokens(old: _OldFile) -> Iterator[str]:
    if "precize_slicing_overlap" not in old and (tokens := old.number("stride_length")):
        yield f"The overlap of {tokens:g} tokens was replaced by overlap blocks, which consist of whole sentences."


def _removed_optimizer(old: _OldFile) -> Iterator[str]:
    if (name := old.name("optimizer")) in _REMOVED_OPTIMIZERS:
        yield f"Optimizer: {name!r} no longer exists and was replaced by adamw_torch, which does the same."


def _different_schedule(old: _OldFile) -> Iterator[str]:
    """Schedules that have the same name in transformers but another curve here."""
    name = old.name("lr_scheduler_type")
    if name == "polynomial":
        yield (
            "LR Scheduler: in the program that saved these settings, 'polynomial' was a linear decay to 0. For "
            "the same effect, use 'linear'."
        )
    elif name == "cosine_with_restarts":
        yield (
            "LR Scheduler: in the program that saved these settings, 'cosine_with_restarts' did the same "
            "as 'cosine'. For the same effect, use 'cosine'."
        )
    elif name == "inverse_sqrt" and not (old.number("warmup_steps") or old.number("warmup_ratio")):
        yield (
            "LR Scheduler: in the program that saved these settings, 'inverse_sqrt' without warmup hardly lowered "
            "the learning rate. For the same effect, use 'constant'."
        )


def _unknown_keys(old: _OldFile) -> Iterator[str]:
    if keys := [key for key in old.values if key not in _KNOWN_KEYS]:
        yield f"These keys are unknown and were ignored: {', '.join(sorted(keys))}."


_NOTE_RULES: tuple[Callable[[_OldFile], Iterator[str]], ...] = (
    _unused_dataset,
    _overlap_in_tokens,
    _removed_optimizer,
    _different_schedule,
    _unknown_keys,
)
