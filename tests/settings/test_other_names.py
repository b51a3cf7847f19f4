"""The search field finds settings by their old names and by the words of users."""

import json

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import other_names
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.tests.conftest import ROOT

OLD_NAMES = {
    "lora_name": "name", "raw_text_file": "data", "datasetJSONL": "data", "text_dataset": "data",
    "override": "if_exists", "always_override": "if_exists", "cutoff_len": "cutoff", "max_seq_length": "cutoff",
    "dataset_max_line_length": "cutoff", "sliding_window": "chunking", "precize_slicing_overlap": "overlap",
    "stride_length": "overlap", "hard_cut_string": "hard_cut", "add eos": "add_eos", "add_bos_token": "add_bos",
    "Train Only After": "train_only_after", "eliminate_long_blocks": "too_long", "excess length": "too_long",
    "eval_stepsJSONL": "eval_every", "micro batch size": "batch_size", "per_device_train_batch_size": "batch_size",
    "grad_accumulation": "accumulation", "gradient_accumulation_steps": "accumulation", "hybrid": "batching",
    "num_train_epochs": "epochs", "group_by_length": "batching", "lr_scheduler_type": "schedule",
    "constant_with_warmup": "schedule", "warmup_ratio": "warmup_steps", "neft_noise_alpha": "neftune_noise",
    "AdamW_S_NS": "optimizer", "optim": "optimizer", "LLaMA target projections": "targets",
    "q_proj_en": "targets", "target_modules": "targets", "modules_to_save": "train_head", "use_dora": "dora",
    "save_steps": "save_every", "save_steps_under_loss": "save_on_loss_drop", "verify": "check",
    "Copy parameters from": "start-from", "Shard checkpoint size": "shard_size",
    "save_total_limit": "keep_checkpoints",
}  # fmt: skip
WORDS = {
    "book": "data", "csv": "data", "out of memory": "gradient_checkpointing",
    "save vram": "gradient_checkpointing", "system prompt": "system", "alpaca": "format", "chatml": "format",
    "overwrite": "if_exists", "resume": "if_exists", "memorize": "chunking", "chapters": "hard_cut",
    "separator": "hard_cut", "stop token": "add_eos", "model does not stop": "add_eos", "lines": "block_ends",
    "short blocks": "min_chars", "mask prompt": "train_on", "truncate": "too_long",
    "overfitting": "eval_share", "how long": "epochs",
    "LR": "learning_rate", "cosine": "schedule", "annealing": "schedule",
    "gradient clipping": "max_grad_norm", "8-bit optimizer": "optimizer", "strength": "alpha",
    "size of the lora": "rank", "new language": "train_head", "best checkpoint": "keep_best",
    "disk space": "keep_checkpoints", "preview": "sample_prompts", "wandb": "report_to",
    "sleep": "keep_awake", "flash attention": "attention", "random": "seed", "full finetune": "method",
}  # fmt: skip
MANUAL = {
    "target selector": "targets", "q k v o": "targets", "guanaco": "targets", "EOS": "add_eos",
    "EOS to hard cut only": "add_eos", "BOS": "add_bos", "virtual batch size": "accumulation",
    "true batch size": "batch_size", "stop loss": "stop_at_loss", "warmup steps": "warmup_steps",
    "save every n steps": "save_every", "checkpoint auto saving": "save_every", "cutoff_length": "cutoff",
    "PRTS": "chunking", "precise raw text slicer": "chunking", "DEMENTOR": "chunking",
    "custom scheduler": "schedule", "FP_low_epoch_annealing": "schedule", "check dataset": "check",
}  # fmt: skip
"""Words of the manual of the original Training PRO."""
QUERIES = [*OLD_NAMES.items(), *WORDS.items(), *MANUAL.items()]


def test_the_words_of_users_find_a_setting_among_the_first_three():
    assert len(QUERIES) >= 90
    found = {query: [named.key for named in other_names.find_settings(query)[:3]] for query, _ in QUERIES}
    assert [(query, key, found[query]) for query, key in QUERIES if key not in found[query]] == []


def test_every_label_finds_its_setting_first():
    for key, setting in SETTINGS.items():
        assert key in [named.key for named in other_names.find_settings(setting.label)[:2]], setting.label


def test_a_query_without_an_answer_gives_none():
    for query in ("", "   ", "?!", "zzzzqqqq", "a" * 10_000, "\ud800", "."):
        assert other_names.find_settings(query) == []


def test_every_setting_has_another_name_and_no_key_is_misspelled():
    named = {one.key: one for one in other_names.load_names()}
    assert [key for key in SETTINGS if not named[key].names] == []
    tables = json.loads((ROOT / "settings" / "other_names.json").read_text("utf-8"))
    assert set(tables["settings"]) <= set(SETTINGS)
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    assert page.strip() == other_names.render_markdown().strip()


def test_a_foreign_value_or_key_is_refused_with_ours():
    for values, words in (
        ({"schedule": "constant_with_warmup"}, "'constant_with_warmup' is called 'constant' in Training PRO."),
        ({"cutoff_len": 256}, "Unknown setting 'cutoff_len'. In Training PRO, it is called 'cutoff'."),
    ):
        with pytest.raises(SettingsError) as refused:
            training_settings({"name": "a", "data": ["a.txt"], **values})
        assert words in str(refused.value)


def test_our_own_values_are_never_foreign():
    for key, setting in SETTINGS.items():
        assert [value for value in setting.choices if other_names.our_value(key, value)] == []
