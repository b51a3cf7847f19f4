"""Training PRO as it stands in any page: Train, Try it, Perplexity, Runs."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ...core.engine import Engine
from ...core.host import Host
from ...core.jobs import Session
from ...data.report import DatasetReport
from ...settings.definitions import TrainingSettings
from ..base import Joined
from ..tabs import PerplexityTab, RunsTab, TryTab
from ..train import TrainTab


def draw(
    host: Host, engine: Engine[TrainingSettings, DatasetReport], session: Session, models: Any = None
) -> Joined:
    """Draw the tab into the page that is being made; `models` is the page's own menu of them."""
    joined = Joined(host, engine, session, models)
    with gr.Tabs():
        with gr.Tab("Train") as train:
            train_tab = TrainTab(joined)
            train_tab.draw(train)
        with gr.Tab("Try it") as try_it:
            TryTab(joined).draw(try_it)
        with gr.Tab("Perplexity") as perplexity:
            PerplexityTab(joined, train_tab.form).draw(perplexity)
        with gr.Tab("Runs") as runs:
            RunsTab(joined).draw(runs)
    return joined
