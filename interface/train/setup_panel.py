"""Set up training: the environment of training processes, for a host whose libraries can't train the model."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import gradio as gr

from ...core.errors import SettingsError
from ...core.jobs import Job, JobKind, Request
from ...core.own_environment import State, own_environment
from ...downloads import virtual_env
from ...train_utils import size
from ..base import PageContext, add_handler, markup, page_load

KIND: JobKind = "environment"
INSTALL = "Download and install"
LABELS = {
    State.MISSING: "Set up training",
    State.INCOMPLETE: "Continue the setup",
    State.BROKEN: "Repair",
    State.OUTDATED: "Update",
}
TEXTS = {
    State.MISSING: (
        "To train here, Training PRO needs torch, transformers and PEFT in an environment of its own. 'Set up "
        "training' first shows how much it has to download. The webui's own packages are not changed."
    ),
    State.INCOMPLETE: "The setup of the training environment is not complete. So far, it takes {size}.",
    State.BROKEN: (
        "The Python that the training environment was made with has gone. If there is another Python of the same "
        "version, 'Repair' downloads nothing."
    ),
    State.OUTDATED: "The training environment ({size}) has earlier versions of its packages. You can update it.",
    State.READY: "Training environment: {size} in {folder}. The Runs tab can remove it.",
}
# Builds that PyTorch's own index has. Anything else that pip accepts could run code of somebody else's.
BUILD = re.compile(r"cpu|xpu|cu\d+|rocm\d+(\.\d+)*")
BUILD_HELP = "for example cu126, or a ROCm build (see pytorch.org); empty: the build for your GPU, or for the CPU"


class SetupPanel:
    """Hidden while the host can train and no environment was ever made; one line once the environment is ready."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._plan: tuple[Job, str] | None = None  # the latest job that only said what it downloads, and its build
        with gr.Group(visible=False, elem_id="tp-setup") as self._panel:
            self._text = gr.HTML(elem_id="tp-setup-text")
            with gr.Row(elem_classes="tp-buttons"):
                self._torch = gr.Textbox(
                    label="Build of torch", info=BUILD_HELP, max_lines=1, min_width=200, elem_id="tp-setup-torch"
                )
                self._go_button = gr.Button(LABELS[State.MISSING], variant="primary", elem_id="tp-setup-go")
                self._stop_button = gr.Button("Stop", elem_id="tp-setup-stop")
            refusal = gr.HTML(elem_id="tp-setup-refused", elem_classes="tp-said")
            self._status = gr.HTML(elem_id="tp-setup-said", elem_classes="tp-said")
            follow_button = gr.Button("Follow again", elem_classes=["tp-hidden", "tp-again"])
        inputs, what = [self._go_button, self._torch], "Setting up training"
        started = add_handler(self._go_button.click, self._start, inputs, refusal, what=what)
        self.follow_after(page_load(), started.then, follow_button.click)
        add_handler(self._stop_button.click, self._stop, None, refusal, what="Stop")

    def follow_after(self, *events: Any) -> None:
        """Show the state after these events, such as the choice of another model."""
        shown = [self._panel, self._text, self._torch, self._go_button, self._stop_button, self._status]
        for event in events:
            add_handler(event, self._follow, None, shown, what="Setting up training")

    def _start(self, label: str, torch: str | None) -> str:
        """Say what would be downloaded; the second press, with the label that says so, installs it."""
        self._context.check_writable()
        is_plan = label != INSTALL
        # The plan that is on the page is carried out, also after a reload, which empties the box.
        build = (torch or "").strip() if is_plan or self._plan is None else self._plan[1]
        if build and not BUILD.fullmatch(build):
            raise SettingsError([f"Build of torch {build!r} is not valid. Enter {BUILD_HELP}."])
        if not is_plan:
            self._context.free_environment()
        title = "Finding out what to download" if is_plan else "Setting up training"
        work = virtual_env.set_up(
            self._context.host.folders, self._context.free_environment, torch=build, plan=is_plan
        )
        job = self._context.session.start_without_model(KIND, title, work)
        self._plan = (job, build) if is_plan else None
        return ""

    def _stop(self) -> str:
        self._context.require_job(KIND, "No setup is running.").control.ask(Request.STOP)
        return ""

    async def _follow(self) -> AsyncIterator[dict[Any, Any]]:
        """Show the state, and every change while a setup is running."""
        async for _ in self._context.follow_latest(KIND):
            yield self._updates()
            if self._context.running_job(KIND) is None:
                return

    def _updates(self) -> dict[Any, Any]:
        """What the panel shows for the state of the environment and of its setup."""
        environment, job = own_environment(self._context.host.folders), self._context.session.latest(KIND)
        state, end = environment.state, job.end if job else None
        is_done = end is not None and end.outcome == "finished"
        is_running, is_enabled = job is not None and job.running, not self._context.read_only_reason()
        label = LABELS.get(state, "")
        if label and is_done and self._plan is not None and job is self._plan[0]:
            label = INSTALL
        text = "" if is_running else TEXTS[state].format(size=size(environment.size), folder=environment.folder)
        # Of a complete environment, the text says the same.
        status = markup.download_card(job)[1] if job and (label or not is_done) else ""
        host = self._context.host
        lacks_torch = find_spec("torch") is None or host.own_process is not None
        is_needed = state is not State.MISSING or is_running or (lacks_torch and bool(host.model_status().problem))
        can_set_up = bool(label) and not is_running
        return {
            self._panel: gr.update(visible=is_needed),
            self._text: markup.paragraph(text, quiet=state is State.READY) if text else "",
            self._torch: gr.update(visible=can_set_up and label != INSTALL),
            self._go_button: gr.update(value=label, visible=can_set_up, interactive=is_enabled),
            self._stop_button: gr.update(visible=is_running, interactive=is_enabled),
            self._status: status,
        }
