"""Hostile values sent to every endpoint of the page: they must not touch anything on the disk."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from contextlib import aclosing, suppress
from pathlib import Path

import gradio as gr
import pytest
from training_pro.core.errors import TrainingProError
from training_pro.core.jobs import Request, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost, standalone_folders
from training_pro.interface.base import PageContext
from training_pro.interface.page import build_page
from training_pro.interface.tabs import RunsTab
from training_pro.tests import hostile
from training_pro.tests.interface.visit import open_tab
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, write_files

WRITTEN_BY_PAGE = tuple(
    f"training/{name}" for name in ("form.json", "queue.json", "prepared", "presets/story.json")
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


def disk(root: Path) -> dict[str, str]:
    """Hashes of all files and targets of all links below a folder, except the files that the page writes."""
    state = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if name.removeprefix("user_data/").startswith((*WRITTEN_BY_PAGE, "logs")) or name == "user_data/training":
            continue
        if path.is_symlink():
            state[name] = f"-> {path.readlink()}"
        else:
            state[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return state


def hostile_inputs(endpoint, values):
    """Inputs with each value in each box alone; for a whole form, in name boxes and in all boxes at once."""
    defaults = {box: OTHER_VALUES.get(box.elem_id, box.value) for box in endpoint.inputs}
    boxes = [box for box in endpoint.inputs if isinstance(box, (gr.Textbox, gr.Dropdown))]
    single = boxes if len(boxes) <= MAX_SINGLE else [box for box in boxes if box.elem_id in NAME_BOXES]
    for value in values if boxes else [None]:
        sent = {box: [value] if getattr(box, "multiselect", False) else value for box in boxes}
        yield from ({**defaults, box: sent[box]} for box in single)
        if len(single) < len(boxes) or not boxes:
            yield defaults | sent


def call(endpoint, inputs):
    """Call an endpoint as Gradio does. Exceptions do not matter, only changes on the disk."""

    async def run():
        result = endpoint.fn(inputs) if endpoint.inputs_as_dict else endpoint.fn(*inputs.values())
        if inspect.isasyncgen(result):
            async with aclosing(result):
                await anext(result)
                await asyncio.wait_for(anext(result), STREAM_SECONDS)
        elif inspect.isawaitable(result):
            await result
        elif inspect.isgenerator(result):
            list(result)

    with suppress(Exception):
        asyncio.run(run())


def stop_jobs(session):
    """Stop and wait for all jobs that an endpoint has started."""
    for kind in ("model", "training", "answer", "perplexity", "merge", "download", "probe"):
        if (job := session.latest(kind)) is not None:
            job.control.ask(Request.STOP)
            job.log.wait_closed()


def make_page(user_data):
    session = Session()
    host = StandaloneHost(standalone_folders(user_data))
    blocks, _ = build_page(host, PeftEngine(), session)
    return blocks, session


@pytest.mark.long
def test_no_endpoint_touches_files_that_no_menu_offers(user_data, monkeypatch):
    monkeypatch.setattr("training_pro.interface.base.handlers.CONFIRM_SECONDS", 0)
    blocks, session = make_page(user_data)
    endpoints = [endpoint for endpoint in blocks.fns.values() if endpoint.fn is not None]
    values, calls = hostile.hostile_values(user_data.parent / "outside"), 0
    before = disk(user_data.parent)
    for endpoint in endpoints:
        for inputs in hostile_inputs(endpoint, values):
            call(endpoint, inputs)
            calls += 1
        stop_jobs(session)
        changed = {name for name, _ in before.items() ^ disk(user_data.parent).items()}
        assert not changed, f"by {endpoint.fn.what}"
    assert len(endpoints) >= ENDPOINTS and calls >= CALLS


@pytest.mark.long
def test_new_names_must_not_be_paths(user_data):
    """Copy as a LoRA, Merge, and Write as GGUF, with an existing run and a hostile new name."""
    before, host = disk(user_data.parent), StandaloneHost(standalone_folders(user_data))
    page = open_tab(RunsTab, PageContext(host, PeftEngine(), Session()), "shard_size")
    values = hostile.hostile_values(user_data.parent)
    for value in filter(lambda value: value.strip() not in ("", "story", hostile.LINK), values):
        for action in ("own", "gguf", "merge"):
            said = page.press(f"runs-{action}", runs_chosen="story", runs_name=value)["runs-said"]
            assert "tp-bad" in said, (action, value)
    assert disk(user_data.parent) == before


def test_a_path_is_no_model(user_data):
    """Nothing is told of it, and it is not loaded, unless the command line named it."""
    outside = user_data.parent / "outside"
    host = StandaloneHost(standalone_folders(user_data), model="tiny")
    for value in (*hostile.hostile_values(outside), str(outside / "big.gguf"), "../models/tiny"):
        assert host.size_on_disk(value) == 0 and host.config(value) == {}
        with pytest.raises(TrainingProError):
            host.load(value, "auto")
    assert host.size_on_disk("tiny") == len("weights") and host.config("tiny") == {"model_type": "none"}
    assert host.selected_model == ("tiny", "auto")
    host = StandaloneHost(standalone_folders(user_data), model=str(outside))
    assert host.size_on_disk("tiny") and host.size_on_disk(str(outside))
