"""The standalone page: choose and load a model, with the same tab as in the webui below."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import gradio as gr

from ...core.engine import Engine
from ...core.host import Host, ModelCard
from ...core.jobs import Job, JobEnded, JobFn, Session
from ...core.model_shape import ModelShape, model_bytes
from ...settings.definitions import TrainingSettings
from ...train_utils import size
from ..base import CSS, PageContext, add_handler, follow_job, make_blocks, markup, on_load
from . import tab
from .download_panel import TITLE, DownloadPanel

if TYPE_CHECKING:
    from ...data.report import DatasetReport

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


def build_page(
    host: ModelPickerHost,
    engine: Engine[TrainingSettings, DatasetReport],
    session: Session,
    *,
    loadings: Mapping[str, str],
) -> tuple[gr.Blocks, dict[str, Any]]:
    """The page, and extra arguments for its `launch()`."""
    page, launch_options = make_blocks("Training PRO", CSS)
    with page:
        picker = ModelPicker(host, session, loadings)
        picker.draw()
        DownloadPanel(PageContext(host, engine, session, picker.menu), host.download_job).draw()
        tab.draw(host, engine, session, picker.menu)
    return page, launch_options


class ModelPicker:
    """Menus for the model and its precision, and the memory that it needs."""

    def __init__(self, host: ModelPickerHost, session: Session, loadings: Mapping[str, str]) -> None:
        self._host, self._session, self._loadings = host, session, loadings

    def draw(self) -> None:
        name, loading = self._selection()
        with gr.Row():
            self.menu = gr.Dropdown(
                self._choices(name), value=name or None, label="Model", allow_custom_value=True, elem_id="tp-model"
            )
            self._loading = gr.Dropdown(
                [(label, value) for value, label in self._loadings.items()],
                value=loading,
                label="Load as",
                elem_id="tp-loading",
            )
            self._load_button = gr.Button("Load model", elem_id="tp-load", min_width=120, scale=0)
            self._refresh_button = gr.Button("Refresh", min_width=100, scale=0)
        self._needs = gr.HTML(elem_id="tp-model-needs")
        self._status = gr.HTML(elem_id="tp-model-said", elem_classes="tp-said")
        inputs = {self.menu, self._loading}
        add_handler(self._load_button.click, self._load_model, inputs, self._status, what="Loading the model")
        add_handler(self._refresh_button.click, self._on_refresh, inputs, [self.menu, self._needs], what="Refresh")
        changes, action = [menu.change for menu in (self.menu, self._loading)], "Reading the model"
        add_handler(changes, self._describe_needs, inputs, self._needs, what=action)
        on_load(self._show_selection, [self.menu, self._loading, self._needs], what=action)

    def _choices(self, chosen: str) -> list[str]:
        models = self._host.models()
        return models if not chosen or chosen in models else [chosen, *models]

    def _selection(self) -> tuple[str, str]:
        """The chosen model and precision; the only model if none is chosen."""
        name, loading = self._host.selected_model
        models = [] if name else self._host.models()
        return models[0] if len(models) == 1 else name, loading

    def _show_selection(self) -> tuple[Any, Any, str]:
        """Show the current selection on a page that is opened later."""
        name, loading = self._selection()
        menu = gr.update(choices=self._choices(name), value=name or None)
        return menu, loading, describe_size(self._host, name, loading)

    def _on_refresh(self, inputs: Mapping[Any, Any]) -> tuple[Any, str]:
        """Look for models again, and choose the only one."""
        models, name = self._host.models(), inputs[self.menu] or ""
        name = models[0] if not name and len(models) == 1 else name
        menu = gr.update(choices=self._choices(name), value=name or None)
        return menu, describe_size(self._host, name, inputs[self._loading])

    def _describe_needs(self, inputs: Mapping[Any, Any]) -> str:
        return describe_size(self._host, inputs[self.menu] or "", inputs[self._loading])

    async def _load_model(self, inputs: Mapping[Any, Any]) -> AsyncIterator[str]:
        name, loading = inputs[self.menu], inputs[self._loading]
        if not name:
            yield markup.problem("Choose a model first.")
            return
        work = partial(self._work, name, loading)
        start = partial(self._session.start, "model", f"Loading {name}", self._host, work)
        loading_note = markup.paragraph(f"Loading {name} ...", quiet=True)
        async for status, _ in follow_job(self._session, start, loading_note):
            yield status

    def _work(self, name: str, loading: str, job: Job) -> JobEnded:
        self._host.load(self._host.validate_name(name), loading)
        return JobEnded(outcome="finished", text=f"{name} is loaded.")


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
