"""The Train tab: the form, Check and Start, and the run as it goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import gradio as gr

from ..core.control import RunControl
from ..core.errors import TrainingProError
from ..core.session import Job
from ..data import library
from ..schedulers import described
from ..settings.declared import TrainingSettings
from ..settings.reading import training_settings
from ..train_utils import StepPlan
from . import model_line, plots, report_view, wording
from .form import Form
from .gradio_versions import follows, private
from .joined import Joined, on_load
from .run_view import RunView

VISIBLE: tuple[tuple[str, ...], ...] = (
    ("chunking", "hard_cut"),
    ("cutoff", "epochs", "learning_rate"),
    ("schedule",),
    ("rank", "batch_size", "accumulation"),
)
FOLDED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "LoRA": (("alpha", "dropout"), ("targets", "rslora")),
    "Text and tokens": (("overlap", "add_bos"), ("add_eos", "min_chars"), ("dementor_repeats",)),
    "Saving": (("save_every", "save_each_epoch"),),
    "Learning rate and optimizer": (
        ("warmup_steps", "max_steps"),
        ("weight_decay", "max_grad_norm"),
        ("adam_beta1", "adam_beta2", "adam_epsilon"),
    ),
    "Memory and speed": (("gradient_checkpointing",),),
    "Records": (("seed",),),
}
PAUSE_SECONDS = 0.5


class TrainTab:
    """The components of the tab and what they do."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._form = Form()
        self._buttons: dict[str, gr.Button] = {}

    def draw(self) -> None:
        """Form at the left, what comes of it at the right; one below the other where it is narrow."""
        self._line = gr.HTML(model_line.html(self._joined), elem_id="tp-line")
        with gr.Row():
            with gr.Column(scale=6, min_width=320, elem_classes="tp-form"):
                self._draw_form()
            with gr.Column(scale=7, min_width=320, elem_classes="tp-right"):
                self._draw_run()
        assert not list(self._form.undrawn()), "a setting has no place on the page"
        self._connect()

    def _draw_form(self) -> None:
        self._form.draw_row("name", "if_exists")
        with gr.Row():
            self._form.draw("data", choices=data_choices(self._joined), scale=8)
            self._buttons["refresh"] = gr.Button("Refresh", scale=1, min_width=90, size="sm")
        for keys in VISIBLE:
            self._form.draw_row(*keys)
        for title, rows in FOLDED.items():
            with gr.Accordion(title, open=False):
                for keys in rows:
                    self._form.draw_row(*keys)

    def _draw_run(self) -> None:
        may = not self._joined.host_says_read_only()
        with gr.Row(elem_classes="tp-buttons"):
            self._buttons["check"] = gr.Button("Check", elem_id="tp-check")
            self._buttons["start"] = gr.Button("Start", variant="primary", interactive=may, elem_id="tp-start")
        with gr.Row(elem_classes="tp-buttons"):
            self._buttons["stop"] = gr.Button("Stop", variant="stop", interactive=False, elem_id="tp-stop")
            self._buttons["save"] = gr.Button("Save checkpoint", interactive=False, elem_id="tp-save")
        self._answer = gr.HTML(elem_id="tp-answer")
        self._panel = gr.HTML(elem_id="tp-run")

    def _connect(self) -> None:
        form, buttons = self._form.inputs(), self._buttons
        buttons["check"].click(self._check, form, self._answer, **private())
        buttons["start"].click(self._start, form, self._answer, **private())
        buttons["stop"].click(self._stop, None, self._answer, **private())
        buttons["save"].click(self._save, None, self._answer, **private())
        buttons["refresh"].click(self._refresh, None, self._form.components["data"], **private())
        on_load(self._refresh, [self._form.components["data"]], **private())
        seen = [self._line, self._panel, buttons["start"], buttons["stop"], buttons["save"]]
        on_load(self._follow, seen, **follows())

    def _check(self, given: Mapping[Any, Any]) -> str:
        """What a run with this form would learn from, or everything that is wrong with the form."""
        try:
            settings = training_settings(self._form.values(given))
            return checked(settings, self._joined)
        except TrainingProError as error:
            return wording.problem(str(error))

    def _start(self, given: Mapping[Any, Any]) -> str:
        host, engine = self._joined.host, self._joined.engine
        try:
            self._joined.refuse_where_read_only()
            settings = training_settings(self._form.values(given))
            title = f"Training '{settings.what.name}'"
            self._joined.session.start("training", title, host, partial(engine.train, settings, host))
        except TrainingProError as error:
            return wording.problem(str(error))
        return ""

    def _stop(self) -> str:
        """Stop after this step; the run panel says so at once."""
        return self._ask(RunControl.stop)

    def _save(self) -> str:
        return self._ask(RunControl.save_checkpoint)

    def _ask(self, wish: Callable[[RunControl], None]) -> str:
        try:
            self._joined.refuse_where_read_only()
        except TrainingProError as error:
            return wording.problem(str(error))
        job = self._joined.session.latest("training")
        if job is None or not job.running:
            return wording.card("", wording.paragraph("No run is going on."))
        wish(job.control)
        return ""

    def _refresh(self) -> Any:
        return gr.update(choices=data_choices(self._joined))

    async def _follow(self) -> AsyncIterator[tuple[Any, ...]]:
        """The whole of the running or last run, and then whatever is new, for as long as the page is open."""
        view: RunView | None = None
        shown: tuple[Any, ...] = ()
        while True:
            job = self._joined.session.latest("training")
            if job is not None and (view is None or view.job is not job):
                view = RunView(job)
            if view is not None:
                view.catch_up()
            now = (model_line.html(self._joined), _state(view))
            if now != shown:
                shown = now
                yield (now[0], view.html() if view else "", *self._button_states(view))
            await asyncio.sleep(PAUSE_SECONDS)

    def _button_states(self, view: RunView | None) -> tuple[Any, ...]:
        running = view is not None and view.running
        may = not self._joined.host_says_read_only()
        on, off = gr.update(interactive=may and running), gr.update(interactive=may and not running)
        return off, on, on


def checked(settings: TrainingSettings, joined: Joined) -> str:
    """Check's report, with the plan of the run to come."""
    report = joined.engine.check(settings, joined.host)
    if not report.examples:
        return report_view.html(report)
    steps = settings.steps
    plan = StepPlan(report.examples, steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    phases, _ = plots.planned_rates(settings, plan)
    words = wording.paragraph(f"{settings.learning.schedule}: {described(phases)}.", quiet=True)
    return report_view.html(report, plots.plan_curve(settings, plan) + words)


def data_choices(joined: Joined) -> list[tuple[str, str]]:
    """The data sets there are; the project's own are marked as examples."""
    try:
        found = library.listed(joined.host.folders)
    except TrainingProError:
        return []
    return [(f"{d.name} (an example)" if d.example else d.name, d.name) for d in found]


def _state(view: RunView | None) -> tuple[Any, ...]:
    """What has to change for a page to be sent anything."""
    if view is None:
        return ()
    job: Job = view.job
    return (id(job), view.position, job.control.stopping, job.control.saving)
