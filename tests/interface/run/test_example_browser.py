"""Browsing the training examples."""

from __future__ import annotations

import re

import gradio as gr
import pytest
from training_pro.core.host import ModelCard
from training_pro.core.jobs import Session
from training_pro.data.prepare import check_datasets
from training_pro.interface.base import Form, PageContext
from training_pro.interface.run.example_browser import ExampleBrowser
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.rowing import family


class Engine:
    """An engine with the real Check, but without a model."""

    def check(self, settings, host, *, show):
        tokenizer = family("ChatML")
        card = ModelCard("toy", {}, tokenizer.tokenizer, "auto")
        return check_datasets(settings, host.folders, card, tokenizer, lambda text, share: None, show=show)


@pytest.fixture
def browser(tmp_path):
    folders, form = make_folders(tmp_path), Form()
    sections = (f"The {word} slept.\n\n\n" for word in ("cat", "dog", "cow", "cat"))
    (folders.datasets / "a.txt").write_text("".join(sections), encoding="utf-8")
    with gr.Blocks():
        form.draw(*SETTINGS)
        browser = ExampleBrowser(PageContext(FakeHost(folders=folders), Engine(), Session()), form)
        browser.draw()
        browser.connect()
    return browser


def show_example(browser, number=1, holding="", by=0, **values):
    components = browser._form.components
    form = {component: component.value for component in components.values()}
    changes = {"data": ["a.txt"], "hard_cut": r"\n\n\n", **values}
    form |= {components[key]: value for key, value in changes.items()}
    number_shown, html = browser._find_example({**form, browser._number: number, browser._query: holding}, by=by)
    return number_shown, " ".join(re.sub("<[^>]*>", " ", html).split())


def test_next_and_previous(browser):
    at, html = show_example(browser)
    assert at == 1 and "Example 1 of 4" in html and "The cat slept." in html
    at, html = show_example(browser, at, by=1)
    assert at == 2 and "The dog slept." in html
    assert show_example(browser, 2, by=-1)[0] == 1
    assert show_example(browser, 1, by=-1)[0] == 1
    assert show_example(browser, None)[0] == 1


def test_only_examples_that_contain_a_text(browser):
    assert show_example(browser, 1, " CAT ", by=1)[0] == 4
    assert show_example(browser, 4, "cat", by=-1)[0] == 1
    assert "&#39;dog&#39; was not found from example 3 on" in show_example(browser, 2, "dog", by=1)[1]
    assert "&#39;dog&#39; was not found in examples 1 to 1" in show_example(browser, 2, "dog", by=-1)[1]


def test_a_missing_example_is_reported_and_the_number_is_kept(browser):
    at, html = show_example(browser, 4, by=1)
    assert at == gr.update() and "There is no example 5. The data has 4 examples." in html


def test_problems_of_form_and_data_are_reported(browser):
    assert "choose at least one file" in show_example(browser, data=[])[1]
    assert "no-such.txt" in show_example(browser, data=["no-such.txt"])[1]
