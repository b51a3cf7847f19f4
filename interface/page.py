"""The page of our own: a model to choose and load, and the same tab as in the webui."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Protocol

import gradio as gr

from ..core.engine import Engine
from ..core.errors import BusyError
from ..core.events import Ended
from ..core.host import Host
from ..core.session import Job, Session
from ..data.report import DatasetReport
from ..settings.declared import TrainingSettings
from ..train_utils import size
from . import tab, wording
from .first_look import FirstLook
from .gradio_versions import blocks, private
from .joined import Joined
from .style import CSS


class ChoosingHost(Host, Protocol):
    """A host that lets its models be chosen on the page."""

    @property
    def chosen(self) -> tuple[str, str]: ...

    def size_on_disk(self, name: str) -> int: ...


def page(
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
        ModelPicker(host, session, loadings).draw()
        if first_look:
            FirstLook(Joined(host, engine, session)).draw()
        tab.draw(host, engine, session)
    return made, more


class ModelPicker:
    """Which model, loaded how, and what it will take."""

    def __init__(self, host: ChoosingHost, session: Session, loadings: Mapping[str, str]) -> None:
        self._host, self._session, self._loadings = host, session, loadings

    def draw(self) -> None:
        name, loading = self._host.chosen
        with gr.Row():
            self._model = gr.Dropdown(
                self._models(name), value=name or None, label="Model", allow_custom_value=True, elem_id="tp-model"
            )
            self._loading = gr.Dropdown(
                [(words, value) for value, words in self._loadings.items()], value=loading, label="Load as"
            )
            self._load = gr.Button("Load model", elem_id="tp-load", min_width=120, scale=0)
            self._refresh = gr.Button("Refresh", min_width=100, scale=0)
        self._said = gr.HTML(self._needs(name), elem_id="tp-model-said")
        self._load.click(self._load_it, {self._model, self._loading}, self._said, **private())
        self._refresh.click(lambda: gr.update(choices=self._models("")), None, self._model, **private())
        self._model.change(self._needs, self._model, self._said, **private())

    def _models(self, chosen: str) -> list[str]:
        found = self._host.models()
        return found if not chosen or chosen in found else [chosen, *found]

    def _needs(self, name: str | None) -> str:
        """The memory figure: the weights as they lie on disk, against what is free."""
        if not name:
            return wording.paragraph(f"Models are looked for in {self._host.folders.models}.", quiet=True)
        weights, memory = self._host.size_on_disk(name), self._host.memory()
        if not weights or not memory.total:
            return ""
        free = memory.total - memory.used
        return wording.paragraph(
            f"Its weights take {size(weights)} on disk, and about that in memory when loaded as they are. "
            f"Free now: {size(free)} of {size(memory.total)}.",
            quiet=True,
        )

    async def _load_it(self, given: Mapping[Any, Any]) -> AsyncIterator[str]:
        name, loading = given[self._model], given[self._loading]
        if not name:
            yield wording.problem("Choose a model first.")
            return
        try:
            job = self._session.start("model", f"Loading {name}", self._host, partial(self._work, name, loading))
        except BusyError as error:
            yield wording.problem(str(error))
            return
        yield wording.paragraph(f"Loading {name} ...", quiet=True)
        while job.running:
            await asyncio.sleep(0.2)
        end = job.end
        failed = end is None or end.outcome == "failed"
        yield wording.problem(end.text if end else "") if failed else wording.paragraph(f"{name} is loaded.")

    def _work(self, name: str, loading: str, job: Job) -> Ended:
        self._host.load(name, loading)
        return Ended(outcome="finished", text=f"{name} is loaded.")
