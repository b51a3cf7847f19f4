"""The tab in the webui, and the standalone page around it, where models are chosen, loaded and downloaded."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import gradio as gr
from markupsafe import Markup

from ...core.errors import SettingsError
from ...core.host import Host, ModelCard
from ...core.jobs import Job, JobEnded, JobFn, Request, Session
from ...core.model_shape import ModelShape, model_bytes
from ...train_utils import size
from ..base import CSS, PageContext, PageEngine, add_handler, markup, page_load
from ..tabs import DataTab, PerplexityTab, RunsTab, TryTab
from ..train import TrainTab

DOWNLOAD = "Download a model"
LOADED_MODEL = "the model that is loaded"
UNLOAD_LABEL = "Unload the chat's model during a run, and load it again afterwards"
NAME_BOX = "tp-get-name"
# Models for beginners, the smallest first.
SUGGESTED_MODELS = ("HuggingFaceTB/SmolLM2-360M-Instruct", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B")
PRECISION_NAMES = {"8bit": "8-bit", "4bit": "4-bit"}


class ModelPickerHost(Host, Protocol):
    """A host whose model is chosen on the page."""

    loadings: Mapping[str, str]

    @property
    def selected_model(self) -> tuple[str, str]: ...

    def size_on_disk(self, name: str) -> int: ...

    def config(self, name: str) -> dict[str, Any]: ...

    def uses_gpu(self) -> bool: ...

    def download_job(self, name: str) -> tuple[str, JobFn]: ...


@runtime_checkable
class TargetHost(Host, Protocol):
    """A host that lends the model that it has loaded, or names another one for a process of its own."""

    unloads_for_runs: bool
    loadings: Mapping[str, str]

    @property
    def selected_model(self) -> tuple[str, str]: ...

    def choose_model(self, name: str, loading: str) -> None: ...


def draw_tab(context: PageContext) -> None:
    changes_setup: list[Any] = []  # events after which training may need an environment, or no longer has one
    if isinstance(context.host, TargetHost):
        changes_setup.append(draw_target_menu(context.host, context))
    # Without ids and a choice, Gradio 4.37 warns in the browser's console at each update of a tab. When that
    # version goes, delete `selected` and the ids.
    with gr.Tabs(selected="train", elem_id="tp-tabs"):
        with gr.Tab("Train", id="train") as tab:
            train_tab = TrainTab(context, tab)
        context = replace(context, working=train_tab.working)
        with gr.Tab("Data", id="data") as tab:
            DataTab(context, tab, train_tab.form)
        with gr.Tab("Try it", id="try") as tab:
            TryTab(context, tab)
        with gr.Tab("Perplexity", id="perplexity") as tab:
            PerplexityTab(context, tab, train_tab.form)
        with gr.Tab("Runs", id="runs") as tab:
            runs_tab = RunsTab(context, tab, train_tab.form)
        if train_tab.setup is not None:
            train_tab.setup.follow_after(*changes_setup, runs_tab.environment_removed)


def build_page(host: ModelPickerHost, engine: PageEngine, session: Session) -> tuple[gr.Blocks, dict[str, Any]]:
    """The page, and extra arguments for its `launch()`."""
    # Gradio 6 takes the style sheet in `launch()`. When Gradio 4.37 goes, delete `style` and return CSS always.
    style = {"css": CSS} if "css" in inspect.signature(gr.Blocks.__init__).parameters else {}
    page = gr.Blocks(title="Training PRO", analytics_enabled=False, **style)
    context = PageContext(host, engine, session)
    with page:
        context = replace(context, models=draw_model_picker(host, context))
        DownloadPanel(host, context)
        draw_tab(context)
    # Gradio's own errors in its own words, such as of a page that was open while Training PRO was updated.
    return page, {"show_error": True, **({} if style else {"css": CSS})}


def draw_model_picker(host: ModelPickerHost, context: PageContext) -> gr.Dropdown:
    """Draw the menus for the model and its precision, and the memory that it needs; returns the menu of models."""
    precisions = [(label, value) for value, label in host.loadings.items()]
    with gr.Row():
        models_menu = gr.Dropdown([], label="Model", allow_custom_value=True, elem_id="tp-model")
        loading_menu = gr.Dropdown(precisions, label="Load as", elem_id="tp-loading")
        load_button = gr.Button("Load model", elem_id="tp-load", min_width=120, scale=0)
        refresh_button = gr.Button("Refresh", min_width=100, scale=0)
    needs = gr.HTML(elem_id="tp-model-needs")
    status = gr.HTML(elem_id="tp-model-said", elem_classes="tp-said")

    def show(name: str | None, loading: str) -> tuple[Any, str, str]:
        """The menus with this choice, or with the only model if none is chosen, and the memory that it needs."""
        models = host.models()
        if not name and len(models) == 1:
            name = models[0]
        choices = models if not name or name in models else [name, *models]
        return gr.update(choices=choices, value=name or None), loading, describe_size(host, name, loading)

    async def load(name: str | None, loading: str) -> AsyncIterator[str]:
        if not name:
            yield markup.problem("Choose a model first.")
            return

        def work(_: Job) -> JobEnded:
            host.load(name, loading)
            return JobEnded(outcome="finished", text=f"{name} is loaded.")

        loading_note = markup.paragraph(f"Loading {name} ...", quiet=True)
        async for said, _ in context.follow_job("model", f"Loading {name}", work, loading_note):
            yield said

    menus = [models_menu, loading_menu]
    add_handler(load_button.click, load, menus, status, what="Loading the model")
    add_handler(refresh_button.click, show, menus, [*menus, needs], what="Refresh")
    changes, what = [menu.change for menu in menus], "Reading the model"
    add_handler(changes, partial(describe_size, host), menus, needs, what=what)
    add_handler(page_load(), lambda: show(*host.selected_model), None, [*menus, needs], what=what)
    return models_menu


def draw_target_menu(host: TargetHost, context: PageContext) -> Any:
    """Draw what is trained, the model that the webui has loaded or another one; return the event of the choice."""
    with gr.Row():
        menu = gr.Dropdown([], label="What to train", elem_id="tp-target", min_width=300)
        precisions = [(label, value) for value, label in host.loadings.items()]
        loading_menu = gr.Dropdown(
            precisions, value="auto", label="Load as", elem_id="tp-target-loading", min_width=200
        )
        unloads = gr.Checkbox(label=UNLOAD_LABEL, elem_id="tp-unload", min_width=300)
    said = gr.HTML(elem_id="tp-target-said", elem_classes="tp-said")

    def show() -> tuple[Any, Any, Any]:
        # The models folder can be another one by now: the webui has a picker for it.
        names, own = host.models(), host.own_process
        chosen, loading = host.selected_model
        if chosen not in ("", *names):  # Gradio refuses a value that it does not offer
            names = [*names, chosen]
        choices = [(LOADED_MODEL, ""), *((name, name) for name in names)]
        return (
            gr.update(choices=choices, value=chosen),
            gr.update(value=loading, visible=own is not None),
            gr.update(value=host.unloads_for_runs, visible=own is not None),
        )

    def choose(name: str | None, loading: str, is_unloading: bool) -> tuple[Any, Any, Any, str]:
        context.check_writable()
        if job := context.session.current:
            return *show(), markup.problem(f"{job.title} is in progress. Choose another model when it has ended.")
        host.choose_model(name or "", loading)
        host.unloads_for_runs = is_unloading
        return *show(), ""

    inputs, what = [menu, loading_menu, unloads], "Choosing the model"
    chosen = add_handler([part.input for part in inputs], choose, inputs, [*inputs, said], what=what)
    shown = gr.State()

    def refresh(before: object) -> tuple[Any, ...]:
        """What has changed: Gradio 4.37 hides all other entries of a menu that is filled anew while it is open."""
        now = (host.models(), host.selected_model, host.unloads_for_runs)
        return (*((gr.update(),) * 3 if now == before else show()), now)

    for event in (page_load(), menu.focus, chosen.then):
        add_handler(event, refresh, shown, [*inputs, shown], what=what)
    return chosen.then


def describe_size(host: ModelPickerHost, name: str | None, loading: str) -> str:
    """The size of the weights of a model on disk, and in memory if it is loaded like this."""
    if not name:
        start = "Choose a model. To add one, put it" if host.models() else "There is no model yet. Put one"
        text = f"{start} in {host.folders.models} and press Refresh, or open '{DOWNLOAD}'."
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
        more = "several times as much in memory, because they are unpacked when the model is loaded"
        packed = "about as much in memory where the installed transformers can keep them packed, else "
        text += f", and {packed if loading == 'auto' else ''}{more}"
    return markup.paragraph(f"{text}.", quiet=True)


def download_state(job: Job) -> tuple[str, str]:
    """The title of the part with a download, with its progress, and the state or end of the download as HTML."""
    if (end := job.end) is not None and end.folder is not None:
        text = f"{end.text} It is selected in the model menu above. Choose how to load it, then press Load model."
        return DOWNLOAD, markup.card("", markup.paragraph(text), mood="good")
    share, card = markup.download_card(job)
    return DOWNLOAD if share is None else f"{DOWNLOAD}: {share:.0%}", card


class DownloadPanel:
    """A text box for the name, buttons, and the progress. A new model is selected in the menu of models."""

    def __init__(self, host: ModelPickerHost, context: PageContext) -> None:
        self._host, self._context = host, context
        self._last_request = ""
        with gr.Accordion(DOWNLOAD, open=not host.models(), elem_id="tp-get-part") as self._accordion:
            with gr.Row():
                name = gr.Textbox(
                    label="Model on the Hugging Face Hub",
                    placeholder="OWNER/NAME, or the URL of the model's page",
                    max_lines=1,
                    min_width=300,
                    elem_id=NAME_BOX,
                )
                style = {"min_width": 90, "scale": 0, "elem_classes": "tp-beside-field"}
                self._get_button = gr.Button("Get", elem_id="tp-get", **style)
                self._stop_button = gr.Button("Stop", elem_id="tp-get-stop", **style)
            buttons = (markup.fill_button(NAME_BOX, name, name.partition("/")[2]) for name in SUGGESTED_MODELS)
            suggested = Markup('<p class="tp-quiet tp-suggested">Suggested models: {}</p>')
            gr.HTML(suggested.format(Markup(" ").join(buttons)))
            refusal = gr.HTML(elem_id="tp-get-refused", elem_classes="tp-said")
            self._status = gr.HTML(elem_id="tp-get-said", elem_classes="tp-said")
            follow_button = gr.Button("Follow again", elem_classes=["tp-hidden", "tp-again"])

        def stop() -> str:
            context.require_job("download", "No download is running.").control.ask(Request.STOP)
            return ""

        get = [self._get_button.click, name.submit]
        add_handler(get, self._start_download, name, refusal, what="Downloading the model")
        add_handler(self._stop_button.click, stop, None, refusal, what="Stop")
        # The last requested name; if there is none, what the user has typed stays.
        asked = lambda: gr.update(**({"value": self._last_request} if self._last_request else {}))  # noqa: E731
        add_handler(page_load(), asked, None, name, what="Filling in the model's name")
        outputs = [self._accordion, self._get_button, self._stop_button, self._status, self._context.models]
        for event in (page_load(), follow_button.click):
            add_handler(event, self._follow, None, outputs, what="Showing the download")

    def _start_download(self, name_or_url: str) -> str:
        self._context.check_writable()
        name_or_url = name_or_url.strip()
        if not name_or_url:
            raise SettingsError(["Enter the OWNER/NAME of a model, or paste the URL of its page."])
        name, work = self._host.download_job(name_or_url)
        self._context.session.start_without_model("download", f"Downloading {name}", work)
        self._last_request = name_or_url
        return ""

    async def _follow(self) -> AsyncIterator[dict[Any, Any]]:
        """Show the last download, then every change for as long as the page is open."""
        context, menu = self._context, self._context.models
        # A download that had ended before the page was opened changes no choice in the menu of models.
        seen = None if context.running_job("download") else context.session.latest("download")
        async for job in context.follow_latest("download"):
            running, enabled = job is not None and job.running, not context.read_only_reason()
            updates = {
                self._get_button: gr.update(interactive=enabled and not running),
                self._stop_button: gr.update(interactive=enabled and running, visible=running),
            }
            if job is None:
                yield updates
                continue
            title, html = download_state(job)
            part = gr.update(label=title, **({"open": True} if running else {}))
            yield {**updates, self._status: html, self._accordion: part}
            if job.end is not None and job is not seen:
                seen = job
                if job.end.folder:
                    # In two steps: Gradio 4 stores the selection by index, and a new model shifts the indices.
                    # When Gradio 4.37 goes, delete the first one.
                    yield {menu: gr.update(value=None)}
                    yield {menu: gr.update(choices=self._host.models(), value=job.end.folder.name)}
