"""The form: every setting is drawn once, irrelevant settings are hidden, and sentences link to settings."""

from __future__ import annotations

import re

import pytest
from training_pro.interface.base import form, markup, shown_value
from training_pro.interface.base.form import choice_value, display_value, make_component
from training_pro.interface.train import train_tab
from training_pro.settings import rules
from training_pro.settings.definitions import SETTINGS


def test_every_setting_has_one_place_and_every_folded_part_an_id():
    placed = [*(key for row in form.ALL_ROWS for key in row), "name", "if_exists", "data"]
    assert sorted(placed) == sorted(SETTINGS)
    parts = form.FOLDED_ROWS
    assert len(set(map(form.part_id, parts))) == len(parts)


@pytest.mark.parametrize(
    ("values", "kinds", "irrelevant", "relevant"),
    [
        ({}, (), {"format", "train_on", "switch_at"}, {"hard_cut", "overlap", "epochs"}),
        ({}, ("text",), {"system", "dementor_repeats"}, {"min_chars"}),
        ({}, ("rows",), {"hard_cut", "overlap", "chunking"}, {"format", "too_long"}),
        ({}, ("rows", "text"), {"dementor_repeats"}, {"format", "hard_cut"}),
        ({"chunking": "dementor"}, ("text",), {"overlap"}, {"dementor_repeats"}),
        ({"max_steps": 14}, (), {"epochs"}, {"max_steps"}),
        ({"batching": "length_then_order", "switch_after": "loss"}, (), {"switch_at"}, {"switch_loss_low"}),
        # The message about an invalid value names its setting and links to it.
        ({"max_steps": 9, "epochs": "two", "switch_at": "1x"}, ("text",), {"format"}, {"epochs", "switch_at"}),
    ],
)
def test_irrelevant_settings_are_hidden_but_not_invalid_ones(values, kinds, irrelevant, relevant):
    hidden = rules.hidden_keys(values, kinds)
    assert irrelevant <= hidden <= set(SETTINGS) and not relevant & hidden


def test_a_row_without_visible_settings_is_hidden_too_and_links_say_so():
    sheet = form.hiding_style(rules.hidden_keys({}, ("text",)))
    assert "#tp-row-format" in sheet and "#tp-row-chunking" not in sheet
    assert '[data-tp-go="dementor_repeats"]::after' in sheet


def test_gradio_does_not_round_whole_numbers():
    """With precision=0 Gradio would round the value, while the box still shows the typed one."""
    assert make_component(SETTINGS["eval_data"]).allow_custom_value  # such as a file in a folder
    assert [make_component(SETTINGS[key]).max_lines == 1 for key in ("name", "system")] == [True, False]
    rank, box = SETTINGS["rank"], make_component(SETTINGS["rank"])
    assert box.preprocess(8) == 8
    with pytest.raises(ValueError, match=r"LoRA Rank: 7\.5 is not a whole number\."):
        rank.read(box.preprocess(7.5))


def test_a_sentence_links_to_the_setting_at_its_start_and_after_under():
    link = markup.link_settings
    html = link("Invalid rows: 1 of 30. Say <it> under Column names, or under Column namesomething.")
    assert re.findall(r'data-tp-go="(\w+)" data-tp-part="([\w-]+)" title="([^"]+)"', html) == [
        ("bad_rows", "tp-part-text-and-tokens", "Under Text and tokens"),
        ("columns", "tp-part-text-and-tokens", "Under Text and tokens"),
    ]
    assert "Say &lt;it&gt; under" in html and link("story.txt: <b>") == "story.txt: &lt;b&gt;"


def test_buttons_hold_escaped_values_and_begin_with_a_capital_letter():
    assert 'data-tp-set="{&#34;name&#34;: &#34;\\&#34;&lt;&#34;}"' in markup.apply_button("a", {"name": '"<'})
    assert ">Turn on<" in markup.apply_button("turn on", {})
    assert ">LoRA rank: 8<" in markup.apply_button("LoRA rank: 8", {})
    assert "Reset to the default: 32" in markup.reset_button("rank", "32")


def test_the_form_keeps_the_digits_of_numbers_and_the_lines_of_prompts():
    rate, prompts = SETTINGS["learning_rate"], SETTINGS["sample_prompts"]
    for number in (2152539448, 0.00012345678, 7 / 3, 45.254834, 1e-8):
        assert float(display_value(rate, number)) == number
    assert display_value(rate, 3e-4) == "0.0003"
    for lines in (["C:\\new"], ["a\nb", "a\\\nb"], ["\\\\n", "\\"], ["no break"]):
        assert prompts.read(display_value(prompts, lines)) == tuple(lines)
    assert choice_value(SETTINGS["format"], "Auto, based on the columns") == "auto"
    assert choice_value(SETTINGS["format"], "my-format") == "my-format"


def test_the_form_shows_what_its_boxes_can_hold():
    for key, value, shown in (
        ("rslora", "no", False),
        ("rslora", "perhaps", None),
        ("chunking", "windows", None),
        ("epochs", [3], None),
        ("epochs", "three", "three"),
        ("rank", 0, 0),
        ("rank", "many", None),
        ("targets", ["q_proj", "v_proj"], "q_proj v_proj"),
        ("data", {"a": 1}, None),
    ):
        assert shown_value(SETTINGS[key], value) == shown, key


def test_settings_buttons_and_presets_are_found_by_their_words():
    html = train_tab.results_html("cutoff_len")
    assert 'href="#tp-cutoff"' in html and "Maximum number of tokens in one example" in html
    assert 'href="#tp-check"' in train_tab.results_html("verify"), "an old name"
    preset = train_tab.results_html("questions and answers")
    assert 'href="#tp-start-from"' in preset and "Preset: " in preset and train_tab.results_html(" ") == ""
    nothing = train_tab.results_html("<b>zzqq</b>")
    assert "No setting or preset matches" in nothing and "<b>zz" not in nothing
