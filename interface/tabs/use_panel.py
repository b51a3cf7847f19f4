"""Buttons that use the chosen run: resume it, attach its LoRA, copy its settings, and test its LoRA."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import EvidenceRequest
from ...core.errors import SavingError
from ...core.jobs import EvidenceMeasured, Job, RecallMeasured
from ...records.folder import PARAMETERS, LoraEntry, inventory, loras
from ...settings import files
from ..base import Form, PageContext, add_handler, can_resume, follow_job, markup, resume_run


class UsePanel:
    """Resume, Attach, Copy settings and Test LoRA, for the run or checkpoint chosen in the list."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form

    def draw(self, *, enabled: bool) -> None:
        self.resume_button = gr.Button("Resume", visible=False, elem_id="tp-runs-resume")
        self.attach_button = gr.Button("Attach LoRA", interactive=enabled, elem_id="tp-runs-attach")
        self._copy_button = gr.Button("Copy settings to the form", elem_id="tp-runs-settings")
        self.test_button = gr.Button("Test LoRA", interactive=enabled, elem_id="tp-runs-test")

    def connect(self, chosen: gr.Textbox, status: gr.HTML) -> None:
        add_handler(
            self.resume_button.click,
            partial(self._on_resume, chosen, status),
            {chosen},
            [status, *self._form.components.values()],
            what="Resuming the run",
        )
        add_handler(
            self.attach_button.click,
            partial(self._on_attach, chosen),
            {chosen},
            status,
            what="Attaching the LoRA",
        )
        add_handler(
            self.test_button.click, partial(self._on_test, chosen), {chosen}, status, what="Testing the LoRA"
        )
        outputs = [status, *self._form.components.values()]
        add_handler(
            self._copy_button.click,
            partial(self._on_copy, chosen, status),
            {chosen},
            outputs,
            what="Copying the settings",
        )

    async def _on_test(self, chosen: Any, inputs: Mapping[Any, Any]) -> AsyncIterator[str]:
        """Measure what the LoRA learned, forgot and copies; the result ends the status."""
        recalls, evidence = list[RecallMeasured](), None
        async for status, events in follow_job(self._context.session, partial(self._start_test, inputs[chosen])):
            recalls += [event for event in events if isinstance(event, RecallMeasured)]
            evidence = next((event for event in events if isinstance(event, EvidenceMeasured)), evidence)
            yield markup.join([status, markup.evidence(evidence, recalls), markup.recall(recalls)])

    def _start_test(self, chosen: str | None) -> Job:
        context, name = self._context, require_choice(chosen)
        context.check_writable()
        loras.find_lora(name, context.host.folders.loras)
        work = partial(context.engine.evidence, EvidenceRequest(name), context.host)
        return context.session.start("evidence", f"Testing {name}", context.host, work)

    def resume_update(self, run: LoraEntry | None) -> Any:
        """Resume is shown for a run that is not finished and has a complete checkpoint."""
        visible = run is not None and run.status != "in progress" and can_resume(self._context, run.name)
        return gr.update(visible=visible, interactive=not self._context.read_only_reason())

    def _on_resume(self, chosen: Any, status: Any, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """Resume from the chosen checkpoint, or else from the newest one."""
        folders = self._context.host.folders
        folder = inventory.find_folder(require_choice(inputs[chosen]), folders)
        name, *part = folder.relative_to(folders.loras).parts
        if loras.run_status(folders.loras / name) == "finished":
            raise SavingError(
                f"{name} can't be resumed. You can resume a run only if it was stopped, failed, or was "
                "interrupted by a crash."
            )
        message = f"{resume_run(self._context, name, folder.name if part else 'newest')} See the Train tab."
        shown = markup.card("", markup.paragraph(message), mood="good")
        return {**self._form.updates(self._context.live_values), status: shown}

    async def _on_attach(self, chosen: Any, inputs: Mapping[Any, Any]) -> AsyncIterator[str]:
        """Attach the LoRA to the model in memory, at its full strength."""
        async for status, _ in follow_job(self._context.session, partial(self._start_attach, inputs[chosen])):
            yield status

    def _start_attach(self, chosen: str | None) -> Job:
        context, name = self._context, require_choice(chosen)
        context.check_writable()
        loras.find_lora(name, context.host.folders.loras)
        work = partial(context.engine.attach_lora, name, 1.0, context.host)
        return context.session.start("model", f"Attaching {name}", context.host, work)

    def _on_copy(self, chosen: Any, status: Any, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        """Put the settings that the run was started with into the form."""
        folders = self._context.host.folders
        folder = inventory.find_folder(require_choice(inputs[chosen]), folders)
        name = folder.relative_to(folders.loras).parts[0]
        loaded = files.load_settings(folders.loras / name / PARAMETERS, folders.datasets)
        message = " ".join((f"The form on the Train tab now has the settings of {name}.", *loaded.notes))
        return {
            **self._form.updates(loaded.values),
            status: markup.card("", markup.paragraph(message), mood="good"),
        }


def describe_missing_lora(run: LoraEntry | None, chosen: str) -> str:
    """Why a run or checkpoint can't be attached, tested, copied, merged or exported; empty if it can."""
    if run is None:
        return ""
    folders = dict(zip(run.names, (run.folder, *(part.folder for part in run.parts)), strict=True))
    if loras.has_lora(folders.get(chosen, run.folder)):
        return ""
    reason = f"{chosen} has no saved LoRA, so you can't attach, test, copy, merge or export it."
    if any(map(loras.has_lora, folders.values())):
        return f"{reason} Choose one of its checkpoints instead."
    return f"{reason} Save a checkpoint first." if run.status == "in progress" else reason


def require_choice(chosen: str | None) -> str:
    if not chosen:
        raise SavingError("Choose a run first.")
    return chosen
