"""A panel for crashed runs, shown when the page is opened: resume, keep as it is, or throw away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.errors import SavingError
from ...core.host import Folders
from ...records.folder import CrashedRun, crashed_runs
from ..base import Form, PageContext, add_handler, confirm_click, markup, on_load, resume_run

RunAction = Callable[[CrashedRun, Folders], str]


class ResumePanel:
    """A panel that is visible only if there are crashed runs."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form

    def draw(self) -> None:
        self._card = gr.Group(visible=False, elem_id="tp-unfinished")
        with self._card:
            self._description = gr.HTML(elem_id="tp-unfinished-said")
            with gr.Row(elem_classes="tp-buttons"):
                self._menu = gr.Dropdown(
                    [], label="Run", allow_custom_value=True, min_width=160, elem_id="tp-unfinished-run"
                )
                self._resume_button = gr.Button("Resume", variant="primary", elem_id="tp-unfinished-go-on")
                self._keep_button = gr.Button("Keep as is", elem_id="tp-unfinished-keep")
                self._delete_button = gr.Button("Discard", elem_id="tp-unfinished-throw")
        self.message = gr.HTML(elem_id="tp-unfinished-done", elem_classes="tp-said")

    def connect(self) -> None:
        panel = [self._card, self._description, self._menu]
        outputs = [self.message, *panel, *self._form.components.values()]
        for button, action in (
            (self._resume_button, self._resume),
            (self._keep_button, self._keep),
        ):
            on_click = partial(self._on_click, action)
            add_handler(button.click, on_click, {self._menu}, outputs, what=button.value)
        confirm_click(
            self._delete_button,
            lambda inputs: f"Delete what {inputs[self._menu]} has saved?" if inputs[self._menu] else "",
            partial(self._on_click, self._delete),
            {self._menu},
            outputs,
        )
        options: dict[str, Any] = {
            "what": "Looking for interrupted runs",
            "clears": {self._card: gr.update(visible=True)},
        }
        on_load(self._panel_updates, panel, **options)

    def _panel_updates(self) -> tuple[Any, str, Any]:
        runs = self._crashed_runs()
        card = (
            markup.card("Interrupted runs", markup.bullets(map(describe_crashed_run, runs)), mood="fair")
            if runs
            else ""
        )
        names = [run.name for run in runs]
        return gr.update(visible=bool(runs)), card, gr.update(choices=names, value=names[0] if names else None)

    def _crashed_runs(self) -> list[CrashedRun]:
        if self._context.read_only_reason():
            return []
        runs = self._context.read_disk(crashed_runs.find_crashed_runs, ())
        return [run for run in runs if not self._context.is_training(run.name)]

    def _on_click(self, action: RunAction, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        def run_action(folders: Folders) -> str:
            run = next((run for run in self._crashed_runs() if run.name == inputs[self._menu]), None)
            if run is None:
                raise SavingError("This run is no longer in the list of interrupted runs. Reload the page.")
            return action(run, folders)

        message = {self.message: self._context.run_disk_action(run_action)}
        panel = zip((self._card, self._description, self._menu), self._panel_updates(), strict=True)
        shown = self._form.updates(self._context.live_values) if self._context.in_run else {}
        return {**message, **dict(panel), **shown}

    def _resume(self, run: CrashedRun, folders: Folders) -> str:
        """Resume the run, bit for bit as if it had not crashed."""
        return resume_run(self._context, run.name)

    def _keep(self, run: CrashedRun, folders: Folders) -> str:
        crashed_runs.keep_run(run, folders)
        return f"{run.name} is now a LoRA with the weights from step {run.safe_step}."

    def _delete(self, run: CrashedRun, folders: Folders) -> str:
        crashed_runs.discard_run(run, folders)
        return f"Discarded {run.name}."


def describe_crashed_run(run: CrashedRun) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.at))
    steps = f" of {run.steps}" if run.steps else ""
    return (
        f"{run.name} stopped unexpectedly at step {run.step}{steps} ({when}). If you resume it, {run.lost_work}."
    )
