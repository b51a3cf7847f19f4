"""Values that no menu offers, handed to every endpoint of the page: nothing on the disk is touched by them."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from contextlib import suppress
from pathlib import Path

import gradio as gr
import pytest
from training_pro.core.errors import TrainingProError
from training_pro.core.jobs.session import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import LOADINGS, StandaloneHost, folders
from training_pro.interface.base import page_context
from training_pro.interface.base.page_context import Joined
from training_pro.interface.page import download_panel, page
from training_pro.interface.run import queue_view
from training_pro.interface.tabs import runs_tab
from training_pro.tests import hostile
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, made

WRITTEN = (
    "training/form.json",
    "training/queue.json",
    "training/queue.json.lock",
    "training/prepared",
    "training/presets/story.json",
    "logs",
)
"""What the page writes by itself; blanks around the name of a new preset are left out, so 'story ' is one."""
BESIDE = {"tp-runs-name": "new", "tp-runs-note": "mine"}
"""What stands in the other boxes, so that an endpoint gets as far as the value."""
NAMING = ("tp-name", "tp-data", "tp-eval_data", "tp-format")
MOST_ALONE = 8
FOLLOWS_SECONDS = 0.02
ENDPOINTS, CALLS = 90, 7000
"""At least so many, so that none is left out unseen."""


@pytest.fixture
def user_data(tmp_path):
    """A working folder with all that a page handles, links that lead out of it, and a folder beside it."""
    root, outside = tmp_path / "user_data", tmp_path / "outside"
    more = {"config.json": {}, "secret.txt": "not yours", "big.gguf": "x" * 999}
    made(tmp_path, "outside", {**FINISHED, **more})
    made(root / "loras", "story", FINISHED)
    made(root / "loras", "night", CUT_OFF)
    made(root / "models", "tiny", {"config.json": {"model_type": "none"}, "model.safetensors": "weights"})
    for name in ("presets", "formats"):
        made(root / "training", name, {"mine.json": {"rank": 8}})
    made(root / "training", "datasets", {"book.txt": "Once upon a time.\n"})
    hostile.planted(root / "loras", outside)
    for name in ("presets", "formats"):
        (root / "training" / name / f"{hostile.LINK}.json").symlink_to(outside / "training_parameters.json")
    for place in (root / "loras", root / "models", *(root / "training").iterdir()):
        assert all(hostile.is_harmless(value, place, tmp_path) for value in hostile.values(outside))
    return root


@pytest.fixture
def quick(monkeypatch):
    """Nothing is waited for."""
    for module in (page_context, download_panel):
        monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(queue_view, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(runs_tab, "ASKS_SECONDS", 0)


def disk(root: Path) -> dict[str, str]:
    """Everything below a folder: what a file holds, where a link leads; without what the page writes by itself."""
    found = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if name.removeprefix("user_data/").startswith(WRITTEN) or path == root / "user_data" / "training":
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


def changes(before, after):
    """What is there, or was, and is another now."""
    return {name: (before.get(name), after.get(name)) for name, _ in before.items() ^ after.items()}


def value_of(component):
    """What the page sends where nobody has touched it."""
    return BESIDE.get(component.elem_id, component.value)


def sent(component, value):
    """A hostile value as this component would send it."""
    several = isinstance(component, gr.Dropdown) and component.multiselect
    return [value] if several else value


def is_open(component):
    """Whether somebody may put a text of his own there over the API; the queue's wishes are such a text, too."""
    return isinstance(component, (gr.Textbox, gr.Dropdown))


def asked(endpoint, values):
    """Each value in each box alone; of a whole form in those that name a file, and in all at once."""
    boxes = list(filter(is_open, endpoint.inputs))
    alone = boxes if len(boxes) <= MOST_ALONE else [box for box in boxes if box.elem_id in NAMING]
    for value in values:
        yield from ({box: sent(box, value)} for box in alone)
        if len(alone) < len(boxes):
            yield {box: sent(box, value) for box in boxes}


async def streamed(stream):
    async for _ in stream:
        pass


def called(endpoint, given):
    """Call it as Gradio does; whatever it raises, the disk tells what it did."""
    with suppress(Exception):
        arguments = [given] if endpoint.inputs_as_dict else list(given.values())
        answer = endpoint.fn(*arguments)
        if inspect.isasyncgen(answer):
            with suppress(TimeoutError, asyncio.TimeoutError):
                asyncio.run(asyncio.wait_for(streamed(answer), FOLLOWS_SECONDS))
        elif inspect.iscoroutine(answer):
            asyncio.run(answer)
        elif inspect.isgenerator(answer):
            list(answer)


def all_over(session):
    """Wait for what an endpoint has begun."""
    for kind in ("model", "training", "answer", "perplexity", "merge", "download", "probe"):
        if (job := session.latest(kind)) is not None:
            job.control.stop()
            job.log.wait_closed()


def the_page(user_data):
    session = Session()
    host = StandaloneHost(folders(user_data))
    drawn, _ = page.build_page(host, PeftEngine(), session, loadings=LOADINGS, first_look=True)
    return drawn, session


def test_no_endpoint_touches_what_no_menu_offers(user_data, quick):
    drawn, session = the_page(user_data)
    endpoints = [endpoint for endpoint in drawn.fns.values() if endpoint.fn is not None]
    values, calls = hostile.values(user_data.parent / "outside"), 0
    before = disk(user_data.parent)
    for endpoint in endpoints:
        usual = {component: value_of(component) for component in endpoint.inputs}
        for given in [{**usual, **changed} for changed in asked(endpoint, values)] or [usual]:
            called(endpoint, given)
            calls += 1
        all_over(session)
        assert changes(before, disk(user_data.parent)) == {}, f"by {endpoint.fn}"
    assert len(endpoints) >= ENDPOINTS and calls >= CALLS


def test_a_new_name_for_what_is_chosen_is_a_plain_one(user_data, quick):
    """The other half of Copy as a LoRA, Merge and Write as GGUF: a run that is there, and a hostile new name."""
    before = disk(user_data.parent)
    host = StandaloneHost(folders(user_data))
    with gr.Blocks(), gr.Tab() as around:
        tab = runs_tab.RunsTab(Joined(host, PeftEngine(), Session()))
        tab.draw(around)
    for value in filter(
        lambda value: value.strip() not in ("", "story", hostile.LINK), hostile.values(user_data / "..")
    ):
        given = {tab._chosen: "story", tab._other: runs_tab.NOBODY, tab._name: value, tab._note: ""}
        for act in (tab._on_own, tab._on_gguf):
            with pytest.raises(TrainingProError):
                act(given, host.folders)
        with pytest.raises(TrainingProError):
            tab._merging._begun("story", value)
    assert changes(before, disk(user_data.parent)) == {}


def test_the_memory_line_tells_of_models_only(user_data):
    outside = user_data.parent / "outside"
    host = StandaloneHost(folders(user_data))
    for value in (*hostile.values(outside), str(outside / "big.gguf"), "tiny/model.safetensors", "../models/tiny"):
        assert host.size_on_disk(value) == 0 and host.config(value) == {}
    assert host.size_on_disk("tiny") == len("weights") and host.config("tiny") == {"model_type": "none"}


def test_load_model_takes_no_path(user_data, quick):
    """A model that is in memory stays there; the one that the command line named may be loaded again."""
    outside = user_data.parent / "outside"
    host = StandaloneHost(folders(user_data), model=str(outside))
    assert host.offered("tiny") == "tiny" and host.offered(str(outside)) == str(outside)
    host = StandaloneHost(folders(user_data), model="tiny")
    for value in hostile.values(outside):
        with pytest.raises(TrainingProError):
            host.offered(value)
    assert host.chosen == ("tiny", "auto")
