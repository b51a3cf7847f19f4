"""Merge a LoRA of the Runs tab into its base model, and save the result in the models folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import MergeRequest
from ...core.errors import SavingError
from ...core.files import safe_paths
from ...core.jobs import Job, JobEnded
from ...records.folder import loras
from ...settings.name_rules import name_problem
from ...settings.parsing import parse_keys
from ..base import Form, PageContext, add_handler, follow_job, markup, refresh_choices
from .use_panel import require_choice


class MergePanel:
    """A button that merges the chosen LoRA into a model with the given new name."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form

    def draw(self, **options: Any) -> None:
        self.button = gr.Button("Merge into model", elem_id="tp-runs-merge", **options)

    def connect(self, chosen: gr.Textbox, name: gr.Textbox, status: gr.HTML) -> None:
        on_merge = partial(self._on_merge, chosen, name)
        inputs = {chosen, name, *filter(None, [self._shard_size])}
        finished = add_handler(self.button.click, on_merge, inputs, status, what="Merging the LoRA")
        if self._context.models:
            refresh_choices(finished.then, self._context.models, self._context.host.models)

    @property
    def _shard_size(self) -> Any:
        """The form's box for the size of a model's files."""
        return self._form.components.get("shard_size")

    async def _on_merge(self, chosen: Any, name: Any, inputs: Mapping[Any, Any]) -> AsyncIterator[str]:
        """Yield the progress of the merge, or a refusal for as long as it applies."""
        names = inputs[chosen] or "", (inputs[name] or "").strip()
        start = partial(self._start_merge, *names, inputs.get(self._shard_size))
        async for status, events in follow_job(self._context.session, start):
            yield status
            if events and isinstance(end := events[-1], JobEnded) and end.outcome == "finished":
                yield self._success(end.text)

    def _success(self, text: str) -> str:
        """The result, and where to choose the new model: the standalone page updates its menu at once."""
        where = "above" if self._context.models else "on the Model tab, after you refresh that menu"
        return markup.card(
            "", markup.paragraph(f"{text}. You can choose this model in the model menu {where}."), mood="good"
        )

    def _start_merge(self, lora: str, name: str, shard_size: str | None = None) -> Job:
        context = self._context
        context.check_writable()
        require_choice(lora)
        if not name:
            raise SavingError("New name: enter a name for the model.")
        if problem := name_problem(name, "model"):
            raise SavingError(f"New name: {problem}")
        loras.find_lora(lora, context.host.folders.loras)
        folder = safe_paths.child(context.host.folders.models, name, "New name")
        if folder.exists():
            raise SavingError(f"New name: a model named {name!r} already exists. Choose another name.")
        checked = parse_keys({} if shard_size is None else {"shard_size": shard_size})
        request = MergeRequest(lora, str(folder), **checked)
        work = partial(context.engine.merge, request, context.host)
        return context.session.start("merge", f"Merging {lora} into a model", context.host, work)
