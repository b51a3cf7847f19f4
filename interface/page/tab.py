"""The tab in the webui or on the standalone page, with Train, Try it, Perplexity and Runs inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from ...core.engine import Engine
from ...core.host import Host
from ...core.jobs import Session
from ...settings.definitions import TrainingSettings
from ..base import PageContext
from ..tabs import PerplexityTab, RunsTab, TryTab
from ..train import TrainTab

if TYPE_CHECKING:
    from ...data.report import DatasetReport


def draw(
    host: Host, engine: Engine[TrainingSettings, DatasetReport], session: Session, models: Any = None
) -> PageContext:
    """Draw the tab into the current page; `models` is the menu of models of the standalone page."""
    context = PageContext(host, engine, session, models)
    # Without ids and a choice, Gradio 4.37 warns in the browser's console at each update of a tab.
    with gr.Tabs(selected="train", elem_id="tp-tabs"):
        with gr.Tab("Train", id="train") as train:
            train_tab = TrainTab(context)
            train_tab.draw(train)
        with gr.Tab("Try it", id="try") as try_it:
            try_tab = TryTab(context)
            try_tab.draw(try_it)
        with gr.Tab("Perplexity", id="perplexity") as perplexity:
            perplexity_tab = PerplexityTab(context, train_tab.form)
            perplexity_tab.draw(perplexity)
        with gr.Tab("Runs", id="runs") as runs:
            runs_tab = RunsTab(context, train_tab.form)
            runs_tab.draw(runs)
        for stop_button in (try_tab.stop_button, perplexity_tab.stop_button):
            stop_button.follow(train_tab.working)
        runs_tab.follow(train_tab.working)
    return context
