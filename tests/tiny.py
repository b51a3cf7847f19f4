"""Whole runs in seconds: a workspace with the tiny model, and the actions of a user there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from training_pro.core.engine import AnswerRequest
from training_pro.core.host import Folders
from training_pro.core.jobs import Event, EventLog, Job, JobEnded
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost, standalone_folders
from training_pro.hosts.tiny import TRAINING_TEXT, make_tiny
from training_pro.records.report import charts
from training_pro.settings.definitions import TrainingSettings
from training_pro.settings.parsing import training_settings

# Twenty examples of at most 32 tokens: five steps of four.
QUICK: dict[str, Any] = {
    "name": "a",
    "data": ["story.txt"],
    "cutoff": 32,
    "overlap": False,
    "epochs": 1,
    "rank": 4,
    "alpha": 8,
    "learning_rate": 1e-2,
    "sample_every": "never",
    "recall_passages": 0,
    "keep_awake": False,
}


class WatchedLog(EventLog):
    """Calls `watch` with each event, in the thread that appends it: between two steps, to the step."""

    def __init__(self, watch: Callable[[Job, Event], None]) -> None:
        super().__init__()
        self.job: Job | None = None
        self._watch = watch

    def append(self, event: Event) -> None:
        super().append(event)
        self._watch(self.job, event)


def watched_job(watch: Callable[[Job, Event], None]) -> Job:
    """Return a job whose events go to `watch`, which may make requests or raise."""
    log = WatchedLog(watch)
    log.job = Job("training", "a test", log=log)
    return log.job


@dataclass
class Workspace:
    """A workspace with a story as its dataset."""

    folders: Folders
    tiny: Path

    def host(self, loading: str = "auto") -> StandaloneHost:
        return StandaloneHost(self.folders, model=str(self.tiny), loading=loading)

    def write(self, name: str, text: str) -> None:
        path = self.folders.datasets / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def settings(self, **more: Any) -> TrainingSettings:
        return training_settings({**QUICK, **more})

    def train(
        self, host: StandaloneHost | None = None, *, job: Job | None = None, resume: str = "", **more: Any
    ) -> JobEnded:
        """Train in this thread; errors are raised."""
        job = job or Job("training", "a test")
        return PeftEngine().train(self.settings(**more), host or self.host(), job, resume=resume)

    def answer(self, host: StandaloneHost, job: Job | None = None, **more: Any) -> list[Event]:
        job = job or Job("answer", "a test")
        question = AnswerRequest(**{"prompt": "The keeper of the", "max_tokens": 6, "temperature": 0.0, **more})
        PeftEngine().answer(question, host, job)
        return job.log.since(0)

    def attach_lora(self, host: StandaloneHost, name: str, strength: float = 1.0) -> JobEnded:
        return PeftEngine().attach_lora(name, strength, host, Job("model", "a test"))

    def detach_lora(self, host: StandaloneHost) -> JobEnded:
        return PeftEngine().detach_lora(host, Job("model", "a test"))

    def lora(self, name: str = "a") -> Path:
        return self.folders.loras / name

    def weights(self, name: str = "a") -> bytes:
        return (self.lora(name) / "adapter_model.safetensors").read_bytes()


def make_workspace(folder: Path, tiny: Path) -> Workspace:
    workspace = Workspace(standalone_folders(folder / "user_data"), tiny)
    workspace.write("story.txt", TRAINING_TEXT)
    return workspace


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def empty_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write their picture as an empty file: drawing it takes as long as the rest of a tiny run."""
    monkeypatch.setattr(charts, "draw_graph", lambda graph, title, path, *more: path.touch())


@pytest.fixture
def place(tmp_path: Path, tiny: Path, empty_pictures: None) -> Workspace:
    return make_workspace(tmp_path, tiny)


@pytest.fixture
def disk(place: Workspace) -> Iterator[Path]:
    """The folder of LoRAs on a small disk of its own."""
    folder = place.folders.loras
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="session")
def lora(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """A LoRA from a finished run, trained once."""
    workspace = make_workspace(tmp_path_factory.mktemp("trained"), tiny)
    workspace.train(name="a")
    return workspace.lora("a")


@pytest.fixture
def with_lora(place: Workspace, lora: Path) -> Workspace:
    """A workspace in which the run 'a' is finished."""
    shutil.copytree(lora, place.lora("a"))
    return place


def read_tree(root: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder, and its folders; without prepared data."""
    paths = [path for path in root.rglob("*") if "prepared" not in path.relative_to(root).parts]
    files = {p.relative_to(root).as_posix(): p.read_bytes() for p in paths if p.is_file()}
    return files | {p.relative_to(root).as_posix() + "/": b"" for p in paths if p.is_dir()}
