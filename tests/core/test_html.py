"""HTML templates: every value is escaped once, and a missing one is an error."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup
from training_pro.core.html import html


def test_a_text_is_escaped_and_html_is_not_escaped_again():
    inner = html("<b>{{ text }}</b>", text="<script>&\"'")
    assert inner == "<b>&lt;script&gt;&amp;&#34;&#39;</b>"
    assert html("<p>{{ inner }}{{ plain }}</p>", inner=inner, plain="<i>") == f"<p>{inner}&lt;i&gt;</p>"
    assert isinstance(inner, Markup)


def test_a_missing_value_is_an_error():
    with pytest.raises(UndefinedError, match="text"):
        html("<b>{{ text }}</b>")
