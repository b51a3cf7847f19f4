"""The form: every setting is drawn once, values are looked up by key, and irrelevant settings are hidden."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from training_pro.interface.base import apply_button, link_settings, reset_button
from training_pro.interface.base.form import choice_value, display_value, make_component, shown_value
from training_pro.interface.base.setting_layout import ALL_ROWS, FOLDED_ROWS, folded_part_id
from training_pro.interface.train import field_visibility
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.effects import hidden_keys

INTERFACE = Path(field_visibility.__file__).parents[1]
DRAWN_SEPARATELY = ("name", "if_exists", "data")


def test_every_setting_has_one_place():
    placed = [key for row in ALL_ROWS for key in row] + list(DRAWN_SEPARATELY)
    assert sorted(placed) == sorted(SETTINGS)


def test_no_handler_takes_settings_by_position():
    """The inputs of an event are one component, or a set of components (its handler gets a dict)."""
    list_of_inputs = re.compile(r"\.(?:click|change|input|select|upload|submit)\(\s*[\w.]+(?:\([^)]*\))?,\s*\[")
    names = [
        path.name for path in INTERFACE.rglob("*.py") if list_of_inputs.search(path.read_text(encoding="utf-8"))
    ]
    assert names == []


def test_element_ids_are_unique():
    ids = [i for path in INTERFACE.rglob("*.py") for i in re.findall(r'elem_id="(tp-[\w-]+)"', path.read_text())]
    assert len(ids) == len(set(ids)) > 20


@pytest.mark.parametrize(
    ("values", "kinds", "irrelevant", "relevant"),
    [
        ({}, (), {"format", "train_on", "switch_at"}, {"hard_cut", "overlap"}),
        ({}, ("text",), {"system", "dementor_repeats"}, {"min_chars"}),
        ({}, ("rows",), {"hard_cut", "overlap", "chunking"}, {"format", "too_long"}),
        ({}, ("rows", "text"), {"dementor_repeats"}, {"format", "hard_cut"}),
        ({"chunking": "dementor"}, ("text",), {"overlap"}, {"dementor_repeats"}),
        ({"max_steps": 14}, (), {"epochs"}, {"max_steps"}),
        ({"max_steps": 0}, (), set(), {"epochs"}),
        ({"batching": "length_then_order"}, (), {"second_switch_at", "switch_loss_low"}, {"switch_at"}),
        ({"batching": "length_then_order", "switch_after": "loss"}, (), {"switch_at"}, {"switch_loss_low"}),
        (
            {"batching": "length_then_order", "switch_pairs": True},
            (),
            {"second_switch_loss_low"},
            {"second_switch_at"},
        ),
    ],
)
def test_irrelevant_settings_are_hidden(values, kinds, irrelevant, relevant):
    hidden = hidden_keys(values, kinds)
    assert irrelevant <= hidden
    assert not relevant & hidden
    assert hidden <= set(SETTINGS)


def test_an_invalid_setting_is_never_hidden():
    """The error message names it and links to it."""
    values = {"max_steps": 100, "epochs": "two", "head_rate": "", "dementor_repeats": 0, "switch_at": "1.5x"}
    hidden = hidden_keys(values, ("text",))
    assert not {"epochs", "head_rate", "switch_at"} & hidden
    assert "dementor_repeats" in hidden


def test_a_row_without_visible_settings_is_hidden_too():
    sheet = field_visibility.style(hidden_keys({}, ("text",)))
    assert "#tp-row-format" in sheet and "#tp-row-chunking" not in sheet


def test_gradio_does_not_round_whole_numbers():
    """With precision=0 Gradio would round the value, while the box still shows the typed one."""
    rank, box = SETTINGS["rank"], make_component(SETTINGS["rank"])
    assert box.preprocess(8) == 8
    with pytest.raises(ValueError, match=r"LoRA Rank: 7\.5 is not a whole number\."):
        rank.read(box.preprocess(7.5))


def test_a_sentence_links_to_the_setting_at_its_start_and_after_under():
    html = link_settings("Invalid rows: 1 of 30. Say <it> under Column names, or under Column namesomething.")
    assert re.findall(r'data-tp-go="(\w+)" data-tp-part="([\w-]+)" title="([^"]+)"', html) == [
        ("bad_rows", "tp-part-text-and-tokens", "Under Text and tokens"),
        ("columns", "tp-part-text-and-tokens", "Under Text and tokens"),
    ]
    assert re.sub("<[^>]+>", "", html).startswith("Invalid rows: 1 of 30. Say &lt;it&gt; under Column names, ")


def test_the_label_of_a_choice_counts_as_the_choice():
    assert choice_value(SETTINGS["format"], "Auto, based on the columns") == "auto"
    assert choice_value(SETTINGS["format"], "my-format") == "my-format"


def test_links_are_escaped_and_name_their_part():
    assert '<a href="#tp-rank" data-tp-go="rank" data-tp-part="">LoRA Rank</a>: 0 is &lt;' in link_settings(
        "LoRA Rank: 0 is <"
    )
    assert link_settings("story.txt: <b>") == "story.txt: &lt;b&gt;"
    assert folded_part_id("weight_decay") in link_settings("Weight decay: no.")
    assert 'data-tp-set="{&#34;name&#34;: &#34;\\&#34;&lt;&#34;}"' in apply_button("a", {"name": '"<'})
    assert "Reset to the default: 32" in reset_button("rank", "32")


def test_the_label_of_a_button_begins_with_a_capital_letter():
    assert ">Turn on<" in apply_button("turn on", {}) and ">LoRA rank: 8<" in apply_button("LoRA rank: 8", {})


def test_every_folded_part_has_an_id_of_its_own():
    assert len({folded_part_id(rows[0][0]) for rows in FOLDED_ROWS.values()}) == len(FOLDED_ROWS)


@pytest.mark.parametrize("number", [2152539448, 4294967295, 0.00012345678, 7 / 3, 45.254834, 3e-4, 1e-8])
def test_a_number_keeps_its_digits_in_the_form(number):
    assert float(display_value(SETTINGS["learning_rate"], number)) == number
    assert display_value(SETTINGS["learning_rate"], 3e-4) == "0.0003"


@pytest.mark.parametrize("prompts", [["C:\\new"], ["a\nb", "a\\\nb"], ["\\\\n", "\\"], ["no break"]])
def test_sample_prompts_are_the_same_after_a_visit_to_the_form(prompts):
    setting = SETTINGS["sample_prompts"]
    assert setting.read(display_value(setting, prompts)) == tuple(prompts)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("rslora", "no", False),
        ("rslora", "perhaps", None),
        ("chunking", "windows", None),
        ("epochs", None, None),
        ("epochs", [3], None),
        ("epochs", "three", "three"),
        ("rank", 0, 0),
        ("rank", "many", None),
        ("targets", ["q_proj", "v_proj"], "q_proj v_proj"),
        ("data", {"a": 1}, None),
    ],
)
def test_the_form_shows_what_its_boxes_can_hold(key, value, shown):
    assert shown_value(SETTINGS[key], value) == shown
