"""The Perplexity tab: which data it accepts, and how it reads rows."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import gradio as gr
import pytest
from training_pro.core.jobs import Advice, JobEnded, Note, Session, Stage
from training_pro.interface.base import Form, PageContext
from training_pro.interface.tabs.perplexity_tab import PerplexityTab, results_html
from training_pro.settings.parsing import ROW_SETTING_KEYS
from training_pro.tests.fakes import FakeHost, make_folders


@pytest.fixture
def tab(tmp_path):
    context = PageContext(FakeHost(folders=make_folders(tmp_path)), None, Session())
    with gr.Blocks(), gr.Tab() as parent:
        tab = PerplexityTab(context, Form())
        tab.draw(parent)
    return tab


async def messages(tab, name):
    inputs = defaultdict(lambda: None, {tab._data: name})
    return [html async for html, *_ in tab._on_start(inputs)]


@pytest.mark.parametrize("name", ["{outside}", "../secret.txt"])
def test_a_file_outside_the_datasets_folder_is_not_read(tab, tmp_path, name):
    outside = tmp_path / "user" / "training" / "secret.txt"
    outside.write_text("the secret is here " * 20)
    (last,) = asyncio.run(messages(tab, name.format(outside=outside)))
    assert "is a path, but a name is needed. Enter the name of a file or folder in" in last
    assert tab._context.session.latest("perplexity") is None


@pytest.fixture
def tab_with_form(tmp_path):
    """The tab with a form, and the list of the requests that its engine receives."""
    requests = []

    class Engine:
        def perplexity(self, request, settings, host, job):
            requests.append((request, settings))
            return JobEnded(outcome="finished", text="done")

    folders, form = make_folders(tmp_path), Form()
    (folders.datasets / "rows.jsonl").write_text('{"text": "One."}', encoding="utf-8")
    (folders.datasets / "story.txt").write_text("One.", encoding="utf-8")
    with gr.Blocks(), gr.Tab() as parent:
        form.draw("name", *ROW_SETTING_KEYS, "epochs")
        tab = PerplexityTab(PageContext(FakeHost(folders=folders), Engine(), Session()), form)
        tab.draw(parent)
    return tab, form, requests


def tab_inputs(tab, form, data, **values):
    defaults = {component: component.value for component in form.components.values()}
    return defaultdict(
        lambda: None,
        {**defaults, **{form.components[k]: v for k, v in values.items()}, tab._data: data, tab._stride: 7},
    )


def test_rows_are_read_as_the_form_says_and_have_no_stride(tab_with_form):
    tab, form, requests = tab_with_form

    async def work(name):
        # Unfinished values of other settings do not matter.
        async for _ in tab._on_start(tab_inputs(tab, form, name, train_on="last_reply", epochs="", name="")):
            pass

    asyncio.run(work("rows.jsonl"))
    asyncio.run(work("story.txt"))
    assert [(Path(request.data).name, request.stride) for request, _ in requests] == [
        ("rows.jsonl", 0),
        ("story.txt", 7),
    ]
    assert {settings.rows.train_on for _, settings in requests} == {"last_reply"}


def test_only_rows_have_a_note_on_how_they_are_read(tab_with_form):
    tab, form, _ = tab_with_form
    note, stride = tab._on_data_change(tab_inputs(tab, form, "rows.jsonl", train_on="last_reply"))
    assert "Train on: Last reply only" in note
    assert stride["interactive"] is False
    for name in ("story.txt", "", None, "missing.jsonl"):
        note, stride = tab._on_data_change(tab_inputs(tab, form, name))
        assert (note, stride["interactive"]) == ("", True)


def test_notes_stand_above_the_figures():
    html = results_html(
        [Note(text="2 rows are <cut>."), Stage(text="Measuring"), Advice(text="Not in the table.")]
    )
    assert html == '<p class="tp-quiet">2 rows are &lt;cut&gt;. Not in the table.</p>'
    assert results_html([Stage(text="Measuring")]) == ""
