"""Hostile values sent to every endpoint of the page: they must not touch anything on the disk."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from contextlib import suppress
from pathlib import Path

import gradio as gr
import pytest
from training_pro.core.errors import TrainingProError
from training_pro.core.jobs import Request, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import LOADING_OPTIONS, StandaloneHost, standalone_folders
from training_pro.interface.base import Form, PageContext, confirm, page_context
from training_pro.interface.page import page
from training_pro.interface.run import run_panel
from training_pro.interface.tabs import runs_tab
from training_pro.tests import hostile
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, write_files

WRITTEN_BY_PAGE = (
    "training/form.json",
    "training/queue.json",
    "training/queue.json.lock",
    "training/prepared",
    "training/presets/story.json",
    "logs",
)
"""Files that the page itself writes; names of presets are stripped, so 'story ' becomes a preset."""
OTHER_VALUES = {"tp-runs-name": "new", "tp-runs-note": "mine"}
"""Values of the other boxes, so that an endpoint gets as far as the hostile value."""
NAME_BOXES = ("tp-name", "tp-data", "tp-eval_data", "tp-format")
MAX_SINGLE = 8
STREAM_SECONDS = 0.005
ENDPOINTS, CALLS = 90, 7000
"""Lower bounds, so that no endpoint is omitted unnoticed."""


@pytest.fixture
def user_data(tmp_path):
    """A user_data folder with all kinds of files, links that lead out of it, and a folder outside."""
    root, outside = tmp_path / "user_data", tmp_path / "outside"
    extra_files = {"config.json": {}, "secret.txt": "not yours", "big.gguf": "x" * 999}
    write_files(tmp_path, "outside", {**FINISHED, **extra_files})
    write_files(root / "loras", "story", FINISHED)
    write_files(root / "loras", "night", CUT_OFF)
    write_files(root / "models", "tiny", {"config.json": {"model_type": "none"}, "model.safetensors": "weights"})
    for name in ("presets", "formats"):
        write_files(root / "training", name, {"mine.json": {"rank": 8}})
    write_files(root / "training", "datasets", {"book.txt": "Once upon a time.\n"})
    hostile.plant_link(root / "loras", outside)
    for name in ("presets", "formats"):
        (root / "training" / name / f"{hostile.LINK}.json").symlink_to(outside / "training_parameters.json")
    for folder in (root / "loras", root / "models", *(root / "training").iterdir()):
        assert all(hostile.is_harmless(value, folder, tmp_path) for value in hostile.hostile_values(outside))
    return root


@pytest.fixture
def quick(monkeypatch):
    """Shorten all waiting times."""
    monkeypatch.setattr(page_context, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(page_context.LOOKS, "shortest", 0.001)
    monkeypatch.setattr(run_panel, "REFRESH_SECONDS", 0.001)
    monkeypatch.setattr(confirm, "CONFIRM_SECONDS", 0)


def disk(root: Path) -> dict[str, str]:
    """Hashes of all files and targets of all links below a folder, except the files that the page writes."""
    state = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if name.removeprefix("user_data/").startswith(WRITTEN_BY_PAGE) or path == root / "user_data" / "training":
            continue
        if path.is_symlink():
            state[name] = f"-> {path.readlink()}"
        else:
            state[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return state


def changes(before, after):
    """Files that were added, removed, or changed."""
    return {name: (before.get(name), after.get(name)) for name, _ in before.items() ^ after.items()}


def default_value(component):
    """The value that the page sends for an untouched component."""
    return OTHER_VALUES.get(component.elem_id, component.value)


def sent(component, value):
    """A hostile value as this component would send it."""
    several = isinstance(component, gr.Dropdown) and component.multiselect
    return [value] if several else value


def is_open(component):
    """Whether the API accepts any text for this component; the hidden box of the queue is one of these."""
    return isinstance(component, (gr.Textbox, gr.Dropdown))


def hostile_inputs(endpoint, values):
    """Inputs with each value in each box alone; for a whole form, in name boxes and in all boxes at once."""
    boxes = list(filter(is_open, endpoint.inputs))
    single = boxes if len(boxes) <= MAX_SINGLE else [box for box in boxes if box.elem_id in NAME_BOXES]
    for value in values:
        yield from ({box: sent(box, value)} for box in single)
        if len(single) < len(boxes):
            yield {box: sent(box, value) for box in boxes}


async def exhaust(stream):
    async for _ in stream:
        pass


def call(endpoint, inputs):
    """Call an endpoint as Gradio does. Exceptions do not matter, only changes on the disk."""
    with suppress(Exception):
        arguments = [inputs] if endpoint.inputs_as_dict else list(inputs.values())
        result = endpoint.fn(*arguments)
        if inspect.isasyncgen(result):
            with suppress(TimeoutError, asyncio.TimeoutError):
                asyncio.run(asyncio.wait_for(exhaust(result), STREAM_SECONDS))
        elif inspect.iscoroutine(result):
            asyncio.run(result)
        elif inspect.isgenerator(result):
            list(result)


def stop_jobs(session):
    """Stop and wait for all jobs that an endpoint has started."""
    for kind in ("model", "training", "answer", "perplexity", "merge", "download", "probe"):
        if (job := session.latest(kind)) is not None:
            job.control.ask(Request.STOP)
            job.log.wait_closed()


def make_page(user_data):
    session = Session()
    host = StandaloneHost(standalone_folders(user_data))
    blocks, _ = page.build_page(host, PeftEngine(), session, loadings=LOADING_OPTIONS, first_look=True)
    return blocks, session


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.long)])
def test_no_endpoint_touches_files_that_no_menu_offers(user_data, quick, share):
    """Each endpoint gets every `share`-th value, the next endpoint the values after these."""
    page_blocks, session = make_page(user_data)
    endpoints = [endpoint for endpoint in page_blocks.fns.values() if endpoint.fn is not None]
    all_values, calls = hostile.some(hostile.hostile_values(user_data.parent / "outside")), 0
    before = disk(user_data.parent)
    for number, endpoint in enumerate(endpoints):
        values = all_values[number % share :: share]
        defaults = {component: default_value(component) for component in endpoint.inputs}
        for inputs in [{**defaults, **changed} for changed in hostile_inputs(endpoint, values)] or [defaults]:
            call(endpoint, inputs)
            calls += 1
        stop_jobs(session)
        assert changes(before, disk(user_data.parent)) == {}, f"by {endpoint.fn}"
    assert len(endpoints) >= ENDPOINTS and calls >= CALLS // share


STRANGE = (
    None,
    "",
    "x" * 100,
    -1,
    1e308,
    float("nan"),
    True,
    [],
    [[]],
    {},
    {"a": 1},
    [None, {"b": [1]}],
    "\udc80",
)
"""Values that no component of the page sends."""


def test_a_value_of_the_wrong_kind_is_answered_with_a_sentence(user_data):
    """Gradio alone would answer `{"error": null}`, and the page would show nothing but "Error"."""
    blocks, _ = make_page(user_data)
    refused = 0
    for endpoint in blocks.fns.values():
        for values in (
            *([value] * len(endpoint.inputs) for value in STRANGE),
            [None] * (len(endpoint.inputs) - 1),
        ):
            try:
                asyncio.run(blocks.preprocess_data(endpoint, values, None, explicit_call=True))
            except gr.Error as error:
                refused += 1
                assert len(error.message) < 400
                assert "Reload the page" in error.message and error.message.isprintable(), error.message
    assert refused > ENDPOINTS


def test_new_names_must_not_be_paths(user_data, quick):
    """Copy as a LoRA, Merge, and Write as GGUF, with an existing run and a hostile new name."""
    before = disk(user_data.parent)
    host = StandaloneHost(standalone_folders(user_data))
    with gr.Blocks(), gr.Tab() as parent:
        tab = runs_tab.RunsTab(PageContext(host, PeftEngine(), Session()), Form())
        tab.draw(parent)
    values = hostile.some(hostile.hostile_values(user_data.parent))
    for value in filter(lambda value: value.strip() not in ("", "story", hostile.LINK), values):
        inputs = {tab._chosen: "story", tab._other: "", tab._name: value, tab._note: ""}
        for action in (tab._on_copy, tab._on_gguf):
            with pytest.raises(TrainingProError):
                action(inputs, host.folders)
        with pytest.raises(TrainingProError):
            tab._merge_panel._start_merge("story", value)
    assert changes(before, disk(user_data.parent)) == {}


def test_the_size_is_only_shown_for_models(user_data):
    outside = user_data.parent / "outside"
    host = StandaloneHost(standalone_folders(user_data))
    for value in (
        *hostile.hostile_values(outside),
        str(outside / "big.gguf"),
        "tiny/model.safetensors",
        "../models/tiny",
    ):
        assert host.size_on_disk(value) == 0 and host.config(value) == {}
    assert host.size_on_disk("tiny") == len("weights") and host.config("tiny") == {"model_type": "none"}


def test_load_model_takes_no_path(user_data, quick):
    """A loaded model stays loaded; the model of the command line may be loaded again."""
    outside = user_data.parent / "outside"
    host = StandaloneHost(standalone_folders(user_data), model=str(outside))
    assert host.validate_name("tiny") == "tiny" and host.validate_name(str(outside)) == str(outside)
    host = StandaloneHost(standalone_folders(user_data), model="tiny")
    for value in hostile.some(hostile.hostile_values(outside)):
        with pytest.raises(TrainingProError):
            host.validate_name(value)
    assert host.selected_model == ("tiny", "auto")


def test_malformed_requests_are_answered_without_a_python_error(user_data, quick, caplog):
    """What gets past Gradio reaches the handlers, whose unexpected errors are logged."""
    blocks, session = make_page(user_data)
    for endpoint in [endpoint for endpoint in blocks.fns.values() if endpoint.fn is not None]:
        for value in ("{", '{"set": 1, "queue": "up x"}', True, [1]):
            with suppress(gr.Error):
                inputs = asyncio.run(
                    blocks.preprocess_data(endpoint, [value] * len(endpoint.inputs), None, explicit_call=True)
                )
                call(endpoint, dict(zip(endpoint.inputs, inputs, strict=True)))
        stop_jobs(session)
    failed = [record for record in caplog.records if record.exc_info]
    assert not failed, "\n".join(sorted({f"{r.getMessage()}: {r.exc_info[1]!r}" for r in failed}))
