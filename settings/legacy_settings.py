"""Settings files of the original Training PRO and of the webui's own tab, in our keys and values.

A table: which of their keys a row reads, and how our keys come from them. Values are converted, not only
renamed, so that an old run stays what it was; where a file is older than one of its program's keys, the row
says what that program did before it had the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Exists = Callable[[str], bool]
Pairs = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class Converted:
    """A file in our keys, and what is worth saying about the conversion."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def nothing_exists(_: str) -> bool:
    return False


def converted(values: Mapping[str, object], exists: Exists = nothing_exists) -> Converted:
    """The values in our keys: ours as they are, an older tab's converted.

    Older files name data without endings. `exists` says whether a name is there among the data sets; a name
    that ends in / is a folder.
    """
    if "micro_batch_size" not in values:
        return Converted(dict(values))
    old = _Old({k: v for k, v in values.items() if v is not None}, exists)
    ours = {key: value for row in _ROWS.values() for key, value in row(old)}
    notes = [note for remark in _REMARKS for note in remark(old)]
    return Converted(ours, tuple(notes))


@dataclass(frozen=True)
class _Old:
    """An older file, and how its values are read."""

    values: Mapping[str, object]
    exists: Exists

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def on(self, key: str, default: bool = False) -> bool:
        return str(self.values.get(key, default)).strip().lower() in ("true", "yes", "1")

    def name(self, key: str) -> str:
        """What is chosen in a menu; 'None' is their word for nothing."""
        value = str(self.values.get(key, "")).strip()
        return "" if value.lower() == "none" else value

    def number(self, key: str) -> float | None:
        """A number, also one kept as a text; None where there is none."""
        try:
            number = float(self.values[key])  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError):
            return None
        return number if math.isfinite(number) else None

    def steps(self, key: str) -> Any:
        """Their steps are batches: in ours, rounded up. What is no number is left for the checks to refuse."""
        batches = self.number(key)
        return self.values.get(key) if batches is None else math.ceil(batches / self.accumulation)

    @property
    def accumulation(self) -> int:
        whole, part = self.number("batch_size") or 0, self.number("micro_batch_size") or 0
        if whole > 0 and part > 0:
            return max(1, int(whole // part))
        return max(1, int(self.number("grad_accumulation") or 1))

    @property
    def webui(self) -> bool:
        """The webui's own tab, since it knows no raw text files; anything else is the original's kind."""
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
        """The file or folder that a name without an ending means, or nothing."""
        name = self.name(key)
        if not name:
            return ""
        found = (name + ending for ending in _ENDINGS[key] if self.exists(name + ending))
        return next(found, name + _ENDINGS[key][-1])


# Looked for in this order; the last one is taken where none is there.
_ENDINGS: Mapping[str, tuple[str, ...]] = {
    "raw_text_file": ("/", ".txt"),
    "text_dataset": (".json", "/", ".txt", ".json"),
    "datasetJSONL": (".jsonl",),
    "dataset": (".json",),
    "eval_datasetJSONL": (".jsonl",),
    "eval_dataset": (".json",),
}


def _as_it_is(theirs: str, ours: str) -> Callable[[_Old], Pairs]:
    def row(old: _Old) -> Pairs:
        if theirs in old:
            yield ours, old.values[theirs]

    return row


def _data(old: _Old) -> Pairs:
    if old.hybrid:
        shares = ((old.text, "hybrid_text_ratio"), (old.rows, "hybrid_data_ratio"))
        yield "data", [name for dataset, ratio in shares if (name := _shared(dataset, old.number(ratio)))]
    elif old.text or old.rows:
        yield "data", [old.text or old.rows]


def _shared(dataset: str, per_cent: float | None) -> str:
    """The data set with the share of it that is used; nothing of it is no data set."""
    if per_cent is None or per_cent >= 100:
        return dataset
    return f"{dataset}:{max(1, round(per_cent))}" if per_cent > 0 else ""


def _format(old: _Old) -> Pairs:
    if name := old.name("format"):
        yield "format", "chat" if name == "Chat Template" else name


def _evaluation(old: _Old) -> Pairs:
    """The evaluation data of the kind that is trained on; a text had none of its own."""
    kinds = [("eval_datasetJSONL", "eval_stepsJSONL"), ("eval_dataset", "eval_steps")]
    if old.rows:
        kinds = [kinds[0] if old.name("datasetJSONL") else kinds[1]]
    for data, steps in kinds:
        if dataset := old.dataset(data):
            yield "eval_data", dataset
            if steps in old:
                yield "eval_every", old.steps(steps)
            return


def _override(old: _Old) -> Pairs:
    if "always_override" in old:
        yield "if_exists", "replace" if old.on("always_override") else "continue"


def _chunking(old: _Old) -> Pairs:
    if "sliding_window" in old:
        yield "chunking", "dementor" if old.on("sliding_window") else "blocks"


def _overlap(old: _Old) -> Pairs:
    if "precize_slicing_overlap" in old:
        yield "overlap", old.values["precize_slicing_overlap"]
    elif "stride_length" in old:
        yield "overlap", (old.number("stride_length") or 0) > 0


def _end_token(old: _Old) -> Pairs:
    """Before the key there was no end token, before the type it stood at hard cuts."""
    if not old.on("add_eos_token"):
        yield "add_eos", "never"
    else:
        yield "add_eos", "every_block" if old.name("add_eos_token_type") == "Every Block" else "hard_cut"


def _too_long(old: _Old) -> Pairs:
    """Before the key the original shortened what was too long."""
    if old.on("eliminate_long_blocks") or old.name("excess_length") == "drop":
        yield "too_long", "drop_any"
    elif "eliminate_long_blocks" in old or "excess_length" in old or (old.rows and not old.webui):
        yield "too_long", "cut_end"


def _accumulation(old: _Old) -> Pairs:
    garbled = "grad_accumulation" in old and old.number("grad_accumulation") is None
    yield "accumulation", old.values["grad_accumulation"] if garbled else old.accumulation


def _learning_rate(old: _Old) -> Pairs:
    if "learning_rate" in old:
        rate = old.number("learning_rate")
        yield "learning_rate", old.values["learning_rate"] if rate is None else rate


def _schedule(old: _Old) -> Pairs:
    """Before the key it was linear; theirs `constant` knew no warm-up."""
    theirs = old.name("lr_scheduler_type") or ("cosine" if old.webui else "linear")
    yield "schedule", "constant" if theirs == "constant_with_warmup" else theirs
    warmup = old.steps("warmup_steps") or old.number("warmup_ratio") or 0
    yield "warmup_steps", 0 if theirs == "constant" else warmup


def _optimizer(old: _Old) -> Pairs:
    if name := old.name("optimizer"):
        yield "optimizer", "adamw_torch" if name in _GONE_OPTIMIZERS else name


def _strength(old: _Old) -> Pairs:
    if "lora_RS" in old:
        yield "rslora", old.on("lora_RS")
    alpha = "lora_RS_alpha" if old.on("lora_RS") and "lora_RS_alpha" in old else "lora_alpha"
    if alpha in old:
        yield "alpha", old.values[alpha]


def _targets(old: _Old) -> Pairs:
    """Before there was a choice the original took q and v, the webui's tab all linear layers."""
    if chosen := old.name("training_projection"):
        yield "targets", "all-linear" if chosen == "all" else chosen
    elif old.on("all_linear", default=old.webui):
        yield "targets", "all-linear"
    else:
        ticked = tuple(part for part in _PARTS if old.on(f"{part}_proj_en"))
        yield "targets", _KNOWN_TARGETS.get(ticked) or [f"{part}_proj" for part in ticked]


def _steps_between_checkpoints(old: _Old) -> Pairs:
    if "save_steps" in old:
        yield "save_every", old.steps("save_steps")


def _gradient_checkpointing(old: _Old) -> Pairs:
    for key in ("use_grad_checkpoint", "gradient_checkpointing"):
        if key in old:
            yield "gradient_checkpointing", "on" if old.on(key) else "off"


def _batching(old: _Old) -> Pairs:
    if "group_by_length" in old:
        yield "batching", "by_length" if old.on("group_by_length") else "shuffled"


def _report_to(old: _Old) -> Pairs:
    if "report_to" in old:
        yield "report_to", old.name("report_to") or "none"


_GONE_OPTIMIZERS = frozenset({"adamw_hf", "adamw_apex_fused", "adamw_anyprecision"})
_PARTS = ("q", "k", "v", "o", "gate", "down", "up")
_KNOWN_TARGETS: Mapping[tuple[str, ...], str] = {
    (): "q-v",
    ("q", "v"): "q-v",
    ("q", "k", "v"): "q-k-v",
    ("q", "k", "v", "o"): "q-k-v-o",
    ("k", "v", "down"): "k-v-down",
}
_RENAMED: Mapping[str, str] = {
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
_ROWS: Mapping[tuple[str, ...], Callable[[_Old], Pairs]] = {
    **{(theirs,): _as_it_is(theirs, ours) for theirs, ours in _RENAMED.items()},
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
    ("eval_datasetJSONL", "eval_dataset", "eval_stepsJSONL", "eval_steps"): _evaluation,
    ("always_override",): _override,
    ("sliding_window",): _chunking,
    ("precize_slicing_overlap", "stride_length"): _overlap,
    ("add_eos_token", "add_eos_token_type"): _end_token,
    ("eliminate_long_blocks", "excess_length"): _too_long,
    ("batch_size", "grad_accumulation"): _accumulation,
    ("learning_rate",): _learning_rate,
    ("lr_scheduler_type", "warmup_steps", "warmup_ratio"): _schedule,
    ("optimizer",): _optimizer,
    ("lora_alpha", "lora_RS", "lora_RS_alpha"): _strength,
    ("training_projection", "all_linear", *(f"{part}_proj_en" for part in _PARTS)): _targets,
    ("save_steps",): _steps_between_checkpoints,
    ("use_grad_checkpoint", "gradient_checkpointing"): _gradient_checkpointing,
    ("group_by_length",): _batching,
    ("report_to",): _report_to,
}
_WITHOUT_EFFECT = frozenset({"higher_rank_limit"})
_KNOWN = _WITHOUT_EFFECT.union(*_ROWS)


def _one_of_several(old: _Old) -> Iterator[str]:
    if old.text and old.rows and not old.hybrid:
        yield f"Data: {old.rows!r} stood in the file too, but the older program learned from {old.text!r} alone."


def _overlap_in_tokens(old: _Old) -> Iterator[str]:
    if "precize_slicing_overlap" not in old and (tokens := old.number("stride_length")):
        yield f"An overlap of {tokens:g} tokens became overlap blocks, which begin and end with sentences."


def _gone_optimizer(old: _Old) -> Iterator[str]:
    if (name := old.name("optimizer")) in _GONE_OPTIMIZERS:
        yield f"The optimizer {name!r} is gone; adamw_torch does the same."


def _other_curve(old: _Old) -> Iterator[str]:
    """What transformers calls by the same name and we draw differently."""
    theirs = old.name("lr_scheduler_type")
    if theirs == "polynomial":
        yield "Schedule 'polynomial': the older program's fell straight to 0, which is 'linear' here."
    elif theirs == "cosine_with_restarts":
        yield "Schedule 'cosine_with_restarts': the older program's never restarted, which is 'cosine' here."
    elif theirs == "inverse_sqrt" and not (old.number("warmup_steps") or old.number("warmup_ratio")):
        yield "Schedule 'inverse_sqrt': without warm-up the older program's hardly fell; 'constant' is nearer."


def _unknown(old: _Old) -> Iterator[str]:
    if unknown := [key for key in old.values if key not in _KNOWN]:
        yield f"Not known here, and ignored: {', '.join(sorted(unknown))}."


_REMARKS: tuple[Callable[[_Old], Iterator[str]], ...] = (
    _one_of_several,
    _overlap_in_tokens,
    _gone_optimizer,
    _other_curve,
    _unknown,
)
