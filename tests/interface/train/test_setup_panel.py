"""Set up training from the page: what it would download, the environment, a stop, a repair, and the removal.

The environment is real, made with venv and pip, from tiny wheels of all pinned packages.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from training_pro.core import own_environment
from training_pro.core.host import ModelStatus, OwnProcess
from training_pro.core.jobs import Session
from training_pro.interface.base import PageContext
from training_pro.interface.tabs import RunsTab
from training_pro.interface.train import SetupPanel, TrainTab
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.interface.visit import Visit, open_tab
from training_pro.tests.registry import Mirror, put_wheel

State = own_environment.State


@dataclass
class Portable(FakeHost):
    owns_process: bool = False
    own_process: OwnProcess | None = OwnProcess(Path("python"), "m")  # noqa: RUF009  # frozen
    problem: str = "This webui does not include torch."

    def model_status(self):
        return ModelStatus(problem=self.problem)


class Slow(Mirror):
    """Sends wheels only once `go_on` is set; `asks` is set when one is asked for."""

    go_on, asks = Event(), Event()

    def do_GET(self):  # noqa: N802
        if self.path.endswith(".whl") and self.command == "GET":
            self.asks.set()
            self.go_on.wait()
        super().do_GET()


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry")
    for name in own_environment.TRAIN_LISTS:
        for pin in own_environment.read_pins(name):
            put_wheel(folder, *pin.split("=="))
    return folder


@pytest.fixture
def host(tmp_path, registry, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PATH", "/nowhere")  # no nvidia-smi
    monkeypatch.setattr(Slow, "root", registry)
    Slow.go_on.set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
        yield Portable(make_folders(tmp_path))
        Slow.go_on.set()
        server.shutdown()


class Engine:
    closed = 0

    def close(self):
        self.closed += 1


@pytest.fixture
def context(host):
    return PageContext(host, Engine(), Session())


@pytest.fixture
def page(context):
    return Visit(lambda: SetupPanel(context))


@pytest.mark.long
def test_it_says_what_is_needed_makes_it_repairs_it_and_removes_it(page, context, host, monkeypatch):
    folders = host.folders
    find = lambda: own_environment.own_environment(folders)  # noqa: E731
    first = page.press("Setting up training", "load")
    assert first["setup"]["visible"] and find().state is State.MISSING
    assert "Enter for example cu126" in page.press("setup-go", setup_torch="../wheel.whl")["setup-refused"]
    planned = page.press("setup-go", setup_torch="")
    count = sum(len(own_environment.read_pins(name)) for name in own_environment.TRAIN_LISTS)
    assert (
        f"To install: {count} packages, " in planned["setup-said"]
        and "trained on the CPU" in planned["setup-said"]
    )
    assert planned["setup-go"]["value"] == "Download and install" and find().state is State.INCOMPLETE
    # A stop while pip or a download is at work ends the process; the setup goes on from there.
    Slow.go_on.clear()
    Slow.asks.clear()
    runs = asyncio.run(stop_when_asked(page))
    assert "Stopped" in runs["setup-said"] and find().state is State.INCOMPLETE
    Slow.go_on.set()
    page.press("setup-go")
    made = page.press("setup-go", setup_go="Download and install")
    assert "Training environment: " in made["setup-text"] and made["setup-said"] == ""
    assert context.engine.closed == 3  # before each try to install, and when pip begins
    assert not made["setup-go"]["visible"]
    assert (
        find().state is State.READY and find().size > 1_000_000 and not list(folders.training.glob("*.downloads"))
    )
    code = "import torch, peft; print(torch.version)"
    assert subprocess.run([find().python, "-c", code], capture_output=True, text=True).stdout == "2.13.0\n"
    # Its Python vanishes, as with a webui that was replaced: the packages stay.
    find().python.unlink()
    assert find().state is State.BROKEN
    Slow.asked.clear()
    assert page.press("Setting up training", "load")["setup-go"]["value"] == "Repair"
    repaired = page.press("setup-go", setup_go="Repair")
    assert find().state is State.READY and Slow.asked == [] and not repaired["setup-go"]["visible"]
    # Other pins: it can be used, and updated.
    pins = shutil.copytree(own_environment.PINS, folders.user_data / "pins")
    (pins / "train.txt").write_text("peft==99\n")
    with monkeypatch.context() as patch:
        patch.setattr(own_environment, "PINS", pins)
        assert find().state is State.OUTDATED
    # The Runs tab names it, and it is removed there.
    tab = open_tab(RunsTab, context, "shard_size")
    listed = tab.press("Refresh")
    assert "The training environment takes" in listed["runs-table"] and listed["runs-environment"]["visible"]
    assert "Remove it (" in str(tab.until("runs-environment", lambda shown: shown)["runs-environment"])
    removed = tab.press("runs-environment")
    assert "Removed the training environment" in removed["runs-said"] and find().state is State.MISSING
    assert sorted(path.name for path in folders.training.iterdir()) == ["datasets"]


async def stop_when_asked(page):
    """Press Install, and Stop as soon as a package is asked for."""
    shown = {}
    async for update in page.stream("setup-go", setup_go="Download and install"):
        shown |= update
        if Slow.asks.is_set():
            Slow.asks.clear()
            assert [update async for update in page.stream("setup-stop")]
    return shown


def test_what_was_begun_is_removed_after_a_question(page, context, host):
    folder = host.folders.environment
    folder.mkdir(parents=True)
    (folder / own_environment.MARKER_NAME).write_text("{}")
    assert page.press("Setting up training", "load")["setup-go"]["value"] == "Continue the setup"
    tab = open_tab(RunsTab, context, "shard_size")
    assert "Remove it (2 bytes)?" in str(tab.until("runs-environment", lambda shown: shown)["runs-environment"])
    assert "Removed the training environment" in tab.press("runs-environment")["runs-said"]
    assert not folder.exists() and context.engine.closed == 1


def test_it_is_hidden_where_the_host_can_train_and_locked_where_several_people_use_it(context, host):
    host.problem = ""
    page = open_tab(TrainTab, context)
    assert not page.press("Setting up training", "load")["setup"]["visible"]
    host.read_only_reason = "Several people use this page."
    for button in ("setup-go", "setup-stop"):
        assert "Several people use this page." in page.press(button)["setup-refused"]
    assert not (host.folders.environment).exists()
