"""The tables of optimizer and LoRA presets: all rows are valid, and a file of the user adds rows."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import presets
from training_pro.settings.parsing import training_settings


@pytest.mark.parametrize("kind", presets.TABLES)
def test_every_row_makes_settings(kind, tmp_path):
    rows = presets.load_table(kind, tmp_path)
    for row in rows:
        training_settings({"name": "a", "data": ["x.txt"], **row.values})
        assert presets.find_preset(row.name, tmp_path) == row


def test_each_preset_has_four_sizes(tmp_path):
    names = [row.name for kind in presets.TABLES for row in presets.load_table(kind, tmp_path)]
    kinds = ("adamw", "adafactor", "adamw8bit", "lora-8bit", "lora-4bit")
    assert names == [f"{kind}-{size}" for kind in kinds for size in ("s", "m", "l", "xl")]


def write(folder, text):
    (folder / "optimizers.json").write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")


def test_a_file_of_the_users_adds_rows_and_is_no_preset_itself(tmp_path):
    write(tmp_path, {"mine": {"values": {"optimizer": "sgd"}}, "adamw-s": {"values": {"learning_rate": 1e-3}}})
    rows = {row.name: row for row in presets.load_table("optimizers", tmp_path)}
    assert rows["mine"].values == {"optimizer": "sgd"}
    assert rows["adamw-s"].values == {"learning_rate": 1e-3}
    assert presets.own_names(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not a preset file"),
        ({"mine": 3}, "'mine': the values are missing"),
        (
            {"mine": {"values": {"lerning_rate": 1}}},
            "'mine': Unknown setting 'lerning_rate'. Did you mean 'learning_rate'?",
        ),
        ({"mine": {"values": {"learning_rate": "fast"}}}, "'mine': Learning Rate: 'fast' is not a number."),
    ],
)
def test_an_invalid_table_is_named_with_its_row(tmp_path, text, sentence):
    write(tmp_path, text)
    with pytest.raises(SettingsError) as error:
        presets.load_table("optimizers", tmp_path)
    assert sentence in str(error.value)
    assert "optimizers.json" in str(error.value)


def test_a_broken_table_does_not_affect_other_presets(tmp_path):
    (tmp_path / "optimizers.json").write_text("{")
    assert presets.find_preset("style", tmp_path).name == "style"
    assert presets.find_preset("lora-4bit-m", tmp_path).name == "lora-4bit-m"
    with pytest.raises(SettingsError, match="is not a preset file"):
        presets.find_preset("adafactor-m", tmp_path)


def test_a_row_cannot_set_the_name_of_a_run(tmp_path):
    (tmp_path / "loras.json").write_text(json.dumps({"mine": {"values": {"name": "a", "rank": 8}}}))
    preset = presets.find_preset("mine", tmp_path)
    assert preset.values == {"rank": 8} and "a preset does not set name" in preset.description
