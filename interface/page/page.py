"""The page of our own: a model to choose and load, and the same tab as in the webui."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Protocol

import gradio as gr

from ...core.engine import Engine
from ...core.errors import BusyError
from ...core.host import Host, ModelCard
from ...core.jobs import Ended, Job, Session, Work
from ...data.report import DatasetReport, weights_as
from ...settings.definitions import TrainingSettings
from ...train_utils import ModelShape, size, weights_in_memory
from ..base import (
    CSS,
    Joined,
    blocks,
    follows,
    handle,
    markup,
    new_choices,
    news,
    on_load,
    private,
    refused,
    said_last,
)
from . import tab
from .download_panel import TITLE, GetModel
from .quick_demo import FirstLook

NAMES = {"8bit": "8-bit", "4bit": "4-bit"}


class ChoosingHost(Host, Protocol):
    """A host that lets its models be chosen on the page."""

    @property
    def chosen(self) -> tuple[str, str]: ...

    def size_on_disk(self, name: str) -> int: ...

    def config(self, name: str) -> dict[str, Any]: ...

    def on_card(self) -> bool: ...

    def get(self, asked: str) -> tuple[str, Work]: ...

    def offered(self, name: str) -> str: ...


def build_page(
    host: ChoosingHost,
    engine: Engine[TrainingSettings, DatasetReport],
    session: Session,
    *,
    loadings: Mapping[str, str],
    first_look: bool = False,
) -> tuple[gr.Blocks, dict[str, Any]]:
    """The page, and what its launch() must be told besides."""
    made, more = blocks("Training PRO", CSS)
    with made:
        picker = ModelPicker(host, session, loadings)
        picker.draw()
        GetModel(Joined(host, engine, session, picker.menu), host.get).draw()
        if first_look:
            FirstLook(Joined(host, engine, session)).draw()
        tab.draw(host, engine, session, picker.menu)
    return made, more


class ModelPicker:
    """Which model, loaded how, and what it will take."""

    def __init__(self, host: ChoosingHost, session: Session, loadings: Mapping[str, str]) -> None:
        self._host, self._session, self._loadings = host, session, loadings

    def draw(self) -> None:
        name, loading = self._meant()
        with gr.Row():
            self._model = gr.Dropdown(
                self._models(name), value=name or None, label="Model", allow_custom_value=True, elem_id="tp-model"
            )
            self._loading = gr.Dropdown(
                [(words, value) for value, words in self._loadings.items()],
                value=loading,
                label="Load as",
                elem_id="tp-loading",
            )
            self._load = gr.Button("Load model", elem_id="tp-load", min_width=120, scale=0)
            self._refresh = gr.Button("Refresh", min_width=100, scale=0)
        self._needs = gr.HTML(elem_id="tp-model-needs")
        self._said = gr.HTML(elem_id="tp-model-said", elem_classes="tp-said")
        chosen = {self._model, self._loading}
        handle(
            self._load.click,
            self._load_it,
            chosen,
            self._said,
            what="Loading the model",
            says=self._said,
            **follows(),
        )
        new_choices(self._refresh.click(None, **private()), self._model, self._host.models)
        looking = {"what": "Looking at the model", "says": self._needs}
        changed = [part.change for part in (self._model, self._loading)]
        handle(changed, self._told, chosen, self._needs, **looking, **private())
        on_load(self._as_chosen, [self._model, self._loading, self._needs], **looking, **private())

    @property
    def menu(self) -> Any:
        return self._model

    def _models(self, chosen: str) -> list[str]:
        found = self._host.models()
        return found if not chosen or chosen in found else [chosen, *found]

    def _meant(self) -> tuple[str, str]:
        """What was chosen; where nothing was, and there is only one model, that."""
        name, loading = self._host.chosen
        only = [] if name else self._host.models()
        return only[0] if len(only) == 1 else name, loading

    def _as_chosen(self) -> tuple[Any, Any, str]:
        """A page opened later shows the model that is meant."""
        name, loading = self._meant()
        return gr.update(choices=self._models(name), value=name or None), loading, needs(self._host, name, loading)

    def _told(self, given: Mapping[Any, Any]) -> str:
        return needs(self._host, given[self._model] or "", given[self._loading])

    async def _load_it(self, given: Mapping[Any, Any]) -> AsyncIterator[str]:
        name, loading = given[self._model], given[self._loading]
        if not name:
            yield markup.problem("Choose a model first.")
            return
        try:
            job = self._session.start("model", f"Loading {name}", self._host, partial(self._work, name, loading))
        except BusyError as error:
            async for said in refused(self._session, error):
                yield said
            return
        said = markup.paragraph(f"Loading {name} ...", quiet=True)
        yield said
        async for fresh in news(job):
            yield (said := said_last(fresh, said))

    def _work(self, name: str, loading: str, job: Job) -> Ended:
        self._host.load(self._host.offered(name), loading)
        return Ended(outcome="finished", text=f"{name} is loaded.")


def needs(host: ChoosingHost, name: str, loading: str) -> str:
    """What a model's weights take on disk, and in the memory of this machine when loaded like that."""
    if not name:
        words = f"Models are looked for in {host.folders.models}; {TITLE} brings one."
        return markup.paragraph(words, quiet=True)
    on_disk, config = host.size_on_disk(name), host.config(name)
    if not on_disk:
        return ""
    words = f"Its weights take {size(on_disk)} on disk"
    shape = ModelShape.of(config)
    if shape is not None and "quantization_config" not in config:
        held_as = weights_as(ModelCard(name, config, None, loading), on_card=host.on_card())
        in_memory = size(weights_in_memory(shape, held_as))
        words += f", and about {in_memory} in memory, loaded as {NAMES.get(held_as, held_as)}"
    elif name.endswith(".gguf"):
        words += "; they are unpacked when it is loaded, and take more in memory"
    return markup.paragraph(f"{words}.", quiet=True)
