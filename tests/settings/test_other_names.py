"""The search field finds settings by old names and the words of users, and the reference has every setting."""

import json

from training_pro.settings import flags, other_names
from training_pro.settings.definitions import SECTIONS, SETTINGS
from training_pro.tests.conftest import ROOT

QUERIES = {
    "lora_name": "name", "raw_text_file": "data", "override": "if_exists", "cutoff_len": "cutoff",
    "sliding_window": "chunking", "stride_length": "overlap", "hard_cut_string": "hard_cut", "add eos": "add_eos",
    "Train Only After": "train_only_after", "excess length": "too_long", "micro batch size": "batch_size",
    "grad_accumulation": "accumulation", "gradient_accumulation_steps": "accumulation", "hybrid": "batching",
    "num_train_epochs": "epochs", "constant_with_warmup": "schedule", "warmup_ratio": "warmup_steps",
    "optim": "optimizer", "LLaMA target projections": "targets", "q_proj_en": "targets", "verify": "check",
    "Copy parameters from": "start-from", "save_steps_under_loss": "save_on_loss_drop",
    "book": "data", "csv": "data", "out of memory": "gradient_checkpointing", "system prompt": "system",
    "overwrite": "if_exists", "memorize": "chunking", "chapters": "hard_cut", "model does not stop": "add_eos",
    "mask prompt": "train_on", "overfitting": "eval_share", "LR": "learning_rate", "strength": "alpha",
    "disk space": "keep_checkpoints", "full finetune": "method", "flash attention": "attention",
    "target selector": "targets", "EOS to hard cut only": "add_eos", "virtual batch size": "accumulation",
    "stop loss": "stop_at_loss", "PRTS": "chunking", "precise raw text slicer": "chunking",
}  # fmt: skip
"""Old names, words of users, and words of the manual of the original Training PRO."""


def test_the_words_of_users_find_a_setting_among_the_first_three():
    found = {query: [named.key for named in other_names.find_settings(query)[:3]] for query in QUERIES}
    assert [(query, key, found[query]) for query, key in QUERIES.items() if key not in found[query]] == []


def test_every_label_finds_its_setting_first():
    for key, setting in SETTINGS.items():
        assert key in [named.key for named in other_names.find_settings(setting.label)[:2]], setting.label


def test_a_query_without_an_answer_gives_none():
    for query in ("", "   ", "?!", "zzzzqqqq", "a" * 10_000, "\ud800", "."):
        assert other_names.find_settings(query) == []


def test_every_setting_has_another_name_and_no_key_is_misspelled():
    named = {one.key: one for one in other_names.load_names()}
    assert [key for key in SETTINGS if not named[key].names] == [], "add a name in settings/other_names.json"
    tables = json.loads((ROOT / "settings" / "other_names.json").read_text("utf-8"))
    assert set(tables["settings"]) <= set(SETTINGS)


def test_the_page_has_one_row_for_every_setting_in_its_section():
    page = flags.render_markdown()
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == written, "run: python3 script.py settings > docs/settings.md"
    parts = page.split("\n## ")[1:]
    for section, part in zip(SECTIONS, parts, strict=True):
        rows = [line for line in part.splitlines() if line.startswith("| `")]
        assert [row.split("`")[1] for row in rows] == [k for k, s in SETTINGS.items() if s.section == section]
        assert {row.replace("\\|", "").count("|") for row in rows} == {6}
    cutoff = SETTINGS["cutoff"]
    assert f"| `cutoff` | {cutoff.label} | `auto` | auto or 16 to 131072 | {cutoff.help} |" in page


def test_as_json_has_one_plain_object_a_setting_with_its_bounds_and_choices():
    entries = {entry["key"]: entry for entry in flags.as_json()}
    assert list(entries) == list(SETTINGS) and json.loads(json.dumps(entries)) == entries
    for entry in entries.values():
        assert {"key", "label", "section", "kind", "default", "live", "help"} <= entry.keys()
    cutoff, name = entries["cutoff"], entries["name"]
    assert (cutoff["minimum"], cutoff["maximum"], cutoff["words"]) == (16, 131072, ["auto"])
    assert entries["add_eos"]["choices"] == ["hard_cut", "every_block", "never"]
    assert not {"minimum", "maximum", "choices", "words"} & name.keys() and "choices" not in cutoff
