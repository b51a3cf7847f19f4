"""A LoRA of the Runs tab baked into a model of its own, among the models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import Merge
from ...core.errors import SavingError, TrainingProError
from ...core.files import safe_paths
from ...core.jobs import Job
from ...records.folder import loras
from ...settings.name_rules import name_problem
from ..base import Joined, follows, handle, markup, new_choices, news, refused, said_last


class MergingHere:
    """One button: what is chosen beside it, under the name that stands beside it."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined

    def draw(self, **looks: Any) -> None:
        self._merge = gr.Button("Merge into a model", elem_id="tp-runs-merge", **looks)

    def connect(self, chosen: gr.Dropdown, name: gr.Textbox, said: gr.HTML) -> None:
        pressed = partial(self._pressed, chosen, name)
        merged = handle(self._merge.click, pressed, {chosen, name}, said, what="Merging", says=said, **follows())
        if self._joined.models:
            new_choices(merged, self._joined.models, self._joined.host.models)

    async def _pressed(self, chosen: Any, name: Any, given: Mapping[Any, Any]) -> AsyncIterator[str]:
        """How far it is; a refusal for as long as what it names goes on."""
        try:
            job = self._begun(given[chosen] or "", (given[name] or "").strip())
        except TrainingProError as error:
            async for refusal in refused(self._joined.session, error):
                yield refusal
            return
        said = ""
        async for fresh in news(job):
            said = said_last(fresh, said)
            yield said
        if job.end and job.end.outcome == "finished":
            yield self._made(job.end.text)

    def _made(self, text: str) -> str:
        """And where it is to be chosen: the menu of a page of our own has it at once."""
        where = "above" if self._joined.models else "of the Model tab, once that is refreshed"
        return markup.card("", markup.paragraph(f"{text}. It stands in the menu of models {where}."), mood="good")

    def _begun(self, lora: str, name: str) -> Job:
        joined = self._joined
        joined.refuse_where_read_only()
        if not lora:
            raise SavingError("Choose a run first.")
        if not name:
            raise SavingError("New name is empty. Type what the model is to be called.")
        if problem := name_problem(name, "model"):
            raise SavingError(f"New name: {problem}")
        loras.named(lora, joined.host.folders.loras)
        out = safe_paths.child(joined.host.folders.models, name, "New name")
        if out.exists():
            raise SavingError(f"New name: there is a model {name!r} already. Choose another one.")
        work = partial(joined.engine.merge, Merge(lora, str(out)), joined.host)
        return joined.session.start("merge", f"Merging {lora} into a model", joined.host, work)
