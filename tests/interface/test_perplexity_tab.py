"""The Perplexity tab: which texts it takes."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import gradio as gr
import pytest
from training_pro.core.session import Session
from training_pro.interface.joined import Joined
from training_pro.interface.perplexity_tab import PerplexityTab
from training_pro.tests.fakes import FakeHost, made_folders


@pytest.fixture
def tab(tmp_path):
    joined = Joined(FakeHost(folders=made_folders(tmp_path)), None, Session())
    with gr.Blocks(), gr.Tab() as drawn:
        tab = PerplexityTab(joined)
        tab.draw(drawn)
    return tab


async def said(tab, name):
    given = defaultdict(lambda: None, {tab._data: name})
    return [html async for html, *_ in tab._work(given)]


@pytest.mark.parametrize("name", ["{outside}", "../secret.txt"])
def test_a_file_outside_of_the_data_sets_is_not_read(tab, tmp_path, name):
    outside = tmp_path / "user" / "training" / "secret.txt"
    outside.write_text("the secret is here " * 20)
    (last,) = asyncio.run(said(tab, name.format(outside=outside)))
    assert "is a path. Give the name of a file or folder in" in last
    assert tab._joined.session.latest("perplexity") is None
