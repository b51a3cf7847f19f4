"""Goals, the user's own presets, and the saved form."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import presets
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings


def test_every_goal_has_valid_settings_and_none_of_the_excluded_keys():
    names = ["style", "by-heart-once", "by-heart", "character", "questions", "field", "instruction-tuning"]
    assert [p.name for p in presets.goals()] == names
    for goal in presets.goals():
        training_settings({"name": "a", "data": ["x.txt"], **goal.values})
        assert not set(goal.values) & set(presets.EXCLUDED_KEYS)
        assert goal.label and goal.words.endswith(".")


def test_every_preset_of_ours_says_what_it_rests_on(tmp_path):
    ours = [*presets.goals(), *(row for kind in presets.TABLES for row in presets.load_table(kind, tmp_path))]
    assert len(ours) > 20
    assert [preset.name for preset in ours if not preset.source or not preset.description.endswith(".")] == []
    presets.save(tmp_path, "mine", {"rank": 8})
    assert presets.find_preset("mine", tmp_path).description == "Your own preset."


def test_dementor_trains_one_epoch_at_a_constant_rate_or_two_with_annealing():
    goals = {goal.name: goal.values for goal in presets.goals() if goal.values["chunking"] == "dementor"}
    plans = {name: (values["epochs"], values["schedule"]) for name, values in goals.items()}
    assert plans == {"by-heart-once": (1, "constant"), "by-heart": (2, "FP_low_epoch_annealing")}


def test_an_own_preset_is_saved_listed_and_deleted(tmp_path):
    presets.save(tmp_path, "mine", {"rank": 8, "name": "a", "data": ["x"], "if_exists": "replace", "unknown": 1})
    (tmp_path / "broken.json").write_text("{")
    assert presets.own_names(tmp_path) == ["broken", "mine"]
    assert presets.find_preset("mine", tmp_path).values == {"rank": 8}
    with pytest.raises(SettingsError, match=r"broken\.json is not a preset file"):
        presets.find_preset("broken", tmp_path)
    with pytest.raises(SettingsError, match="LoRA Rank: 'x' is not a number"):
        presets.save(tmp_path, "half-typed", {"rank": "x"})
    presets.delete(tmp_path, "mine")
    assert presets.own_names(tmp_path) == ["broken"]


@pytest.mark.parametrize("name", ["", "../outside", ".b", "CON"])
def test_a_preset_needs_a_valid_file_name(tmp_path, name):
    with pytest.raises(SettingsError, match=r"^Preset: "):
        presets.save(tmp_path, name, {"rank": 8})
    with pytest.raises(SettingsError, match="you have no preset called"):
        presets.delete(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["style", "Style", "adamw-s", "lora-4bit-m", "loras", "optimizers"])
def test_a_name_of_ours_is_reserved(tmp_path, name):
    """Nor is the user's file of a table overwritten."""
    with pytest.raises(SettingsError, match=f"'{name}' is the name of a built-in preset. Choose another name."):
        presets.save(tmp_path, name, {"rank": 8})
    assert list(tmp_path.iterdir()) == []


def test_the_users_table_is_not_deleted_as_a_preset(tmp_path):
    (tmp_path / "loras.json").write_text("{}")
    with pytest.raises(SettingsError, match="you have no preset called"):
        presets.delete(tmp_path, "loras")
    assert (tmp_path / "loras.json").is_file()


def test_each_is_found_by_its_kind_even_if_others_have_its_name(tmp_path):
    """By name alone, as on the command line, the user's own presets come first."""
    for name in ("style", "lora-4bit-m"):
        (tmp_path / f"{name}.json").write_text('{"rank": 7}')
    goals = {goal.name: goal for goal in presets.goals()}
    rows = {row.name: row for row in presets.load_table("loras", tmp_path)}
    assert presets.find_preset_of_kind("goals", "style", tmp_path) == goals["style"]
    assert presets.find_preset_of_kind("loras", "lora-4bit-m", tmp_path) == rows["lora-4bit-m"]
    for name in ("style", "lora-4bit-m"):
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
    changes = ["LoRA Rank 8 \u2192 16 (two)", "LoRA Rank 16 \u2192 4 (two, too)"]
    note = f"Several presets change the same settings, so the last preset applies: {'; '.join(changes)}."
    assert presets.override_note(chosen, {"epochs"}) == note
    assert presets.override_note(chosen[:1], set()) == presets.override_note(chosen, {"rank", "epochs"}) == ""


def test_a_preset_that_is_not_there_is_named_with_those_that_are(tmp_path):
    with pytest.raises(
        SettingsError, match=r"Unknown preset 'nope'\. Available presets: style, by-heart-once, by-heart"
    ):
        presets.find_preset("nope", tmp_path)


def test_changes_are_described_and_equal_values_are_not():
    before = {key: s.default for key, s in SETTINGS.items()} | {"learning_rate": "0.0002"}
    after = {"rank": 64, "learning_rate": 2e-4, "chunking": "dementor"}
    assert presets.describe_changes(before, after) == [
        "LoRA Rank 32 \u2192 64",
        "Chunking Blocks of whole sentences \u2192 DEMENTOR",
    ]


def refuse_once(monkeypatch, name):
    original, calls = getattr(Path, name), []

    def call(path, *args, **kwargs):
        calls.append(path)
        if len(calls) == 1:
            raise PermissionError(13, "Access is denied", str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, name, call)


def test_the_saved_form_is_loaded_without_unknown_keys(tmp_path, monkeypatch):
    path = tmp_path / "training" / "form.json"
    assert presets.load_form(path) == {}
    presets.save_form(path, {"rank": 8, "of_a_later_version": True})
    assert presets.load_form(path) == {"rank": 8}
    with monkeypatch.context() as patch:  # on Windows, while another page saves it
        refuse_once(patch, "read_bytes")
        assert presets.load_form(path) == {"rank": 8}
    path.write_text("[1]")
    assert presets.load_form(path) == {}


def test_a_list_is_shown_as_its_names():
    assert (
        presets.format_value("data", ["a.txt", "b/"])
        == presets.format_value("data", ("a.txt", "b/"))
        == "a.txt, b/"
    )
