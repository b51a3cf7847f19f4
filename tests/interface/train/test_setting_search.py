"""The search field shows links to settings and buttons."""

from __future__ import annotations

import pytest
from training_pro.interface.train import field_visibility
from training_pro.interface.train.setting_search import results_html


def test_results_are_links_with_the_first_sentence_of_the_help():
    html = results_html("cutoff_len")
    assert 'href="#tp-cutoff"' in html and "Maximum number of tokens in one example" in html


def test_a_button_is_found_by_its_old_name():
    assert 'href="#tp-check"' in results_html("verify")


@pytest.mark.parametrize("query", ["style", "chat character", "questions and answers"])
def test_a_preset_is_found_by_its_label(query):
    assert 'href="#tp-start-from"' in results_html(query) and "Preset: " in results_html(query)


def test_nothing_found_is_said_and_nothing_asked_shows_nothing():
    assert results_html(" ") == ""
    assert "No setting or preset matches" in results_html("<b>zzqq</b>") and "<b>zz" not in results_html(
        "<b>zzqq</b>"
    )


def test_a_link_to_a_hidden_setting_says_so():
    assert '[data-tp-go="dementor_repeats"]::after' in field_visibility.style({"dementor_repeats"})
