"""Messages that can be shown, sent and saved, whatever a value in them holds."""

from __future__ import annotations

import pytest
from training_pro.core.errors import DataError, SettingsError, TrainingProError, error_message, first_line
from training_pro.core.readable import MAX_LINE_CHARS, MAX_WORD_CHARS, quote, readable


@pytest.mark.parametrize("error", [TrainingProError, DataError, lambda text: SettingsError([text])])
def test_a_name_of_a_million_characters_makes_a_short_message(error):
    said = str(error(f"There is no format '{'x' * 1_000_000}'. Choose another one."))
    assert said.startswith("There is no format 'xxx") and said.endswith("Choose another one.")
    assert len(said) < MAX_WORD_CHARS + 100


def test_a_value_of_a_million_words_makes_a_short_message():
    said = str(DataError(f"There is no format {'x ' * 500_000}. Choose another one."))
    assert said.endswith("Choose another one.") and len(said) <= MAX_LINE_CHARS + 1


@pytest.mark.parametrize(
    "character", ["\ud800", "\udcff", "\x00", "\x1b", "\x7f", "\x9b", "\u202e", "\u2066", "\ufeff"]
)
def test_an_invisible_character_is_made_visible(character):
    said = str(DataError(f"There is no {character}."))
    assert said == f"There is no {character.encode('unicode_escape').decode()}."
    assert said.encode() and readable(said) == said


def test_an_error_of_the_system_is_readable_too():
    assert error_message(OSError(36, "File name too long", "x" * 9999)).endswith(": File name too long.")
    assert len(error_message(OSError(36, "File name too long", "x" * 9999))) < 400
    assert error_message(OSError(2, "No such file", b"caf\xe9")) == "caf\ufffd: No such file."
    assert first_line(ValueError("\ud800")) == "\\ud800"


def test_words_of_other_languages_stay():
    text = "m\u00e4rchen \u7269\u8a9e "
    text += "\u06a9\u0650\u062a\u0627\u0628\u200c\u0647\u0627 \U0001f469\u200d\U0001f680\n\tand a line"
    assert readable(text) == text


def test_a_quoted_value_is_one_short_line():
    assert quote("a\nb") == "'a\\nb'" and len(quote("x" * 999)) < 70
