"""Leafing through what the form would train on."""

from __future__ import annotations

import re

import gradio as gr
import pytest
from training_pro.core.host import ModelCard
from training_pro.core.jobs.session import Session
from training_pro.data.prepare import checked
from training_pro.interface.base.form import Form
from training_pro.interface.base.page_context import Joined
from training_pro.interface.run.example_browser import Leafing
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.fakes import FakeHost, made_folders
from training_pro.tests.rowing import family


class Engine:
    """Check as the real one does it, without a model."""

    def check(self, settings, host, *, show):
        tokenizer = family("ChatML")
        card = ModelCard("toy", {}, tokenizer.tokenizer, "auto")
        return checked(settings, host.folders, card, tokenizer, lambda text, share: None, show=show)


@pytest.fixture
def leafing(tmp_path):
    folders, form = made_folders(tmp_path), Form()
    sections = (f"The {word} slept.\n\n\n" for word in ("cat", "dog", "cow", "cat"))
    (folders.datasets / "a.txt").write_text("".join(sections), encoding="utf-8")
    with gr.Blocks():
        form.draw(*SETTINGS)
        leafing = Leafing(Joined(FakeHost(folders=folders), Engine(), Session()), form)
        leafing.draw()
        leafing.connect()
    return leafing


def leafed(leafing, number=1, holding="", by=0, **values):
    components = leafing._form.components
    form = {component: component.value for component in components.values()}
    wished = {"data": ["a.txt"], "hard_cut": r"\n\n\n", **values}
    form |= {components[key]: value for key, value in wished.items()}
    at, html = leafing._find_example({**form, leafing._number: number, leafing._query: holding}, by=by)
    return at, " ".join(re.sub("<[^>]*>", " ", html).split())


def test_one_after_the_other_forwards_and_back(leafing):
    at, html = leafed(leafing)
    assert at == 1 and "Example 1 of 4" in html and "The cat slept." in html
    at, html = leafed(leafing, at, by=1)
    assert at == 2 and "The dog slept." in html
    assert leafed(leafing, 2, by=-1)[0] == 1
    assert leafed(leafing, 1, by=-1)[0] == 1
    assert leafed(leafing, None)[0] == 1


def test_only_those_that_hold_some_words(leafing):
    assert leafed(leafing, 1, " CAT ", by=1)[0] == 4
    assert leafed(leafing, 4, "cat", by=-1)[0] == 1
    assert "From example 3 on none holds &#x27;dog&#x27;" in leafed(leafing, 2, "dog", by=1)[1]
    assert "Of examples 1 to 1 none holds &#x27;dog&#x27;" in leafed(leafing, 2, "dog", by=-1)[1]


def test_what_is_not_there_is_said_and_the_number_stays(leafing):
    at, html = leafed(leafing, 4, by=1)
    assert at == gr.update() and "There are 4 examples, none with the number 5." in html


def test_what_is_wrong_with_form_or_data_is_said(leafing):
    assert "nothing is chosen" in leafed(leafing, data=[])[1]
    assert "no-such.txt" in leafed(leafing, data=["no-such.txt"])[1]
