"""What docs/coming-from.md says of a name, value or preset of another program is what the settings say of it."""

from __future__ import annotations

import json
import re
from collections import defaultdict

import pytest
from training_pro.core.errors import SettingsError
from training_pro.settings import other_names, presets
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.coming_from import PAGE, read_section
from training_pro.tests.seeds.conftest import refusal, settings


def rows_of(text):
    """The cells of each row whose first cell begins with code."""
    return [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")
    ]


def code_in(cell):
    return re.findall("`([^`]+)`", cell)


VALUES = rows_of(read_section("Values that are different in Training PRO"))
INSTEAD = rows_of(read_section("Names that are not settings of Training PRO"))
VOID_PRESETS = rows_of(read_section("Presets of Void Trainer"))
NAMES = [row for row in rows_of(PAGE) if len(row) == 3 and row not in VALUES]
"""The names that other programs, guides and the request have for a setting, a flag or a button."""
SIZES = ("s", "m", "l", "xl")
OPTIMIZERS = {"adamw": "adamw_torch", "adafactor": "adafactor", "adamw8bit": "adamw_8bit"}


def test_each_name_leads_to_its_setting_or_flag():
    meant = defaultdict(set)
    for names, _, key in NAMES:
        for name in code_in(names):
            meant[name].add(key.strip("`"))
    assert (len(meant) > 300, len(VALUES) >= 39, len(INSTEAD) >= 34, len(VOID_PRESETS) >= 33) == (True,) * 4
    for names, label, key in NAMES:
        ours = key.strip("`")
        assert ours not in SETTINGS or SETTINGS[ours].label == label
        for name in code_in(names):
            if ours in SETTINGS:
                assert ours in [named.key for named in other_names.find_settings(name)[:3]], name
                if name not in SETTINGS:
                    (called,) = re.findall(r"In Training PRO, it is called '(\w+)'\.", refusal(**{name: "1"}))
                    assert called in meant[name], name
            elif ours:
                said = refusal(**{name: "1"}).removeprefix(f"Unknown setting {name!r}. ")
                assert ours in said or "Layers to transform finds the numbered layers" in said, name


def test_a_name_without_a_setting_is_refused_with_what_is_done_instead():
    for name, instead in INSTEAD:
        assert refusal(**{name.strip("`"): "true"}) == f"Unknown setting {name.strip('`')!r}. {instead}"


def test_a_value_that_is_different_here_is_refused_with_ours():
    for cell, theirs, ours in VALUES:
        key, value = cell.strip("`"), theirs.strip("`")
        ours_plain, is_value = ours.strip("`"), ours.startswith("`")  # or a sentence
        typed = [json.loads(value)] if value in ("true", "false", "-1") else []
        for given in [value, value.capitalize(), *typed] if theirs != ours else []:
            said = refusal(**{key: given})
            assert (f"{given!r} is called {ours_plain!r} in Training PRO" if is_value else ours) in said
        if is_value:
            assert str(settings(**{key: ours_plain}).values()[key]) == ours_plain


def test_the_page_has_every_name_and_value_that_is_answered():
    for key, values in [*other_names.TABLES["our_values"].items(), *other_names.TABLES["values"].items()]:
        assert {value for value in values if f"| `{key}` | `{value}` |" not in PAGE} == set()
    not_here = {name for names in other_names.TABLES["not_here"].values() for name in names}
    assert not_here and {name for name in not_here if f"`{name}`" not in PAGE} == set()
    assert set(other_names.TABLES["void_presets"]) == {name.strip("`") for name, _ in VOID_PRESETS}


def test_custom_syntax_leads_to_the_embeddings_and_the_output_layer():
    (found, *_) = other_names.find_settings("custom syntax")
    assert found.key == "targets"
    assert all(name in SETTINGS["targets"].help for name in ("embed_tokens", "lm_head", "syntax"))


def test_every_config_is_a_preset_or_names_all_sizes_and_is_no_single_setting(tmp_path):
    """'optimizer' alone would lose the rate and the decay, and 'rank' is a number."""
    for cell, cells in VOID_PRESETS:
        config, ours = cell.strip("`"), code_in(cells)
        kind = ours[0].rpartition("-")[0]
        assert len(ours) == 1 or ours == [f"{kind}-{size}" for size in SIZES]
        hint = f"In Training PRO, it is called '{ours[0]}'." if len(ours) == 1 else f"model: {', '.join(ours)}."
        with pytest.raises(SettingsError) as refused:
            presets.find_preset(config, tmp_path)
        assert str(refused.value).startswith(f"Unknown preset {config!r}. ") and str(refused.value).endswith(hint)
        for key in ("optimizer_config", "lora_config", "optimizer"):
            said = refusal(**{key: config})
            assert f"{config!r} is a preset in Training PRO. Remove this setting, and use --preset" in said
            assert ", ".join(ours) in said and "is called" not in said
        optimizer = presets.find_preset(ours[0], tmp_path).values["optimizer"]
        assert optimizer == OPTIMIZERS.get(kind, optimizer) and (kind in OPTIMIZERS or "adamw_8bit" in optimizer)


def test_larger_configs_for_smaller_models(tmp_path):
    for bits in (8, 4):
        rows = [presets.find_preset(f"lora-{bits}bit-{size}", tmp_path) for size in SIZES]
        ranks = [row.values["rank"] for row in rows]
        assert ranks == sorted(set(ranks), reverse=True) and len(ranks) == 4
        assert all(f"rank {row.values['rank']}" in row.label for row in rows)
        words = [row.words.split(" (")[0] for row in rows]
        assert words == [f"For {size} models" for size in ("small", "medium", "large", "very large")]
