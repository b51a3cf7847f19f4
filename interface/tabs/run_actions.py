"""Buttons that use the chosen run: resume it, attach its LoRA, copy its settings, and test its LoRA."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.engine import MergeRequest
from ...core.errors import SavingError
from ...core.files import safe_paths
from ...core.host import Folders
from ...core.jobs import EvidenceMeasured, Job, JobEnded, RecallMeasured, progress_text
from ...records.folder import PARAMETERS, LoraEntry, inventory, loras
from ...records.remote import REQUESTS, read_progress, send_request
from ...settings import files
from ...settings.name_rules import name_problem
from ...settings.parsing import parse_keys
from ..base import Form, PageContext, add_handler, can_resume, follow_job, markup, refresh_choices, resume_run

LABELS = {
    "stop": "Stop",
    "pause": "Pause",
    "resume": "Resume",
    "save": "Save checkpoint",
    "sample": "Sample",
    "evaluate": "Evaluate",
}


class RemotePanel:
    """Stop, Pause or Resume, Save checkpoint, Sample and Evaluate, while the chosen run is in progress."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def draw(self) -> None:
        with gr.Row(elem_classes="tp-buttons", visible=False, elem_id="tp-runs-remote") as self.row:
            self._buttons = {request: gr.Button(label, size="sm") for request, label in LABELS.items()}

    @property
    def outputs(self) -> list[gr.components.Component | gr.Row]:
        """What `updates` changes."""
        return [self.row, self._buttons["pause"], self._buttons["resume"]]

    def connect(self, chosen: gr.Textbox, status: gr.HTML) -> None:
        for request, button in self._buttons.items():
            on_click = partial(self._on_request, request, chosen)
            add_handler(button.click, on_click, {chosen}, [status, *self.outputs[1:]], what=button.value)

    def updates(self, run: LoraEntry | None) -> tuple[Any, Any, Any]:
        if run is None or run.status != "in progress" or self._context.read_only_reason():
            return gr.update(visible=False), gr.update(), gr.update()
        progress = read_progress(run.name, self._context.host.folders)
        return gr.update(visible=True), *_pause_updates(paused=progress.paused)

    def _on_request(self, request: str, chosen: Any, inputs: Mapping[Any, Any]) -> tuple[str, Any, Any]:
        name = require_choice(inputs[chosen]).partition("/")[0]
        buttons = gr.update(), gr.update()

        def send(folders: Folders) -> str:
            nonlocal buttons
            send_request(name, request, folders)
            if request in ("pause", "resume"):
                buttons = _pause_updates(paused=request == "pause")
            return f"{name} {REQUESTS[request].words}."

        return self._context.run_disk_action(send), *buttons


def _pause_updates(*, paused: bool) -> tuple[Any, Any]:
    """Show Pause or Resume."""
    return gr.update(visible=not paused), gr.update(visible=paused)


def progress_line(run: LoraEntry, folders: Folders) -> str:
    """How far a run is that is in progress; empty for any other."""
    if run.status != "in progress":
        return ""
    progress = progress_text(read_progress(run.name, folders))
    return markup.paragraph(f"In progress: {progress.rstrip('.')}.")


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
                # The result, and where to choose the new model: the standalone page updates its menu at once.
                where = "above" if self._context.models else "on the Model tab, after you refresh that menu"
                yield (
                    markup.card(
                        "",
                        markup.paragraph(f"{end.text}. You can choose this model in the model menu {where}."),
                        mood="good",
                    )
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
        work = partial(context.engine.evidence, name, context.host)
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
