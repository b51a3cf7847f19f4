"""The Perplexity tab: which data it takes, and how it reads rows."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import gradio as gr
import pytest
from training_pro.core.jobs.events import Advice, Ended, Note, Stage
from training_pro.core.jobs.session import Session
from training_pro.interface.base.form import Form
from training_pro.interface.base.page_context import Joined
from training_pro.interface.tabs.perplexity_tab import PerplexityTab, shown
from training_pro.settings.parsing import HOW_ROWS_ARE_READ
from training_pro.tests.fakes import FakeHost, made_folders


@pytest.fixture
def tab(tmp_path):
    joined = Joined(FakeHost(folders=made_folders(tmp_path)), None, Session())
    with gr.Blocks(), gr.Tab() as drawn:
        tab = PerplexityTab(joined, Form())
        tab.draw(drawn)
    return tab


async def said(tab, name):
    given = defaultdict(lambda: None, {tab._data: name})
    return [html async for html, *_ in tab._on_start(given)]


@pytest.mark.parametrize("name", ["{outside}", "../secret.txt"])
def test_a_file_outside_of_the_data_sets_is_not_read(tab, tmp_path, name):
    outside = tmp_path / "user" / "training" / "secret.txt"
    outside.write_text("the secret is here " * 20)
    (last,) = asyncio.run(said(tab, name.format(outside=outside)))
    assert "is a path. Give the name of a file or folder in" in last
    assert tab._context.session.latest("perplexity") is None


@pytest.fixture
def joined_form(tmp_path):
    """The tab beside a form, its engine telling what it is asked."""
    asked = []

    class Engine:
        def perplexity(self, wanted, settings, host, job):
            asked.append((wanted, settings))
            return Ended(outcome="finished", text="done")

    folders, form = made_folders(tmp_path), Form()
    (folders.datasets / "rows.jsonl").write_text('{"text": "One."}', encoding="utf-8")
    (folders.datasets / "story.txt").write_text("One.", encoding="utf-8")
    with gr.Blocks(), gr.Tab() as drawn:
        form.draw("name", *HOW_ROWS_ARE_READ, "epochs")
        tab = PerplexityTab(Joined(FakeHost(folders=folders), Engine(), Session()), form)
        tab.draw(drawn)
    return tab, form, asked


def given(tab, form, data, **values):
    there = {component: component.value for component in form.components.values()}
    return defaultdict(
        lambda: None,
        {**there, **{form.components[k]: v for k, v in values.items()}, tab._data: data, tab._stride: 7},
    )


def test_rows_are_read_as_the_form_says_and_have_no_stride(joined_form):
    tab, form, asked = joined_form

    async def work(name):
        # What is unfinished elsewhere in the form does not stand in the way.
        async for _ in tab._on_start(given(tab, form, name, train_on="last_reply", epochs="", name="")):
            pass

    asyncio.run(work("rows.jsonl"))
    asyncio.run(work("story.txt"))
    assert [(Path(wanted.data).name, wanted.stride) for wanted, _ in asked] == [
        ("rows.jsonl", 0),
        ("story.txt", 7),
    ]
    assert {settings.rows.train_on for _, settings in asked} == {"last_reply"}


def test_how_rows_are_read_is_told_of_rows_alone(joined_form):
    tab, form, _ = joined_form
    said, stride = tab._on_data_change(given(tab, form, "rows.jsonl", train_on="last_reply"))
    assert "Learn from: the last reply only" in said
    assert stride["interactive"] is False
    for name in ("story.txt", "", None, "missing.jsonl"):
        said, stride = tab._on_data_change(given(tab, form, name))
        assert (said, stride["interactive"]) == ("", True)


def test_what_is_noted_stands_over_the_figures():
    noted = shown([Note(text="2 rows are <cut>."), Stage(text="Measuring"), Advice(text="Not in the table.")])
    assert noted == '<p class="tp-quiet">2 rows are &lt;cut&gt;. Not in the table.</p>'
    assert shown([Stage(text="Measuring")]) == ""
