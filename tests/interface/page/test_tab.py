"""The tab with Train, Try it, Perplexity and Runs inside."""

from __future__ import annotations

import gradio as gr
from training_pro.core.jobs import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.page import tab
from training_pro.tests.fakes import FakeHost, make_folders


def test_the_first_tab_is_chosen_by_its_id(tmp_path):
    """Otherwise Gradio 4.37 warns in the browser's console at each update of a tab."""
    with gr.Blocks() as blocks:
        tab.draw(FakeHost(folders=make_folders(tmp_path)), PeftEngine(), Session())
    tabs = next(block for block in blocks.blocks.values() if isinstance(block, gr.Tabs))
    ids = [inner.id for inner in tabs.children]
    assert tabs.selected == ids[0] and len(set(ids)) == 4 and all(ids)
