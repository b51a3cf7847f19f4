"""The form: every setting drawn once, values by name, and what is shown of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from training_pro.interface.base.form import as_meant, component
from training_pro.interface.base.layout import ALL_ROWS, FOLDED, part_of
from training_pro.interface.base.links import pointing, use, way_back
from training_pro.interface.train import field_visibility
from training_pro.settings.definitions import SETTINGS

INTERFACE = Path(field_visibility.__file__).parents[1]
DRAWN_APART = ("name", "if_exists", "data")


def test_every_setting_has_one_place():
    placed = [key for row in ALL_ROWS for key in row] + list(DRAWN_APART)
    assert sorted(placed) == sorted(SETTINGS)


def test_no_handler_takes_settings_by_position():
    """An event gets sets of components (and its handler a dict), or one component."""
    several = re.compile(r"\.(?:click|change|input|select|upload|submit)\(\s*[\w.]+(?:\([^)]*\))?,\s*\[")
    found = [path.name for path in INTERFACE.rglob("*.py") if several.search(path.read_text(encoding="utf-8"))]
    assert found == []


def test_no_id_stands_twice():
    ids = [i for path in INTERFACE.rglob("*.py") for i in re.findall(r'elem_id="(tp-[\w-]+)"', path.read_text())]
    assert len(ids) == len(set(ids)) > 20


@pytest.mark.parametrize(
    ("values", "kinds", "gone", "there"),
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
def test_what_does_not_concern_the_choices_is_hidden(values, kinds, gone, there):
    hidden = field_visibility.beside_the_point(values, kinds)
    assert gone <= hidden
    assert not there & hidden
    assert hidden <= set(SETTINGS)


def test_what_is_typed_wrongly_is_never_hidden():
    """It is refused by its name, and the message leads to it."""
    typed = {"max_steps": 100, "epochs": "two", "head_rate": "", "dementor_repeats": 0, "switch_at": "1.5x"}
    hidden = field_visibility.beside_the_point(typed, ("text",))
    assert not {"epochs", "head_rate", "switch_at"} & hidden
    assert "dementor_repeats" in hidden


def test_a_row_of_nothing_is_hidden_too():
    sheet = field_visibility.style(field_visibility.beside_the_point({}, ("text",)))
    assert "#tp-row-format" in sheet and "#tp-row-chunking" not in sheet


def test_a_whole_number_is_taken_as_it_is_typed():
    """Gradio would round it, and the box would still show what was typed."""
    rank, box = SETTINGS["rank"], component(SETTINGS["rank"])
    assert box.preprocess(8) == 8
    with pytest.raises(ValueError, match=r"LoRA Rank: 7\.5 is not a whole number\."):
        rank.read(box.preprocess(7.5))


def test_a_sentence_has_the_way_to_its_setting_at_its_head_and_behind_under():
    shown = pointing("Rows that cannot be read: 1 of 30. Say <it> under Columns, or under Columnsomething.")
    assert re.findall(r'data-tp-go="(\w+)" data-tp-part="([\w-]+)" title="([^"]+)"', shown) == [
        ("bad_rows", "tp-part-text-and-tokens", "Under Text and tokens"),
        ("columns", "tp-part-text-and-tokens", "Under Text and tokens"),
    ]
    assert re.sub("<[^>]+>", "", shown).startswith(
        "Rows that cannot be read: 1 of 30. Say &lt;it&gt; under Columns, "
    )


def test_the_words_of_a_choice_are_the_choice():
    assert as_meant(SETTINGS["format"], "by the columns") == "auto"
    assert as_meant(SETTINGS["format"], "my-format") == "my-format"


def test_ways_are_escaped_and_lead_to_their_part():
    assert '<a href="#tp-rank" data-tp-go="rank" data-tp-part="">LoRA Rank</a>: 0 is &lt;' in pointing(
        "LoRA Rank: 0 is <"
    )
    assert pointing("story.txt: <b>") == "story.txt: &lt;b&gt;"
    assert part_of("weight_decay") in pointing("Weight decay: no.")
    assert 'data-tp-set="{&quot;name&quot;: &quot;\\&quot;&lt;&quot;}"' in use("a", {"name": '"<'})
    assert "Back to the default: 32" in way_back("rank", "32")


def test_every_folded_part_has_an_id_of_its_own():
    assert len({part_of(rows[0][0]) for rows in FOLDED.values()}) == len(FOLDED)
