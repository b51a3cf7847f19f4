"""Goals, tables of presets, the user's own presets, and the saved form."""

import json

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import presets
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings


def write(folder, name, content):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_every_preset_of_ours_is_valid_and_says_what_it_rests_on(tmp_path):
    texts = ["style", "by-heart-once", "by-heart", "character", "questions", "field"]
    goals = [*texts, "preferences", "instruction-tuning"]
    kinds = ("adamw", "adafactor", "adamw8bit", "lora-8bit", "lora-4bit")
    assert [goal.name for goal in presets.goals()] == goals
    rows = [row for kind in presets.TABLES for row in presets.load_table(kind, tmp_path)]
    assert [row.name for row in rows] == [f"{kind}-{size}" for kind in kinds for size in ("s", "m", "l", "xl")]
    for preset in (*presets.goals(), *rows):
        training_settings({"name": "a", "data": ["x.txt"], **preset.values})
        assert not set(preset.values) & set(presets.EXCLUDED_KEYS)
        assert preset.source and preset.description.endswith(".")
        assert presets.find_preset(preset.name, tmp_path) == preset
    assert all(goal.label and goal.words.endswith(".") for goal in presets.goals())


def test_an_own_preset_is_saved_listed_and_deleted(tmp_path):
    presets.save(tmp_path, "mine", {"rank": 8, "name": "a", "data": ["x"], "if_exists": "replace", "unknown": 1})
    write(tmp_path, "broken.json", "{")
    assert presets.own_names(tmp_path) == ["broken", "mine"]
    mine = presets.find_preset("mine", tmp_path)
    assert (mine.values, mine.description) == ({"rank": 8}, "Your own preset.")
    with pytest.raises(SettingsError, match=r"broken\.json is not a preset file"):
        presets.find_preset("broken", tmp_path)
    presets.delete(tmp_path, "mine")
    assert presets.own_names(tmp_path) == ["broken"]
    with pytest.raises(SettingsError, match=r"Unknown preset 'nope'\. Available presets: style, by-heart-once"):
        presets.find_preset("nope", tmp_path)


def test_a_preset_needs_a_valid_file_name_that_is_none_of_ours(tmp_path):
    write(tmp_path, "loras.json", "{}")
    for name in ("", "../outside", ".b", "CON"):
        with pytest.raises(SettingsError, match=r"^Preset: "):
            presets.save(tmp_path, name, {"rank": 8})
    for name in ("style", "Style", "adamw-s", "lora-4bit-m", "loras", "optimizers"):
        with pytest.raises(SettingsError, match="is the name of a built-in preset"):
            presets.save(tmp_path, name, {"rank": 8})
    with pytest.raises(SettingsError, match="you have no preset called"):
        presets.delete(tmp_path, "../outside")
    assert [path.name for path in tmp_path.iterdir()] == ["loras.json"]


def test_each_is_found_by_its_kind_even_if_others_have_its_name(tmp_path):
    """By name alone, as on the command line, the user's own presets come first."""
    for name, kind in (("style", "goals"), ("lora-4bit-m", "loras")):
        ours = presets.find_preset(name, tmp_path)
        write(tmp_path, f"{name}.json", {"rank": 7})
        assert presets.find_preset_of_kind(kind, name, tmp_path) == ours
        assert presets.find_preset_of_kind("own", name, tmp_path).values == {"rank": 7}
        assert presets.find_preset(name, tmp_path).values == {"rank": 7}
    presets.delete(tmp_path, "style")
    with pytest.raises(SettingsError, match="The preset 'style' no longer exists"):
        presets.find_preset_of_kind("own", "style", tmp_path)


def test_several_presets_and_which_values_the_later_one_overrides(tmp_path):
    presets.save(tmp_path, "one", {"rank": 8, "alpha": 16, "epochs": 3})
    presets.save(tmp_path, "two", {"rank": 16, "alpha": 16.0, "epochs": 5})
    presets.save(tmp_path, "two, too", {"rank": 4})
    chosen = presets.find_presets(["one,two", "two, too"], tmp_path)
    assert [preset.name for preset in chosen] == ["one", "two", "two, too"]
    note = presets.override_note(chosen, {"epochs"})
    assert note.endswith(": LoRA Rank 8 \u2192 16 (two); LoRA Rank 16 \u2192 4 (two, too).")
    assert presets.override_note(chosen[:1], set()) == presets.override_note(chosen, {"rank", "epochs"}) == ""


def test_changes_are_described_and_equal_values_are_not():
    before = {key: s.default for key, s in SETTINGS.items()} | {"learning_rate": "0.0002", "data": ("b.txt",)}
    after = {"rank": 64, "learning_rate": 2e-4, "chunking": "dementor", "data": ["a.txt", "b/"]}
    assert presets.describe_changes(before, after) == [
        "LoRA Rank 32 \u2192 64",
        "Chunking Blocks of whole sentences \u2192 DEMENTOR",
        "Dataset b.txt \u2192 a.txt, b/",
    ]


def test_a_file_of_the_users_adds_rows_and_is_no_preset_itself(tmp_path):
    mine = {"values": {"optimizer": "sgd", "name": "a"}}
    write(tmp_path, "optimizers.json", {"mine": mine, "adamw-s": {"values": {"learning_rate": 1e-3}}})
    rows = {row.name: row for row in presets.load_table("optimizers", tmp_path)}
    assert rows["adamw-s"].values == {"learning_rate": 1e-3}
    assert rows["mine"].values == {"optimizer": "sgd"} and "a preset does not set name" in rows["mine"].description
    assert presets.own_names(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not a preset file"),
        ({"mine": {"values": {"lerning_rate": 1}}}, "'mine': Unknown setting 'lerning_rate'. Did you mean"),
    ],
)
def test_an_invalid_table_is_named_with_its_row_and_affects_no_other(tmp_path, content, sentence):
    write(tmp_path, "optimizers.json", content)
    with pytest.raises(SettingsError) as error:
        presets.load_table("optimizers", tmp_path)
    assert sentence in str(error.value) and "optimizers.json" in str(error.value)
    assert presets.find_preset("lora-4bit-m", tmp_path).name == "lora-4bit-m"
