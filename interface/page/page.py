"""The tab in the webui, and the standalone page around it, where the model is chosen and loaded."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import gradio as gr

from ...core.engine import Engine
from ...core.host import Host, ModelCard
from ...core.jobs import Job, JobEnded, JobFn, Session
from ...core.model_shape import ModelShape, model_bytes
from ...core.readable import readable
from ...settings.definitions import TrainingSettings
from ...train_utils import size
from ..base import CSS, RELOAD, PageContext, add_handler, follow_job, markup, on_load
from ..tabs import PerplexityTab, RunsTab, TryTab
from ..train import TrainTab
from .download_panel import TITLE, DownloadPanel

if TYPE_CHECKING:
    from ...data.report import DatasetReport

MAX_REASON_CHARS = 200
PRECISION_NAMES = {"8bit": "8-bit", "4bit": "4-bit"}


class ModelPickerHost(Host, Protocol):
    """A host whose model is chosen on the page."""

    @property
    def selected_model(self) -> tuple[str, str]: ...

    def size_on_disk(self, name: str) -> int: ...

    def config(self, name: str) -> dict[str, Any]: ...

    def uses_gpu(self) -> bool: ...

    def download_job(self, name: str) -> tuple[str, JobFn]: ...

    def validate_name(self, name: str) -> str: ...


def draw_tab(
    host: Host, engine: Engine[TrainingSettings, DatasetReport], session: Session, models: Any = None
) -> None:
    """Draw Train, Try it, Perplexity and Runs; `models` is the menu of models of the standalone page."""
    context = PageContext(host, engine, session, models)
    # Without ids and a choice, Gradio 4.37 warns in the browser's console at each update of a tab. When that
    # version goes, delete `selected` and the ids.
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
        try_tab.stop_button.follow(train_tab.working)
        perplexity_tab.stop_button.follow(train_tab.working)
        runs_tab.follow(train_tab.working)


def build_page(
    host: ModelPickerHost,
    engine: Engine[TrainingSettings, DatasetReport],
    session: Session,
    *,
    loadings: Mapping[str, str],
) -> tuple[gr.Blocks, dict[str, Any]]:
    """The page, and extra arguments for its `launch()`."""
    # Gradio 6 takes the style sheet in `launch()`. When Gradio 4.37 goes, delete `style` and return CSS always.
    style = {"css": CSS} if "css" in inspect.signature(gr.Blocks.__init__).parameters else {}
    page = gr.Blocks(title="Training PRO", analytics_enabled=False, **style)
    read_inputs = page.preprocess_data

    async def checked_inputs(block_function: Any, *args: Any, **options: Any) -> Any:
        """The inputs of a handler from what a browser sent; a value of the wrong type is answered with a sentence.

        Gradio answers some with `{"error": null}`, and breaks off where its sentence repeats half a character.
        """
        try:
            inputs = await read_inputs(block_function, *args, **options)
            for component, value in zip(block_function.inputs, inputs, strict=True):
                is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
                if getattr(component, "multiselect", False) and value is not None and not is_list:
                    raise TypeError(f"{component.label} is not a list")
            return inputs
        except Exception as error:
            reason = readable(" ".join(str(error).split()))[:MAX_REASON_CHARS] or type(error).__name__
            message = f"The page received a value of the wrong type. {RELOAD} ({reason})"
            raise gr.Error(message) from error

    # On the page itself, not in a class of pages: Gradio writes a stub file whenever a class of Blocks is made.
    page.preprocess_data = checked_inputs
    with page:
        models = draw_model_picker(host, session, loadings)
        DownloadPanel(PageContext(host, engine, session, models), host.download_job).draw()
        draw_tab(host, engine, session, models)
    return page, {} if style else {"css": CSS}


def draw_model_picker(host: ModelPickerHost, session: Session, loadings: Mapping[str, str]) -> gr.Dropdown:
    """Draw the menus for the model and its precision, and the memory that it needs; returns the menu of models."""
    precisions = [(label, value) for value, label in loadings.items()]
    with gr.Row():
        models_menu = gr.Dropdown([], label="Model", allow_custom_value=True, elem_id="tp-model")
        loading_menu = gr.Dropdown(precisions, label="Load as", elem_id="tp-loading")
        load_button = gr.Button("Load model", elem_id="tp-load", min_width=120, scale=0)
        refresh_button = gr.Button("Refresh", min_width=100, scale=0)
    needs = gr.HTML(elem_id="tp-model-needs")
    status = gr.HTML(elem_id="tp-model-said", elem_classes="tp-said")

    def show(name: str | None, loading: str) -> tuple[Any, str, str]:
        """The menus with this choice, or with the only model if none is chosen, and the memory that it needs."""
        models = host.models()
        if not name and len(models) == 1:
            name = models[0]
        choices = models if not name or name in models else [name, *models]
        return gr.update(choices=choices, value=name or None), loading, describe_size(host, name or "", loading)

    async def load(name: str | None, loading: str) -> AsyncIterator[str]:
        if not name:
            yield markup.problem("Choose a model first.")
            return

        def work(_: Job) -> JobEnded:
            host.load(host.validate_name(name), loading)
            return JobEnded(outcome="finished", text=f"{name} is loaded.")

        start = partial(session.start, "model", f"Loading {name}", host, work)
        loading_note = markup.paragraph(f"Loading {name} ...", quiet=True)
        async for said, _ in follow_job(session, start, loading_note):
            yield said

    menus = [models_menu, loading_menu]
    add_handler(load_button.click, load, menus, status, what="Loading the model")
    add_handler(refresh_button.click, show, menus, [*menus, needs], what="Refresh")
    changes, what = [menu.change for menu in menus], "Reading the model"
    add_handler(changes, lambda name, loading: describe_size(host, name or "", loading), menus, needs, what=what)
    on_load(lambda: show(*host.selected_model), [*menus, needs], what=what)
    return models_menu


def describe_size(host: ModelPickerHost, name: str, loading: str) -> str:
    """The size of the weights of a model on disk, and in memory if it is loaded like this."""
    if not name:
        start = "Choose a model. To add one, put it" if host.models() else "There is no model yet. Put one"
        text = f"{start} in {host.folders.models} and press Refresh, or open '{TITLE}'."
        return markup.paragraph(text, quiet=True)
    on_disk, config = host.size_on_disk(name), host.config(name)
    if not on_disk:
        return ""
    text = f"This model's weights need {size(on_disk)} on disk"
    shape = ModelShape.of(config)
    if shape is not None and "quantization_config" not in config:
        precision = ModelCard(name, config, None, loading).weight_precision(on_card=host.uses_gpu())
        in_memory = size(model_bytes(shape, precision))
        text += f", and about {in_memory} in memory when loaded as {PRECISION_NAMES.get(precision, precision)}"
    elif name.endswith(".gguf"):
        text += ", and more in memory, because they are dequantized when the model is loaded"
    return markup.paragraph(f"{text}.", quiet=True)
