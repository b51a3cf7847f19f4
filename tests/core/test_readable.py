"""Messages, findings and HTML that can be shown, sent and saved, whatever a value in them holds."""

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup
from training_pro.core import html, readable
from training_pro.core.errors import DataError, SettingsError, error_message, first_line


@pytest.mark.parametrize("error", [DataError, lambda text: SettingsError([text])])
def test_a_value_of_a_million_characters_or_words_makes_a_short_message(error):
    values = {"x" * 10**6: readable.MAX_WORD_CHARS + 100, "x " * 500_000: readable.MAX_LINE_CHARS + 1}
    for value, most in values.items():
        said = str(error(f"There is no format {value}. Choose another one."))
        assert said.startswith("There is no format x") and said.endswith("Choose another one.")
        assert len(said) <= most


def test_invisible_characters_are_made_visible_and_those_of_other_languages_stay():
    for character in "\ud800\udcff\x00\x1b\x7f\x9b\u202e\u2066\ufeff":
        said = str(DataError(f"There is no {character}."))
        assert said == f"There is no {character.encode('unicode_escape').decode()}."
        assert said.encode() and readable.readable(said) == said
    text = "\u7269\u8a9e \u06a9\u0650\u062a\u0627\u0628\u200c\u0647\u0627 \U0001f469\u200d\U0001f680\n\ta"
    assert readable.readable(text) == text
    assert readable.quote("a\nb") == "'a\\nb'" and len(readable.quote("x" * 999)) < 70


def test_an_error_that_is_not_ours_says_its_first_line_or_its_kind():
    for text, told in (("\n  size mismatch \nfor all layers\n", "size mismatch"), (" \n", "OSError")):
        assert first_line(OSError(text)) == told
    long = error_message(OSError(36, "File name too long", "x" * 9999))
    assert long.endswith(": File name too long.") and len(long) < 400
    assert error_message(OSError(2, "No such file", b"caf\xe9")) == "caf\ufffd: No such file."


def test_html_is_escaped_once_and_a_missing_value_is_an_error():
    inner = html.html("<b>{{ text }}</b>", text="<script>&\"'")
    assert isinstance(inner, Markup) and inner == "<b>&lt;script&gt;&amp;&#34;&#39;</b>"
    assert html.html("<p>{{ inner }}{{ plain }}</p>", inner=inner, plain="<i>") == f"<p>{inner}&lt;i&gt;</p>"
    with pytest.raises(UndefinedError, match="text"):
        html.html("<b>{{ text }}</b>")
