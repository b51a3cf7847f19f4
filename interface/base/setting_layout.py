"""The place of each setting on the page: always visible, or in a folded part with a title."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from markupsafe import Markup

DataKind = Literal["text", "rows"]


# The order of a beginner's questions: what the run reads, how long, how strong, and how it is saved.
VISIBLE_ROWS: tuple[tuple[str, ...], ...] = (
    ("chunking", "hard_cut"),
    ("format", "train_on"),
    ("cutoff", "epochs"),
    ("learning_rate", "rank"),
    ("schedule",),
    ("batch_size", "accumulation"),
)
LORA_PART, LIVE_PART, MEMORY_PART = "LoRA", "Saving and stopping", "Memory and speed"
FOLDED_ROWS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "Text and tokens": (
        ("overlap", "dementor_repeats", "min_chars"),
        ("drop_boilerplate", "join_lines"),
        ("block_ends",),
        ("add_bos", "add_eos"),
        ("system",),
        ("train_only_after", "too_long"),
        ("source_max_len", "target_max_len"),
        ("bad_rows", "columns"),
        ("split_exchanges",),
    ),
    LORA_PART: (
        ("alpha", "dropout"),
        ("targets", "rslora"),
        ("dora", "lora_plus"),
        ("train_head", "head_rate"),
        ("modules_to_save", "bias", "layers_to_transform"),
    ),
    "Learning rate and optimizer": (
        ("warmup_steps", "max_steps"),
        ("optimizer", "weight_decay"),
        ("max_grad_norm", "label_smoothing", "neftune_noise"),
        ("adam_beta1", "adam_beta2", "adam_epsilon"),
    ),
    "Batch order": (
        ("batching",),
        ("switch_after", "switch_at", "switch_loss_low", "switch_loss_high"),
        ("switch_pairs", "second_switch_at", "second_switch_loss_low", "second_switch_loss_high"),
    ),
    "Validation and samples": (
        ("eval_share", "eval_every"),
        ("eval_data", "eval_batch_size"),
        ("recall_passages", "test_at_end"),
        ("sample_prompts",),
        ("sample_every", "sample_length", "sample_temperature"),
    ),
    LIVE_PART: (
        ("save_every", "save_on_loss_drop", "save_each_epoch"),
        ("backup_minutes", "keep_checkpoints", "keep_best"),
        ("stop_at_loss", "stop_at_epoch"),
        ("early_stopping", "stop_how"),
    ),
    MEMORY_PART: (
        ("packing", "gradient_checkpointing"),
        ("attention", "workers"),
        ("tf32", "liger", "compile"),
        ("method", "shard_size"),
    ),
    "Seed, logging, and sleep mode": (
        ("seed", "data_seed"),
        ("report_to", "run_name"),
        ("logging_steps", "logging_first_step", "keep_awake"),
    ),
}
# Folded parts that begin with a menu of presets, and the kind of these presets.
PRESET_TABLES = {LORA_PART: "loras", "Learning rate and optimizer": "optimizers"}
ALL_ROWS = (*VISIBLE_ROWS, *(row for rows in FOLDED_ROWS.values() for row in rows))


def part_id(title: str) -> str:
    """The element id of a folded part."""
    return "tp-part-" + re.sub(r"[^a-z]+", "-", title.lower())


def row_id(row: Sequence[str]) -> str:
    """The element id of a row of settings."""
    return f"tp-row-{row[0]}"


def hiding_style(keys: Collection[str]) -> Markup:
    """A style sheet that hides these settings, and rows without any visible setting."""
    if not keys:
        return Markup()
    # The settings are hidden, not removed, so their values stay in the form in every version of Gradio.
    selectors = [f"#tp-{key}" for key in sorted(keys)]
    selectors += [f"#{row_id(row)}" for row in ALL_ROWS if set(row) <= set(keys)]
    template = "{} {{display: none !important}} {} {{content: ' (not used with this dataset and these settings)'}}"
    links = [f'#tp-find-results [data-tp-go="{key}"]::after' for key in sorted(keys)]
    # Our own keys, with quotes that must stay: nothing to escape.
    return Markup("<style>{}</style>").format(Markup(template.format(", ".join(selectors), ", ".join(links))))
